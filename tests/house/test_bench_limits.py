"""Benchmarks of many cases within a time limit: what each still measures, and what it names as missing.

Contestants are stood in for: each takes its seconds of a clock that the test moves on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from harness import bench_module
from waystage.bench import BenchOptions, Limit, Stopped, benchmarks, durations, take_turns
from waystage.cli.bench import USUAL_LIMIT_S

RATE_BPS = 1e8
FIGURES = {
    "rate_bps": 5e7,
    "steady_bps": 5e7,
    "duplicates_pct": 0.0,
    "wrong_share": 0.0,
    "limited_by": "path",
    "share_pct": 50.0,
    "seconds": 2.0,
    "ns": 5.0,
}


class Clock:
    """The clock of time limits; `measured` are the contestants' calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.measured = 0
        monkeypatch.setattr("waystage.bench.options.time.monotonic", lambda: self.now)

    def taking(self, seconds: float, figures: Any = FIGURES) -> Callable[..., Any]:
        """A stand-in for a measurement."""

        def measure(*arguments: object, **more: object) -> Any:
            self.now += seconds
            self.measured += 1
            return figures

        return measure

    def options(self, seconds: float | None = USUAL_LIMIT_S, **more: Any) -> BenchOptions:
        return BenchOptions(limit=Limit(seconds, _began=0.0), **more)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def stood_in(monkeypatch: pytest.MonkeyPatch, name: str, what: Mapping[str, Any]) -> ModuleType:
    module = bench_module(name)
    for key, value in what.items():
        monkeypatch.setattr(module, key, value)
    return module


def turns_of(details: Mapping[str, Any]) -> dict[str, int]:
    return {name: len(rows) for name, rows in details["runs"].items()}


