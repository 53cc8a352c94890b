"""Whole experiments in the simulator: results, times known by hand, seeds, failures."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from harness import Waystage
from sim_support import NO_COSTS, RATE, experiment, star, wire
from waystage.events import Envelope, LinkUse
from waystage.experiment import results
from waystage.experiment.loading import load
from waystage.experiment.results import RunResult
from waystage.experiment.summary import summarise
from waystage.experiment.workload import jobs_of_set
from waystage.patterns import Pattern
from waystage.patterns.pattern import Traffic
from waystage.worlds.base import WorldError
from waystage.worlds.sim import control
from waystage.worlds.sim.programs import cg_grid
from waystage.worlds.sim.runner import SimWorld


def run(folder: Path, text: str, out: str = "out") -> RunResult:
    return SimWorld().run(experiment(folder, text), folder / out, lambda what, share: None)


def message(payload: float) -> float:
    """An MPI message has a head of 32 bytes more."""
    return wire(payload + 32)


# -- times that are known ---------------------------------------------------------------------------------


def test_two_stagings_from_one_storage_node_share_its_link(tmp_path: Path) -> None:
    """Both get half until the shorter is done; the longer then gets all: 2 w1 / r and (w1 + w2) / r."""
    result = run(
        tmp_path,
        f"""
name: shared
topology: {star(tmp_path)}
policies: [ecmp]
jobs:
  count: 2
  nodes: 1
  placement: [[a], [b]]
  compute: {{program: none, iterations: 1}}
  mixes:
    - {{name: short, stage_in: {{bytes: 5 MB}}}}
    - {{name: long, stage_in: {{bytes: 20 MB}}}}
{NO_COSTS}""",
    )
    took = {job.kind: job.stage_in_s for job in result.jobs}
    assert took["short"] == pytest.approx(2 * wire(5e6) / RATE, rel=1e-6)
    assert took["long"] == pytest.approx((wire(5e6) + wire(20e6)) / RATE, rel=1e-6)


def test_a_pairwise_alltoall_takes_its_steps_one_after_the_other(tmp_path: Path) -> None:
    """4 ranks: 3 steps, in each of which every rank has its link to itself; plus the options' costs."""
    result = run(
        tmp_path,
        f"""
name: steps
topology: {star(tmp_path)}
policies: [ecmp]
jobs:
  count: 1
  nodes: 4
  compute: {{program: alltoall, iterations: 10, message: 1 MB, time_s: 0.5}}
sim: {{switch_over_s: 0, transfer_s: 0, program_s: 2, message_s: 0.01, notify_s: 0.25, alltoall: pairwise}}
""",
    )
    (job,) = result.jobs
    # Each link also carries the acknowledgements of the other direction: 33 bytes for 8,948.
    step = (message(1e6) + (message(1e6) - 1e6 - 32) / 2) / RATE
    assert job.compute_s == pytest.approx(2 + 10 * (0.5 + 3 * (0.01 + step)), rel=1e-6)
    assert job.job_s == pytest.approx(job.compute_s + 2 * 0.25, rel=1e-6)


def test_cg_sends_to_the_partners_of_its_grid(tmp_path: Path) -> None:
    """8 ranks in 2 rows of 4. As the lab's program, which checks that what it gets is from these partners."""
    assert cg_grid(8) == (4, [0, 1, 4, 5, 2, 3, 6, 7])
    assert cg_grid(16)[1][1] == 4 and cg_grid(2) == (2, [0, 1]) and cg_grid(1) == (1, [0])
    text = "name: cg\ntopology: sixteen\npolicies: [ecmp]\njobs: {count: 1, nodes: NODES, compute: {program: cg, iterations: 2}}\n"
    assert run(tmp_path, text.replace("NODES", "8")).jobs[0].status == "done"
    with pytest.raises(WorldError, match="power of two"):
        run(tmp_path, text.replace("NODES", "6"))


def test_linear_and_pairwise_send_the_same_bytes(tmp_path: Path) -> None:
    text = """
name: bytes
topology: paper
policies: [ecmp]
jobs: {count: 1, nodes: 6, compute: {program: alltoall, iterations: 3, message: 1 MB}}
sim: {alltoall: HOW}
"""
    sums = []
    for how in ("pairwise", "linear"):
        run(tmp_path, text.replace("HOW", how), how)
        sums.append(
            sum(s.bytes for s in results.load_timelines(tmp_path / how) if s.traffic == "all" and s.core)
        )
    assert sums[0] == pytest.approx(sums[1], rel=1e-6) and sums[0] > 0


