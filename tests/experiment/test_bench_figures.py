"""What the benchmarks promise, computed from records whose answer is known."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

from harness import bench_module
from waystage.bench import BenchOptions, Figures, Stopped, TurnFailed, take_turns
from waystage.bench.turns import Measure, Name, label
from waystage.experiment import results
from waystage.experiment.results import JobRecord, RunResult
from waystage.experiment.schema import Experiment, Jobs, PolicyChoice

POLICIES = ("ecmp", "link-separation", "demand-separation")


def made_up(policies: tuple[str, ...], times: dict[str, tuple[float, float]], sets: int = 4) -> RunResult:
    """`times`: policy -> (staging, computation) of every job."""
    experiment = Experiment(
        name="made-up",
        topology="paper",
        policies=tuple(PolicyChoice(name=p) for p in policies),
        jobs=Jobs(count=1, nodes=3),
        sets=sets,
    )
    result = RunResult(name="made-up", world="lab", experiment=experiment)
    for number in range(sets):
        for policy in policies:
            staging, compute = times[policy]
            result.jobs.append(
                JobRecord(
                    policy=policy,
                    set=number,
                    index=0,
                    job_id=f"{policy}-{number}",
                    ended_at_s=staging + compute,
                    stage_in_s=staging / 2,
                    stage_out_s=staging / 2,
                    compute_s=compute,
                )
            )
    return result


def test_collision_gives_the_reductions_and_the_share_of_sets() -> None:
    result = made_up(POLICIES[:2], {"ecmp": (2.0, 8.0), "link-separation": (1.5, 7.5)})
    answer = bench_module("collision").figures(result)
    assert set(answer["figures"]) == {
        "staging_reduction_pct",
        "computation_reduction_pct",
        "job_reduction_pct",
        "improved_share",
    }
    assert math.isclose(answer["figures"]["staging_reduction_pct"], 25.0)
    assert math.isclose(answer["figures"]["computation_reduction_pct"], 6.25)
    assert math.isclose(answer["figures"]["job_reduction_pct"], 10.0)
    assert answer["figures"]["improved_share"] == 1.0
    assert answer["details"]["sets"] == 4


def test_collision_without_a_whole_set_fails_and_says_so() -> None:
    result = made_up(POLICIES[:2], {"ecmp": (2.0, 8.0), "link-separation": (1.5, 7.5)})
    result.jobs = [job for job in result.jobs if job.policy == "ecmp"]
    with pytest.raises(RuntimeError, match="no set is complete"):
        bench_module("collision").figures(result)


@pytest.mark.parametrize("sets", [0, 3])
def test_collision_that_is_interrupted_gives_the_whole_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sets: int
) -> None:
    collision = bench_module("collision")

    class Interrupted:
        """A lab in which Ctrl-C ends the set after `sets`."""

        def __init__(self, begun: object) -> None:
            pass

        def run(self, experiment: Experiment, out: Path, progress: object) -> None:
            made = made_up(POLICIES[:2], {"ecmp": (2.0, 8.0), "link-separation": (1.5, 7.5)}, sets=sets + 1)
            results.save(out, msgspec.structs.replace(made, jobs=made.jobs[:-1]), [], [])
            raise KeyboardInterrupt

    monkeypatch.setattr(collision, "LabWorld", Interrupted)
    options = BenchOptions(out=tmp_path)
    if not sets:
        with pytest.raises(Stopped, match="Ctrl-C"):
            collision.run(options)
        return
    answer = collision.run(options)
    assert (answer["details"]["sets"], options.limit.stopped) == (sets, "Ctrl-C")


def test_mixes_compare_with_the_better_of_the_others() -> None:
    times = {"ecmp": (2.0, 8.0), "link-separation": (1.0, 7.0), "demand-separation": (1.0, 6.2)}
    mix = bench_module("mixes").compare(made_up(POLICIES, times))
    assert mix["better_other"] == "link-separation"
    assert math.isclose(mix["ratio"], 0.9)
    assert mix["interval_95"] == pytest.approx([0.9, 0.9])


@pytest.mark.parametrize(
    ("wrong_of", "figures", "missing"),
    [
        ((), {"small_x_best": 0.5, "overhead_pct": 25.0}, set()),
        (("ompio",), {"small_x_best": 2.0, "overhead_pct": 0.0}, set()),
        (("ompio", "romio321", "independent"), {}, {"small_x_best", "overhead_pct"}),
    ],
)
def test_a_peer_with_wrong_bytes_is_no_peer_of_collective_cost(
    wrong_of: tuple[str, ...], figures: dict[str, float], missing: set[str]
) -> None:
    """Of three turns, OMPIO is the fastest in each and has wrong bytes in one."""
    times = {"waystage": 100.0, "ompio": 50.0, "romio321": 200.0}
    write_s = {"waystage": 1.0, "ompio": 0.8, "romio321": 1.0, "independent": 2.0}

    def contestant(way: str, case: str) -> Measure:
        def measure(turn: int) -> Figures:
            wrong = 8 if turn == 1 and way in wrong_of else 0
            return {
                "contiguous": {"write_s": write_s[way], "wrong": wrong},
                "small": {"small_us": times.get(way), "wrong_read": wrong},
                "view": {"view_us": 3.0, "view_kib": 4.0},
                "peak": {"peak_kib": 65536, "write_s": 0.1, "wrong_read": wrong},
            }[case]

        return measure

    names = [(way, "contiguous") for way in write_s] + [(way, "small") for way in times]
    names += [("waystage", "view"), ("waystage", "peak")]
    turns = take_turns(BenchOptions(), {name: contestant(*name) for name in names}, turns=3)
    answer = bench_module("collective_cost")._result(turns, None)
    assert answer["figures"].items() >= figures.items() and not missing & set(answer["figures"])
    assert answer["figures"]["wrong_bytes"] == 0 and answer["figures"]["aggregator_peak_x_buffer"] == 1.0
    expected = {name for name in map(label, names) if name.split(",")[0] in wrong_of}
    assert set(answer["details"]["wrong"]) == expected


@pytest.mark.parametrize("measured", [True, False])
def test_the_storage_alone_is_no_peer_of_collective_and_limits_what_can_be_gained(measured: bool) -> None:
    collective = bench_module("collective")
    write_s = {"waystage": 0.3, "ompio": 0.9, "romio321": 1.0, "mpich": 1.2}
    write_s |= {"independent": 0.45, "alltoallv": 0.8}

    def contestant(way: str) -> Measure:
        return lambda turn: {"write_s": write_s[way], "read_s": 1.0, "wrong_file": 0, "wrong_read": 0}

    def floor(turn: int) -> Figures:
        if not measured:
            raise TurnFailed("no space")
        return {"write_s": 0.25, "read_s": None, "wrong_file": 0, "wrong_read": 0}

    contestants: dict[Name, Measure] = {(way, "subarray"): contestant(way) for way in write_s}
    contestants[collective.FLOOR] = floor
    turns = take_turns(BenchOptions(), contestants, turns=3, case=lambda name: name[1])
    turns.missing += [case for case in collective.RAW + collective.KERNELS if case != "subarray"]
    answer = collective._result(turns)
    assert answer["details"]["x_best"] == {"subarray write": 1.5, "subarray read": 1.0}
    assert answer["figures"]["subarray_x_romio"] == 3.33
    assert answer["figures"].get("subarray_x_floor") == (0.833 if measured else None)
    floors = {"subarray write": 0.25, "subarray_x_romio": 4.0}
    assert answer["details"].get("floor") == (floors if measured else None)