def wan_loss(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> ModuleType:
    one = clock.taking(15.0)
    made = {"_ours": one, "_stream": one, "_tree": one, "path_rate_bps": lambda: RATE_BPS}
    module = stood_in(monkeypatch, "wan_loss", made | {"installed": lambda name: name})
    monkeypatch.setattr(module.peers, "congestion_controls", lambda: ["cubic", "bbr"])
    monkeypatch.setattr(module.peers, "quic_program", lambda: None)
    monkeypatch.setattr(module.peers, "tree_peers", lambda: ["rsync"])
    return module


def wan_files(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> ModuleType:
    module = stood_in(
        monkeypatch, "wan_files", {"_one": clock.taking(20.0), "path_rate_bps": lambda: RATE_BPS}
    )
    monkeypatch.setattr(module.peers, "tree_peers", lambda: ["rsync"])
    return module


def wan_fairness(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> ModuleType:
    jain, modest = {"jain": 0.99, "wrong_share": 0.0}, {"cost_pct": 1.0, "fill_pct": 90.0, "wrong_share": 0.0}
    made = {"_share": clock.taking(52), "_cubics": clock.taking(52), "_jain": clock.taking(48, jain)}
    return stood_in(monkeypatch, "wan_fairness", made | {"_modest": clock.taking(115, modest)})


def copy(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> ModuleType:
    made = {"_one": clock.taking(10.0), "installed": lambda *words: "", "run_program": lambda words: ""}
    monkeypatch.setattr("os.geteuid", lambda: 0)
    return stood_in(monkeypatch, "copy", made)


CASES: dict[str, tuple[Any, set[str], str, int]] = {
    "wan_loss": (
        wan_loss,
        {"fraction_10pct", "x_cubic_10pct", "x_best_0pct", "worst_fraction_to_5pct", "fraction_20pct"}
        | {"duplicates_pct"},
        "200 ms, 0.1 %",
        60,
    ),
    "wan_files": (wan_files, {"spread_pct", "tiny_fraction"}, "", 60),
    "wan_fairness": (
        wan_fairness,
        {"worst_share_pct", "best_share_pct", "shallow_worst_share_pct", "shallow_best_share_pct", "jain_16"},
        "modest, 1 BDP",
        110,
    ),
    "copy": (
        copy,
        {"small_x_best", "large_x_best", "verified_x_best"}
        | {"small_x_floor", "large_x_floor", "verify_x_floor"},
        "large, cold",
        90,
    ),
}
"""By benchmark: how it is stood in for, its figures within the usual limit, a case then missing, the smallest turn."""


@pytest.mark.parametrize("name", CASES)
def test_a_run_of_the_usual_limit_ends_in_time_with_every_peer_of_its_cases(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, name: str
) -> None:
    make, figures, absent, _ = CASES[name]
    options = clock.options()
    answer = make(monkeypatch, clock).run(options)
    assert clock.now <= USUAL_LIMIT_S and options.limit.stopped == "the time limit of 300 s"
    assert set(answer["figures"]) == figures
    assert (absent in options.limit.missing) == bool(absent)
    assert min(turns_of(answer["details"]).values()) >= 1
    assert clock.measured == sum(turns_of(answer["details"]).values())


@pytest.mark.parametrize("name", CASES)
def test_the_smallest_limit_leaves_one_case_that_is_complete(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, name: str
) -> None:
    make, figures, _, least_s = CASES[name]
    options = clock.options(least_s)
    answer = make(monkeypatch, clock).run(options)
    assert clock.now <= least_s
    assert set(answer["figures"]) < figures and options.limit.missing
    assert set(turns_of(answer["details"]).values()) == {1}


@pytest.mark.parametrize("name", CASES)
def test_a_run_without_a_limit_measures_every_case_in_every_turn(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, name: str
) -> None:
    make, figures, _, _ = CASES[name]
    options = clock.options(None)
    answer = make(monkeypatch, clock).run(options)
    assert set(answer["figures"]) >= figures and not options.limit.missing and not options.limit.stopped
    assert set(turns_of(answer["details"]).values()) == ({5, 3} if name == "copy" else {5})


def test_patterns_of_loss_without_time_are_missing(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    made = {"_ours": clock.taking(12.0), "_tcp": clock.taking(12.0), "installed": lambda name: name}
    module = stood_in(monkeypatch, "wan_patterns", made)
    monkeypatch.setattr(module.peers, "congestion_controls", lambda: ["cubic", "bbr"])
    options = clock.options(100)
    answer = module.run(options)
    assert clock.now == 72 and list(answer["details"]["fractions"]) == list(module.CASES)[:2]
    assert options.limit.missing == list(module.CASES)[2:]


def test_compression_over_a_path_is_missing_where_the_loopback_took_the_time(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    one = clock.taking(6.0, FIGURES | {"bytes_per_s": 1e6})
    module = stood_in(monkeypatch, "wan_compress", {"_over_path": one, "_over_loopback": one})
    monkeypatch.setattr(module, "installed", lambda name: name)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    options = clock.options(60)
    answer = module.run(options)
    kinds = [f"{kind}, {module.LOOPBACK}" for kind in module.KINDS]
    assert answer["figures"] == {"loopback_text_x_plain": 1.0, "random_cost_pct": 0.0}
    who = ("waystage", "waystage --compress", "rsync", "rsync -z")
    assert set(turns_of(answer["details"])) == {f"{each}, {case}" for case in kinds for each in who}
    assert options.limit.missing == [f"{kind}, {module.PATH}" for kind in module.KINDS]


@pytest.mark.parametrize("name", ["allreduce", "bcast"])
def test_the_larger_shape_is_left_out_where_the_smaller_one_took_the_time(clock: Clock, name: str) -> None:
    shapes = bench_module(name).SHAPES
    limit = Limit(100.0, _began=0.0)
    for _, left in limit.shares(shapes, "{} hosts".format):
        for _ in limit.steps(range(3), left):
            clock.now += 60
    assert limit.missing == ["16 hosts"]


def test_the_cells_of_a_broadcast_are_those_of_the_cases_that_were_measured(clock: Clock) -> None:
    bcast = bench_module("bcast")
    contestants = {
        (name, f"8 hosts, {order} {load}"): clock.taking(1.0, {"65536": 2.0 if name == bcast.OURS else 6.0})
        for order, load in bcast.CASES
        for name in bcast.CONTESTANTS
    }
    options = clock.options(25)
    turns = take_turns(options, contestants, turns=3, case=lambda name: name[1])
    rows = bcast._cells(turns, 8)
    assert [(row["order"], row["load"], row["bytes"], row["x_best"], row["x_default"]) for row in rows] == [
        ("cyclic", True, 65536, 3.0, 3.0),
        ("block", True, 65536, 3.0, 3.0),
    ]
    assert options.limit.missing == ["8 hosts, block idle", "8 hosts, cyclic idle"]


def test_an_estimate_is_asked_for_even_where_learning_took_its_half(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    row = {"expected_s": 2.0, "measured_s": 2.0, "least_s": 1.0, "greatest_s": 3.0}
    module = stood_in(monkeypatch, "copy_estimate", {"_copied": clock.taking(20.0, row)})
    monkeypatch.setattr("os.geteuid", lambda: 0)
    answer = module.run(clock.options())
    assert answer["details"]["learnt"] == 7 and len(answer["details"]["copies"]) == 8
    assert answer["figures"]["in_range_pct"] == 100 and clock.now == USUAL_LIMIT_S


def test_a_copy_that_is_asked_for_may_be_interrupted(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    rows = [{"expected_s": 2.0, "measured_s": 2.0, "least_s": 1.0, "greatest_s": 3.0}] * 21

    def copied(folder: Path, tree: object, *, ask: bool) -> dict[str, float]:
        if not rows:
            raise KeyboardInterrupt
        return rows.pop()

    module = stood_in(monkeypatch, "copy_estimate", {"_copied": copied})
    monkeypatch.setattr("os.geteuid", lambda: 0)
    options = clock.options()
    assert len(module.run(options)["details"]["copies"]) == 1 and options.limit.stopped == "Ctrl-C"
    with pytest.raises(Stopped, match="Ctrl-C"):
        module.run(clock.options())


@pytest.mark.parametrize(("seconds", "mixes"), [(300, 3), (60, 1), (130, 2)])
def test_mixes_without_time_are_left_out(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, seconds: float, mixes: int
) -> None:
    """A set of a mix takes 55 s here."""
    sets: dict[str, int] = {}

    class Lab:
        def __init__(self, begun: Any) -> None:
            self.begun = begun

        def run(self, experiment: Any, folder: Path, progress: object) -> Any:
            for _ in self.begun(range(experiment.sets)):
                clock.now += 55
                sets[experiment.name] = sets.get(experiment.name, 0) + 1

            class Result:
                valid, invalid = True, ()

            return Result

    compared = {"ratio": 0.9, "job_s": {"ecmp": 1.0, "link-separation": 1.0}}
    module = stood_in(monkeypatch, "mixes", {"LabWorld": Lab, "compare": lambda result: compared})
    options = clock.options(seconds)
    answer = module.run(options)
    assert list(sets) == list(module.MIXES[:mixes]) and min(sets.values()) >= 1
    assert list(answer["details"]["mixes"]) == list(sets) and clock.now <= seconds
    assert options.limit.missing == list(module.MIXES[mixes:])


def test_the_profiler_counts_missing_bytes_before_costs_take_the_time(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    made = {"build": lambda **more: Path("library"), "_disagreement": lambda pattern: 0}
    module = stood_in(monkeypatch, "profiler", made)

    class Seen:
        kinds = ()

        @staticmethod
        def read(path: Path) -> Any:
            return Seen

    monkeypatch.setattr(module, "Pattern", Seen)
    monkeypatch.setattr(module._Bench, "_compile", lambda self, program: None)
    monkeypatch.setattr(module._Bench, "_run", clock.taking(3.0, "5.0"))
    options = clock.options()
    answer = module.run(options)
    assert clock.now <= USUAL_LIMIT_S and len(answer["details"]["suite"]) == len(module.SUITE)
    assert min(turns_of(answer["details"]).values()) == 3 and answer["figures"]["missing_bytes"] == 0
    clock.now = 0.0
    options = clock.options(40)
    answer = module.run(options)
    assert len(answer["details"]["suite"]) == 6 and len(options.limit.missing) == 4 + 8
    assert answer["figures"].keys() == {"ns_per_message", "bandwidth_loss_pct", "missing_bytes"}
    assert set(answer["details"]["loss_pct"]["tcp"]) == {"1"} and clock.now <= 40


@pytest.mark.parametrize(
    ("seconds", "measured", "missing"),
    [(300, 4, []), (100, 1, ["mix-balanced in the lab", "mix-staging in the lab"]), (80, 0, ["the lab"])],
)
def test_foresee_runs_sets_of_as_many_mixes_in_the_lab_as_there_is_time_for(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, seconds: float, measured: int, missing: list[str]
) -> None:
    """A simulated kind takes 4 s here, a set in the lab 65 s."""
    sets: list[str] = []

    class Lab:
        def run(self, experiment: Any, out: Path, progress: object) -> Any:
            clock.now += 65
            sets.append(experiment.name)

            class Result:
                invalid = ()

            return Result

    def simulated(name: str, folder: Path, options: BenchOptions, left: int) -> list[int]:
        clock.now += 4
        module._timed_foresee.WALL_S.append(0.01)
        module._timed_foresee.CPU_S.append(0.01)
        for _ in options.limit.steps(range(1), left):
            pass
        return [0]

    made: dict[str, Any] = {"_simulated": simulated, "LabWorld": Lab, "_kept": lambda out, experiment: None}
    made |= {"_times": lambda name, results: {"foresee": 1.0, "ecmp": 2.0} if results else {}}
    module = stood_in(monkeypatch, "foresee", made | {"_complete": lambda results: results})
    monkeypatch.setattr("os.geteuid", lambda: 0)
    options = clock.options(seconds)
    answer = module.run(options)
    assert len(sets) == measured and sets == [*module.LAB_CASES, "mix-communication"][:measured]
    assert clock.now <= seconds
    assert ("lab_worst_x_best_fixed" in answer["figures"]) == bool(measured)
    assert [name for name in options.limit.missing if "lab" in name] == missing


@pytest.mark.parametrize(
    ("spent_s", "measured"), [(0, ["cg", "hpcc", "lammps"]), (150, ["cg"]), (295, ["cg"])]
)
def test_real_programs_run_where_their_time_is_left(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, tmp_path: Path, spent_s: float, measured: list[str]
) -> None:
    """HPC Challenge says 180 s, which comes first; what follows it has no time either."""

    class Lab:
        run = staticmethod(clock.taking(10.0, "cg"))

    class Sim:
        run = staticmethod(clock.taking(0.0, None))

    made = {"LabWorld": Lab, "SimWorld": Sim, "_compared": lambda folder, name: name}
    made |= {"_measure_application": clock.taking(60.0, "real")}
    module = stood_in(monkeypatch, "sim_accuracy", made)
    programs = {
        "hpcc": module.Application(4, tmp_path, 180.0),
        "lammps": module.Application(8, tmp_path, 60.0),
    }
    monkeypatch.setattr(module, "_applications", lambda folder: programs.items())
    options = clock.options()
    clock.now = spent_s
    found, skipped, runs = module.compare_links(tmp_path, options)
    assert list(found) == measured and len(runs) == len(measured)
    assert set(skipped) == {"cg", "hpcc", "lammps"} - set(measured)
    assert options.limit.missing == [f"links under {name}" for name in skipped]


def test_a_site_with_slurm_is_left_out_where_it_has_no_time(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    counts = {"lost_jobs": 0, "wrong_bytes": 0, "stuck": 0}
    under_slurm = clock.taking(100.0, counts)
    made = {"_alone": clock.taking(30.0, counts), "slurm_kills": under_slurm, "available": lambda: True}
    module = stood_in(monkeypatch, "staging_crash", made)
    options = clock.options(125)
    assert module.run(options)["details"]["slurm"] == counts and options.limit.missing == []
    clock.now = 0.0
    options = clock.options(110)
    assert module.run(options)["details"]["slurm"] is None
    assert options.limit.missing == ["kills under Slurm"]


def test_kills_leave_time_for_the_jobs_that_are_left(clock: Clock) -> None:
    limit = Limit(100.0, _began=0.0)
    for _ in limit.steps(range(99), 1, reserve_s=40.0):
        clock.now += 7
    assert clock.now == 56


def test_smoke_runs_say_that_they_take_half_an_hour_at_most_in_all() -> None:
    quick_s = {name: (durations(name) or (0, 0))[1] for name in benchmarks()}
    assert sum(quick_s.values()) <= 1800, sorted(quick_s.items(), key=lambda each: -each[1])


def test_a_smoke_run_measures_its_cases_and_names_the_others(clock: Clock) -> None:
    one = clock.taking(1.0)
    contestants = {(who, case): one for who in ("ours", "peer") for case in ("first", "second")}

    def cases(options: BenchOptions) -> list[str]:
        turns = take_turns(options, contestants, turns=2, case=lambda name: name[1], quick_cases=("second",))
        return list(dict.fromkeys(name[1] for name in turns.names))

    quick, full = clock.options(None, quick=True), clock.options(None)
    assert cases(quick) == ["second"] and quick.limit.missing == ["first"] and clock.measured == 2
    assert cases(full) == ["first", "second"] and full.limit.missing == []