def test_io_runs_beside_the_computation_and_holds_its_end(tmp_path: Path) -> None:
    result = run(
        tmp_path,
        f"""
name: io
topology: {star(tmp_path)}
policies: [ecmp]
jobs:
  count: 1
  nodes: 1
  compute: {{program: none, iterations: 1, time_s: 0.5}}
  io: {{bytes: 40 MB, direction: write}}
{NO_COSTS}""",
    )
    pieces = 2 * wire(16 * 2**20) + wire(40e6 - 2 * 16 * 2**20)
    assert result.jobs[0].compute_s == pytest.approx(pieces / RATE, rel=1e-6)


def test_processes_of_one_node_exchange_without_the_network(tmp_path: Path) -> None:
    result = run(
        tmp_path,
        f"""
name: node
topology: {star(tmp_path)}
policies: [ecmp]
jobs: {{count: 1, nodes: 1, compute: {{program: alltoall, message: 9 MB, processes_per_node: 4, time_s: 0.1, iterations: 5}}}}
{NO_COSTS}""",
    )
    assert result.jobs[0].compute_s == pytest.approx(0.5)


# -- the whole of an experiment ---------------------------------------------------------------------------


def test_the_published_case_runs_within_a_second_and_separation_wins(
    tmp_path: Path, repository: Path
) -> None:
    case = load(repository / "experiments" / "staging-collision.yaml")[0]
    began = time.process_time()
    result = SimWorld().run(case, tmp_path / "out", lambda what, share: None)
    assert time.process_time() - began < 10  # some 0.5 s on an idle machine
    assert len(result.jobs) == 180 and all(job.status == "done" for job in result.jobs)
    times = {policy: t["job"].value for policy, t in summarise(result).times_s.items()}
    assert times["link-separation"] < times["ecmp"] and times["demand-separation"] < times["ecmp"]
    assert {s.to for s in result.switch_overs} == {"on", "off"}
    assert all(s.total_ms == pytest.approx(case.sim.switch_over_s * 1e3) for s in result.switch_overs)


def test_jobs_come_at_the_times_of_the_workload(tmp_path: Path, repository: Path) -> None:
    """The same times as in the lab: both take them from one function of the seed."""
    case, topology = load(repository / "experiments" / "demo.yaml")
    result = SimWorld().run(case, tmp_path / "out", lambda what, share: None)
    for number in range(case.sets):
        wanted = [request.submit_s for request in jobs_of_set(case, topology, number)]
        for policy in result.policies:
            jobs = sorted(
                (j for j in result.jobs if (j.policy, j.set) == (policy, number)), key=lambda j: j.index
            )
            at = [job.submitted_at_s - jobs[0].submitted_at_s for job in jobs]
            assert at == pytest.approx(wanted)


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path, waystage: Waystage, repository: Path) -> None:
    file = str(repository / "experiments" / "demo.yaml")
    for out, seed in (("one", "1"), ("two", "1"), ("three", "3")):
        assert waystage("run", file, "--on", "sim", "--seed", seed, "--out", out, "--quiet").code == 0
    one, two, three = (
        {f.name: f.read_bytes() for f in (tmp_path / out).iterdir()} for out in ("one", "two", "three")
    )
    assert one == two and {"result.json", "timelines.parquet", "events.jsonl", "report.html"} <= one.keys()
    assert one["result.json"] != three["result.json"]


def test_every_byte_sent_is_in_the_timelines(tmp_path: Path) -> None:
    """Staged bytes cross each link of their way once, in class staging, acknowledgements beside them."""
    run(
        tmp_path,
        """
name: timelines
topology: paper
policies: [ecmp]
jobs:
  count: 3
  nodes: 1
  placement: [[c4]]
  concurrent: 1
  compute: {program: none, iterations: 1}
  stage_in: {bytes: 9 MB, files: 3}
measure: {interval_s: 3}
""",
    )
    samples = results.load_timelines(tmp_path / "out")
    forth = sum(s.bytes for s in samples if s.core and s.traffic == "staging" and s.peer == "edge2")
    back = sum(s.bytes for s in samples if s.core and s.traffic == "staging" and s.peer == "edge1")
    ways = {forth, back}  # whichever edge switch the storage node is under
    assert max(ways) == pytest.approx(3 * wire(9e6), rel=1e-6)
    assert min(ways) == pytest.approx(3 * (wire(9e6) - 9e6) / 2, rel=1e-3)
    assert sum(s.bytes for s in samples if s.core and s.traffic == "all") == sum(ways)


