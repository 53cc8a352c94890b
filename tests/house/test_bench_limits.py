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
from waystage.bench import BenchOptions, Limit, Stopped
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
    from waystage.bench import take_turns

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
