"""Applications that compute and write in phases, in the simulator: times by hand, policies, lost aggregators, results."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from sim_support import NO_COSTS, experiment, star
from waystage.experiment.io_summary import io_figures, io_rows
from waystage.experiment.problems import ExperimentError
from waystage.experiment.results import IoRecord, RunResult, load
from waystage.worlds.sim.runner import SimWorld

COMMON = "file_systems: [{name: fs, targets: 2, bytes_per_s: 1 MB}]\n" + NO_COSTS.replace(
    "notify_s: 0", "notify_s: 0, grant_s: 0"
).replace("queue_s: 0", "queue_s: 0, obey_s: 0")


def run(folder: Path, policies: str, jobs: str, common: str = COMMON) -> RunResult:
    text = f"name: case\ntopology: {star(folder)}\npolicies: {policies}\n{common}jobs:\n{jobs}"
    found = experiment(folder, text)
    SimWorld().run(found, folder / "out", lambda text, part: None)
    return load(folder / "out")


def took(result: RunResult) -> dict[tuple[str, int], list[IoRecord]]:
    found: dict[tuple[str, int], list[IoRecord]] = defaultdict(list)
    for record in result.io:
        found[record.policy, record.index].append(record)
    return found


def test_phases_take_their_computation_and_their_bytes_over_the_targets(tmp_path: Path) -> None:
    jobs = "  {count: 1, nodes: 2, collective: {file_system: fs, bytes: 4 MB, operations: 3, compute_s: 5}}"
    result = run(tmp_path, '["null"]', jobs)
    (records,) = took(result).values()
    assert [record.op for record in records] == [1, 2, 3]
    for record in records:  # 4 MB at 2 MB/s, and 66 bytes of headers for each 8,948
        assert record.took_s == pytest.approx(2.0 * (1 + 66 / 8948), rel=0.01) and record.waited_s == 0
    (job,) = result.jobs
    assert job.compute_s == pytest.approx(15 + sum(r.took_s for r in records))
    assert result.alone[0].io_s == pytest.approx(sum(r.took_s for r in records))


LOADED = """  count: 1
  nodes: 4
  collective:
    file_system: fs
    bytes: 4 MB
    operations: 10
    aggregator_bytes_per_s: 1 MB
    buffer: 1 KB
    slow: [{aggregator: 2, delay_s: 0.007, start: 3}]
"""


def test_a_loaded_aggregator_is_taken_out_and_the_rest_is_as_fast_as_before(tmp_path: Path) -> None:
    found = took(run(tmp_path, '["null", elastic-io]', LOADED))
    without, with_policy = found["null", 0], found["elastic-io", 0]
    usual = without[0].took_s
    assert all(r.took_s > 3.6 * usual for r in without[2:])
    assert with_policy[2].took_s > 3.6 * usual
    assert all(r.took_s < 1.15 * usual and r.aggregators == 3 for r in with_policy[4:7]), (
        "until it is tried again"
    )


def test_an_operation_whose_aggregator_dies_is_written_by_the_others(tmp_path: Path) -> None:
    jobs = LOADED.replace("delay_s: 0.007, start: 3", "lost: true, start: 3")
    found = took(run(tmp_path, '["null", failed-aggregator]', jobs))
    for records in found.values():
        assert [r.aggregators for r in records] == [4, 4] + [3] * 8
        assert records[2].took_s > records[1].took_s


TWO = "  {count: 2, nodes: 2, collective: {file_system: fs, bytes: 8 MB, operations: 6, compute_s: 10}}"


def test_applications_that_met_take_turns_and_the_result_says_what_that_gains(tmp_path: Path) -> None:
    result = run(tmp_path, '["null", io-fcfs]', TWO)
    found = took(result)
    assert all(r.waited_s == 0 for index in (0, 1) for r in found["null", index])
    waited = [r.waited_s for index in (0, 1) for r in found["io-fcfs", index]]
    assert max(waited) > 2 and sum(w > 0.01 for w in waited) == 1, "one waits once, and they never meet again"
    figures = io_figures(result)
    assert figures["null"].factor == pytest.approx(2.0, rel=0.01), "I of two that share evenly"
    assert figures["io-fcfs"].factor is not None and figures["io-fcfs"].factor < 1.4
    assert figures["io-fcfs"].stretch_max < figures["null"].stretch_max  # type: ignore[operator]
    assert figures["io-fcfs"].utilisation > figures["null"].utilisation
    assert {row["policy"] for row in io_rows(result)} == {"null", "io-fcfs"}


@pytest.mark.parametrize("policy", ["io-fcfs", "io-set10", "io-calciom", "io-min-dilation", "io-fair"])
def test_a_run_can_be_repeated_to_the_byte_under_every_schedule(tmp_path: Path, policy: str) -> None:
    texts = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        run(tmp_path / name, f"[{policy}]", TWO)
        texts.append((tmp_path / name / "out" / "events.jsonl").read_bytes())
    assert texts[0] == texts[1] and b"IoCompleted" in texts[0]


def test_a_controller_whose_grants_do_not_come_stops_no_application(tmp_path: Path) -> None:
    common = COMMON.replace("grant_s: 0", "grant_s: 1000")
    found = took(run(tmp_path, "[{name: io-fcfs, options: {learn: false}}]", TWO, common))
    assert [len(records) for records in found.values()] == [6, 6]


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("aggregators: 3", "3 aggregators on 2 nodes"),
        ("slow: [{aggregator: 2}]", "there is no aggregator 2"),
        ("slow: [{aggregator: 0, start: 3, end: 3}]", "is not after start"),
        ("slow: [{aggregator: 0, lost: true}, {aggregator: 1, lost: true}]", "let one live"),
        ("stripes: 3", "3 stripes"),
    ],
)
def test_what_cannot_be_is_refused_with_its_key(tmp_path: Path, what: str, text: str) -> None:
    jobs = f"  {{count: 1, nodes: 2, collective: {{file_system: fs, bytes: 4 MB, {what}}}}}"
    with pytest.raises(ExperimentError, match=text):
        run(tmp_path, '["null"]', jobs)