def test_a_demand_measured_in_the_simulator_reaches_the_policy(tmp_path: Path) -> None:
    """`LinkUse` is published once a second, as on a site, with the classes apart."""
    seen: list[Any] = []

    class Listener:
        name = "listener"

        def __call__(self, event: Any, state: Any) -> tuple[()]:
            seen.append((type(event).__name__, dict(state.class_rate_bps)))
            return ()

    case = experiment(
        tmp_path,
        "name: use\ntopology: paper\npolicies: [ecmp]\n"
        "jobs: {count: 1, nodes: 6, compute: {program: alltoall, iterations: 20, message: 1 MB}}\n",
    )
    world = SimWorld()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("waystage.worlds.sim.runner.build_policy", lambda *_: Listener())
        result = world.run(case, tmp_path / "out", lambda what, share: None)
    rates = [rates["mpi"] for name, rates in seen if name == "LinkUse" and "mpi" in rates]
    assert len(rates) >= int(result.jobs[0].compute_s) - 1 and max(rates) > 50e6


def test_a_run_draws_bins_of_100_ms_and_policies_hear_of_links_once_a_second(tmp_path: Path) -> None:
    """A change of paths is seen where it happens; what a policy knows does not depend on what is drawn."""
    heard: list[LinkUse] = []

    class Watching:
        def begin(self, policy: str, set_index: int) -> None: ...

        def __call__(self, item: Envelope) -> None:
            if isinstance(item.event, LinkUse):
                heard.append(item.event)

    text = (
        "name: bins\ntopology: paper\npolicies: [link-separation]\n{measure}"
        "jobs: {{count: 2, nodes: 3, concurrent: 2, stage_in: {{bytes: 8 MB}},"
        " compute: {{program: alltoall, iterations: 20, message: 600 kB}}}}\n"
    )
    world = SimWorld()
    world.watcher = Watching()
    result = world.run(experiment(tmp_path, text.format(measure="")), tmp_path / "fine", lambda *_: None)
    assert result.switch_overs
    assert {event.interval_ns for event in heard} == {10**9}
    fine = results.load_timelines(tmp_path / "fine")
    assert {round(s.interval_s, 6) for s in fine} == {0.1}
    by_port: dict[tuple[float, str, int], dict[str, int]] = {}
    for s in fine:
        by_port.setdefault((s.at_s, s.node, s.port), {})[s.traffic] = s.bytes
    for counts in by_port.values():
        assert sum(n for traffic, n in counts.items() if traffic != "all") == counts["all"] <= 1_250_000
    coarse_run = experiment(tmp_path, text.format(measure="measure: {interval_s: 1}\n"))
    again = SimWorld().run(coarse_run, tmp_path / "coarse", lambda *_: None)
    coarse = results.load_timelines(tmp_path / "coarse")
    assert {round(s.interval_s, 6) for s in coarse} == {1.0}
    assert sum(s.bytes for s in fine) == sum(s.bytes for s in coarse)
    assert again.jobs == result.jobs


# -- patterns of programs ------------------------------------------------------------------------------------


def pattern(path: Path, ranks: int, rows: list[tuple[int, int, int, int, int]]) -> str:
    """Rows of (phase, source, destination, messages, bytes)."""
    phase, src, dst, messages, total = (list(column) for column in zip(*rows, strict=True))
    sent = Traffic.from_rows(phase, src, dst, [0] * len(rows), [255] * len(rows), messages, total)
    edges = np.arange(max(phase) + 2, dtype=np.float64)
    Pattern(ranks, sent, sent, edges, ("",) * ranks).write(path)
    return path.name


