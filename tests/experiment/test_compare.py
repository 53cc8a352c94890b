"""`waystage compare`: errors by job and link, what is left out, and what cannot be compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import Waystage
from waystage.experiment import results
from waystage.experiment.compare import CompareError, compare
from waystage.experiment.results import IoRecord, JobRecord, RunResult
from waystage.experiment.schema import Experiment, Jobs, PolicyChoice
from waystage.experiment.timelines import PortSample

POLICIES = ("ecmp", "link-separation")


def run(world: str, times: dict[str, list[float]], *, seed: int = 0, failed: str = "") -> RunResult:
    """One job a set; `times` are its seconds by policy and set."""
    choices = tuple(PolicyChoice(name=name) for name in POLICIES)
    experiment = Experiment(
        name="tiny", topology="paper", policies=choices, jobs=Jobs(count=1, nodes=2), seed=seed
    )
    result = RunResult(name="tiny", world=world, experiment=experiment)
    for policy, seconds in times.items():
        for number, took in enumerate(seconds):
            status = "failed" if f"{policy}/{number}" == failed else "done"
            result.jobs.append(
                JobRecord(
                    policy=policy,
                    set=number,
                    index=0,
                    job_id=f"{policy}-{number}",
                    ended_at_s=took,
                    compute_s=took,
                    status=status,
                )
            )
    return result


def sample(policy: str, node: str, count: int, traffic: str = "all", number: int = 0) -> PortSample:
    return PortSample(
        policy=policy,
        set=number,
        at_s=1,
        interval_s=1,
        node=node,
        port=1,
        peer="edge1",
        traffic=traffic,
        bytes=count,
    )


def test_errors_are_relative_to_what_was_measured_and_worst_first() -> None:
    ours = run("sim", {"ecmp": [11.0, 10.0], "link-separation": [9.0, 8.0]})
    theirs = run("lab", {"ecmp": [10.0, 10.0], "link-separation": [8.0, 10.0]})
    found = compare(ours, theirs, [], [])
    jobs = {(e.policy, e.set): e.error_pct for e in found.jobs if e.quantity == "job_s"}
    assert jobs[("ecmp", 0)] == pytest.approx(10) and jobs[("link-separation", 1)] == pytest.approx(-20)
    assert (found.jobs[0].policy, found.jobs[0].set) == ("link-separation", 1)
    assert found.max_job_error_pct == pytest.approx(20)
    assert found.max_mean_error_pct == pytest.approx(
        5.5555, rel=1e-3
    )  # 8.5 for 9 s; ecmp: 10.5 for 10 s is 5
    assert found.same_order and found.order_measured == ["link-separation", "ecmp"]


def test_collective_operations_are_compared_by_their_mean_time_and_wait() -> None:
    ours, theirs = run("sim", {"ecmp": [10.0]}), run("lab", {"ecmp": [10.0]})
    for result, times in ((ours, (1.0, 2.0)), (theirs, (1.0, 3.0))):
        result.io += [
            IoRecord(
                policy="ecmp", set=0, index=0, job_id="j", op=op, requested_at_s=op, waited_s=0.5, took_s=took
            )
            for op, took in enumerate(times, 1)
        ]
    found = compare(ours, theirs, [], [])
    assert found.max_operation_error_pct == pytest.approx(100 * 0.5 / 2.5)
    assert {e.quantity: e.error_pct for e in found.means}["waited_s"] == 0


def test_another_order_of_policies_is_seen() -> None:
    ours = run("sim", {"ecmp": [9.0], "link-separation": [10.0]})
    theirs = run("lab", {"ecmp": [10.0], "link-separation": [9.0]})
    assert not compare(ours, theirs, [], []).same_order


def test_policies_predicted_to_take_the_same_time_may_be_measured_either_way() -> None:
    ours = run("sim", {"demand-separation": [9.0], "ecmp": [10.0], "link-separation": [9.0 + 1e-12]})
    theirs = run("lab", {"demand-separation": [9.1], "ecmp": [10.0], "link-separation": [8.9]})
    assert compare(ours, theirs, [], []).same_order
    slowest = run("lab", {"demand-separation": [9.1], "ecmp": [9.0], "link-separation": [8.9]})
    assert not compare(ours, slowest, [], []).same_order


def test_links_are_summed_over_common_sets_and_small_ones_set_apart() -> None:
    times = {"ecmp": [10.0, 10.0]}
    ours = [sample("ecmp", "core1", 980), sample("ecmp", "core2", 9), sample("ecmp", "core1", 5, number=7)]
    theirs = [sample("ecmp", "core1", 500), sample("ecmp", "core1", 500), sample("ecmp", "core2", 3)]
    found = compare(run("sim", times), run("lab", times), ours, theirs)
    assert [(e.node, e.measured_bytes, e.small) for e in found.links] == [
        ("core1", 1000, False),
        ("core2", 3, True),
    ]
    assert found.max_link_error_pct == pytest.approx(2)


def test_traffic_on_a_link_that_measured_none_is_no_small_error() -> None:
    times = {"ecmp": [10.0]}
    ours = [sample("ecmp", "core1", 500), sample("ecmp", "core2", 500)]
    found = compare(run("sim", times), run("lab", times), ours, [sample("ecmp", "core1", 1000)])
    assert found.max_link_error_pct == float("inf")


def test_sets_with_a_failed_job_are_left_out_and_differences_are_named() -> None:
    times = {"ecmp": [10.0, 10.0]}
    found = compare(run("sim", times, seed=1), run("lab", times, failed="ecmp/1"), [], [])
    assert found.jobs_compared == 1
    assert any("differ in seed" in note for note in found.notes)
    assert any("1 sets are left out" in note for note in found.notes)
    with pytest.raises(CompareError, match="no set ran whole"):
        compare(run("sim", {"ecmp": [1.0]}), run("lab", {"ecmp": [1.0]}, failed="ecmp/0"), [], [])


def test_the_command_prints_both_and_refuses_what_is_no_run(waystage: Waystage, tmp_path: Path) -> None:
    times = {"ecmp": [10.0], "link-separation": [8.0]}
    results.save(tmp_path / "a", run("sim", times), [sample("ecmp", "core1", 990)], [])
    results.save(tmp_path / "b", run("lab", times), [sample("ecmp", "core1", 1000)], [])
    ran = waystage("compare", "a", "b")
    assert ran.code == 0 and "links 1.0 %" in ran.out and "link-separation < ecmp; the same" in ran.out
    ran = waystage("compare", "a", "b", "--json")
    assert ran.json["max_link_error_pct"] == pytest.approx(1) and ran.json["same_order"] is True
    assert len(ran.json["links"]) == 1 and len(ran.json["means"]) == 4
    ran = waystage("compare", "a", "nowhere")
    assert ran.code == 3 and "nowhere" in ran.err


def test_runs_of_three_worlds_stand_side_by_side_with_errors_against_the_last(
    waystage: Waystage, tmp_path: Path
) -> None:
    for folder, world, seconds in (("a", "sim", 8.0), ("b", "lab", 9.0), ("c", "cluster", 10.0)):
        found = run(world, {"ecmp": [seconds], "link-separation": [seconds - 1]})
        results.save(tmp_path / folder, found, [sample("ecmp", "core1", 990)], [])
    ran = waystage("compare", "a", "b", "c")
    assert ran.code == 0 and "errors against cluster" in ran.out
    assert "cluster: link-separation < ecmp" in ran.out
    ran = waystage("compare", "a", "b", "c", "--json")
    row = next(row for row in ran.json["means"] if (row["policy"], row["quantity"]) == ("ecmp", "job_s"))
    assert (row["sim"], row["lab"], row["cluster"]) == (8.0, 9.0, 10.0)
    assert (row["sim_error_pct"], row["lab_error_pct"]) == (pytest.approx(-20), pytest.approx(-10))
    assert waystage("compare", "a", "b", "nowhere").code == 3
    (tmp_path / "trees/x").mkdir(parents=True)
    assert waystage("compare", "a", "b", "trees").code == 3  # no run


def test_a_simulated_run_compares_with_itself(waystage: Waystage, repository: Path) -> None:
    file = str(repository / "experiments" / "links-cg.yaml")
    assert waystage("run", file, "--on", "sim", "--out", "a", "--quiet").code == 0
    ran = waystage("compare", "a", "a", "--json")
    assert ran.code == 0 and ran.json["max_link_error_pct"] == 0 and ran.json["max_job_error_pct"] == 0