def test_a_pattern_is_played_phase_by_phase_in_every_iteration(tmp_path: Path) -> None:
    rows = [(0, 0, 1, 1, 1_000_000), (1, 0, 2, 1, 2_000_000), (1, 0, 3, 1, 1_000_000)]
    file = pattern(tmp_path / "p.pattern", 4, rows)
    result = run(
        tmp_path,
        f"""
name: recorded
topology: {star(tmp_path)}
policies: [ecmp]
jobs: {{count: 1, nodes: 4, compute: {{pattern: {file}, pattern_of: iteration, iterations: 5, time_s: 0.1}}}}
{NO_COSTS}""",
    )
    # Rank 0's link carries everything: 1 MB, then 3 MB.
    once = (2 * message(1e6) + message(2e6)) / RATE
    assert result.jobs[0].compute_s == pytest.approx(5 * (0.1 + once), rel=1e-6)


def test_a_pattern_of_a_whole_run_is_cut_into_iterations(tmp_path: Path) -> None:
    rows = [(0, 0, 1, 10, 10_000_000), (1, 0, 2, 10, 20_000_000)]
    file = pattern(tmp_path / "p.pattern", 3, rows)
    text = f"""
name: recorded
topology: {star(tmp_path)}
policies: [ecmp]
jobs: {{count: 1, nodes: 4, compute: {{pattern: {file}, iterations: N}}}}
{NO_COSTS}"""
    once = (10 * message(1e6) + 10 * message(2e6)) / RATE
    for count in ("1", "7"):
        result = run(tmp_path, text.replace("N}", count + "}"), count)
        assert result.jobs[0].compute_s == pytest.approx(once, rel=1e-6)


def test_a_pattern_of_more_ranks_than_processes_is_refused(tmp_path: Path, waystage: Waystage) -> None:
    file = pattern(tmp_path / "p.pattern", 5, [(0, 0, 4, 1, 1000)])
    (tmp_path / "case.yaml").write_text(
        f"name: big\ntopology: paper\npolicies: [ecmp]\njobs: {{count: 1, nodes: 2, compute: {{pattern: {file}, processes_per_node: 2}}}}\n"
    )
    ran = waystage("run", "case.yaml", "--on", "sim", "--out", "out")
    assert ran.code == 3 and "5 ranks" in ran.err and "4 processes" in ran.err
    (tmp_path / "p.pattern").write_bytes(b"no pattern")
    ran = waystage("run", "case.yaml", "--on", "sim", "--out", "out2")
    assert ran.code == 3 and "p.pattern" in ran.err and "Traceback" not in ran.err
    (tmp_path / "p.pattern").unlink()
    ran = waystage("run", "case.yaml", "--on", "sim", "--out", "out3")
    assert ran.code == 3 and "jobs.compute.pattern" in ran.err


def test_a_program_without_a_pattern_cannot_be_simulated(tmp_path: Path, waystage: Waystage) -> None:
    program = tmp_path / "solver"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (tmp_path / "case.yaml").write_text(
        "name: own\ntopology: paper\npolicies: [ecmp]\njobs: {count: 1, nodes: 2, compute: {program: ./solver}}\n"
    )
    ran = waystage("run", "case.yaml", "--on", "sim", "--out", "out")
    assert ran.code == 3 and "compute.pattern" in ran.err


# -- what goes wrong -------------------------------------------------------------------------------------------


def test_a_part_that_takes_too_long_fails_its_job_alone(tmp_path: Path) -> None:
    text = f"""
name: limits
topology: {star(tmp_path)}
policies: [ecmp]
jobs:
  count: 3
  nodes: 1
  concurrent: 1
  compute: {{program: none, iterations: 1, time_s: 1}}
  mixes:
    - {{name: ok, share: 2, stage_in: {{bytes: 1 MB}}}}
    - {{name: late, share: 1, stage_in: {{bytes: 50 MB}}}}
limits: {{staging_s: 2, on_failure: HOW}}
{NO_COSTS}"""
    result = run(tmp_path, text.replace("HOW", "continue"), "continue")
    late = [job for job in result.jobs if job.status == "failed"]
    assert [job.kind for job in late] == ["late"] and len(result.jobs) == 3
    assert "did not end within 2 s" in late[0].cause and late[0].stage_in_s == pytest.approx(2)
    result = run(tmp_path, text.replace("HOW", "stop"), "stop")
    assert [job.status for job in result.jobs][-1] == "failed"
    assert len(result.jobs) == 3 or any("ended early" in note for note in result.notes)


POLICIES = """
from waystage.events import AssignPaths, JobStarted, PathPlan, PathsChanged

class Raises:
    name = "raises"
    def __call__(self, event, state):
        if isinstance(event, JobStarted):
            raise RuntimeError("no idea what to do")
        return ()

class Loops:
    name = "loops"
    def __call__(self, event, state):
        while isinstance(event, JobStarted):
            try:
                pass
            except Exception:
                pass
        return ()

class Wordy:
    name = "wordy"
    def __call__(self, event, state):
        return ["later"]

class Restless:
    name = "restless"
    def __call__(self, event, state):
        seed = state.requested.seed + 1 if state.requested else 0
        return [AssignPaths(plan=PathPlan(seed=seed))] if isinstance(event, (JobStarted, PathsChanged)) else ()

class Nowhere:
    name = "nowhere"
    def __call__(self, event, state):
        if isinstance(event, JobStarted):
            return [AssignPaths(plan=PathPlan(style="per-pair"))]
        return ()
"""


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ("Raises", "failed with RuntimeError: no idea what to do (on JobStarted)"),
        ("Wordy", "it returned a str, which is no action"),
        ("Restless", "answers each change of paths with another one"),
    ],
)
def test_a_policy_that_breaks_is_named(tmp_path: Path, waystage: Waystage, policy: str, says: str) -> None:
    (tmp_path / "mine.py").write_text(POLICIES)
    (tmp_path / "case.yaml").write_text(
        f"name: broken\ntopology: paper\npolicies: [ecmp, 'mine:{policy}']\n"
        "jobs: {count: 1, nodes: 2, compute: {iterations: 5000}}\n"
    )
    ran = waystage("run", "case.yaml", "--on", "sim", "--out", "out", PYTHONPATH=str(tmp_path))
    assert ran.code == 1 and f"policy mine:{policy}" in ran.err and says in ran.err
    assert "Traceback" not in ran.err
    kept = results.load(tmp_path / "out")  # what had finished is kept
    assert [job.policy for job in kept.jobs] == ["ecmp"] and says in kept.failure


def test_a_policy_that_loops_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(POLICIES)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(control, "ANSWER_LIMIT_S", 0.2)
    text = "name: broken\ntopology: paper\npolicies: ['mine:Loops']\njobs: {count: 1, nodes: 2}\n"
    with pytest.raises(WorldError, match="mine:Loops gave no answer within"):
        run(tmp_path, text)


def test_without_a_path_a_job_fails_at_its_limit_and_the_note_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(POLICIES)
    monkeypatch.syspath_prepend(tmp_path)
    text = (
        "name: cut\ntopology: paper\npolicies: ['mine:Nowhere']\nlimits: {compute_s: 5}\n"
        "jobs: {count: 1, nodes: 2, compute: {program: ring}}\n"
    )
    result = run(tmp_path, text)
    assert result.jobs[0].status == "failed" and result.jobs[0].compute_s == pytest.approx(5)
    assert any("no path from" in note for note in result.notes)


def test_a_topology_of_two_components_is_refused(tmp_path: Path, waystage: Waystage) -> None:
    alone = (
        '<node id="s2"><data key="t">switch</data></node><node id="z"><data key="t">host</data></node>'
        '<edge source="z" target="s2"><data key="c">100</data></edge>'
    )
    name = star(tmp_path, alone)
    (tmp_path / "case.yaml").write_text(
        f"name: two\ntopology: {name}\npolicies: [ecmp]\njobs: {{count: 1, nodes: 2}}\n"
    )
    ran = waystage("run", "case.yaml", "--on", "sim")
    assert ran.code == 3 and "cannot be reached" in ran.err and "case.yaml:2: topology" in ran.err


def test_ctrl_c_ends_a_long_run_and_keeps_what_was_done(tmp_path: Path) -> None:
    (tmp_path / "long.yaml").write_text(
        "name: long\ntopology: paper\npolicies: [ecmp]\nsets: 2\nlimits: {compute_s: 1e9}\n"
        "jobs: {count: 1, nodes: 6, compute: {iterations: 100000000, message: 1}}\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "waystage", "run", "long.yaml", "--on", "sim", "--out", "out"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    assert process.stderr is not None
    process.stderr.readline()  # the first word of progress: it runs
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=90)
    assert process.returncode == 130, said
    kept = msgspec.json.decode((tmp_path / "out" / "result.json").read_bytes())
    assert kept["interrupted"] is True
