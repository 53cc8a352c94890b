"""Turns of a benchmark: their order, what is dropped, and what is derived from the rest."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import pytest

from harness import bench_module
from waystage.bench import BenchError, BenchOptions, Limit, Stopped, TurnFailed, take_turns
from waystage.bench.turns import order


def late(figures: Mapping[str, Any]) -> str | None:
    return "the path was late" if figures.get("late") else None


def test_each_contestant_comes_first_equally_often() -> None:
    orders = [tuple(order(["a", "b", "c"], turn)) for turn in range(6)]
    assert set(orders) == set(itertools.permutations("abc"))
    assert [order(["a", "b"], turn)[0] for turn in range(4)] == ["a", "b", "b", "a"]


def test_warm_up_turns_do_not_count() -> None:
    turns = take_turns(BenchOptions(), {"ours": lambda turn: {"s": float(turn)}}, turns=3, warm_up=2)
    assert turns.values("ours", "s") == [0, 1, 2]
    assert [row["s"] for row in turns.warm_up["ours"]] == [-2, -1]


@pytest.mark.parametrize(
    ("options", "count"),
    [(BenchOptions(), 5), (BenchOptions(quick=True), 2), (BenchOptions(quick=True, repetitions=9), 4)],
)
def test_the_options_decide_how_many_turns(options: BenchOptions, count: int) -> None:
    turns = take_turns(
        options, {"ours": lambda turn: {"s": 1.0}}, turns=5, quick=2, at_most=4 if count == 4 else None
    )
    assert turns.count == count == len(turns.values("ours", "s"))


def test_an_invalid_measurement_is_dropped_and_named() -> None:
    measured = {
        "ours": lambda turn: {"s": 1.0 if turn else 100.0, "late": not turn},
        "peer": lambda turn: {"s": 2.0},
    }
    turns = take_turns(BenchOptions(), measured, turns=3, invalid=late)
    assert turns.median("ours", "s") == 1 and turns.ratio("peer", "ours", "s") == 2
    assert turns.paired("ours", "peer", "s") == [(1, 2), (1, 2)]
    details = turns.details()
    assert details["valid"] is True and details["dropped"] == ["ours, turn 1: the path was late"]
    assert details["medians"]["ours"]["s"]["count"] == 2 and len(details["runs"]["ours"]) == 3


def test_where_no_measurement_is_valid_all_count_and_the_result_is_invalid() -> None:
    turns = take_turns(BenchOptions(), {"ours": lambda turn: {"s": 3.0, "late": True}}, turns=2, invalid=late)
    assert turns.median("ours", "s") == 3 and turns.details()["valid"] is False


def test_a_machine_without_idle_time_makes_a_measurement_invalid() -> None:
    turns = take_turns(BenchOptions(), {"ours": lambda turn: {"s": 1.0}}, turns=1, least_idle_pct=100.1)
    assert not turns.valid and "idle" in turns.dropped()[0]


def test_a_contestant_that_fails_is_left_out() -> None:
    def peer(turn: int) -> dict[str, float]:
        raise TurnFailed("connection reset")

    turns = take_turns(BenchOptions(), {"ours": lambda turn: {"s": 1.0}, ("quic", "10 ms"): peer}, turns=1)
    assert turns.medians("s") == {"ours": 1.0}
    assert turns.dropped() == ["quic, 10 ms, turn 1: connection reset"]
    with pytest.raises(BenchError, match="connection reset"):
        turns.median(("quic", "10 ms"), "s")


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock of time limits; a test moves it on."""
    clock = [0.0]
    monkeypatch.setattr("waystage.bench.options.time.monotonic", lambda: clock[0])
    return clock


PAIRS = [(who, case) for case in ("10 ms", "50 ms", "200 ms") for who in ("ours", "tcp")]


def limited(seconds: float, now: list[float], each_s: float = 5.0) -> tuple[BenchOptions, dict[Any, Any]]:
    """A run of three cases with two contestants each, which take `each_s`; every value is its turn."""

    def measure(turn: int) -> dict[str, float]:
        now[0] += each_s
        return {"s": float(turn)}

    return BenchOptions(limit=Limit(seconds, _began=0.0)), dict.fromkeys(PAIRS, measure)


@pytest.mark.parametrize(
    ("seconds", "turns_of", "missing"),
    [
        (9, [1, 0, 0], ["50 ms", "200 ms"]),
        (25, [1, 1, 0], ["200 ms"]),
        (60, [2, 2, 2], []),
        (45, [1, 1, 2], []),
    ],
)
def test_a_limit_ends_a_turn_between_cases_with_every_peer_of_a_case_measured_as_often(
    now: list[float], seconds: float, turns_of: list[int], missing: list[str]
) -> None:
    options, contestants = limited(seconds, now)
    turns = take_turns(options, contestants, turns=2, case=lambda name: name[1])
    # In the second turn the cases come in the reverse order.
    assert [len(turns.rows(("ours", case))) for case in ("10 ms", "50 ms", "200 ms")] == turns_of
    assert [len(turns.rows(("tcp", case))) for case in ("10 ms", "50 ms", "200 ms")] == turns_of
    assert turns.missing == options.limit.missing == missing
    assert now[0] <= max(seconds, 10) and turns.valid
    assert set(turns.medians("s")) == {name for name in PAIRS if name[1] not in missing}
    assert len(turns.details()["runs"]) == 2 * sum(map(bool, turns_of))


def test_ctrl_c_in_a_case_leaves_the_cases_before_it(now: list[float]) -> None:
    options, contestants = limited(1e9, now)

    def interrupted(turn: int) -> dict[str, float]:
        raise KeyboardInterrupt

    turns = take_turns(
        options, contestants | {("tcp", "50 ms"): interrupted}, turns=2, case=lambda name: name[1]
    )
    assert turns.names == PAIRS[:2] and turns.missing == ["50 ms", "200 ms"]
    assert options.limit.stopped == "Ctrl-C" and list(options.limit.steps(range(3), parts=1)) == []


def test_a_run_whose_first_case_is_interrupted_has_nothing(now: list[float]) -> None:
    def interrupted(turn: int) -> dict[str, float]:
        raise KeyboardInterrupt

    with pytest.raises(Stopped, match="Ctrl-C"):
        take_turns(BenchOptions(), dict.fromkeys(PAIRS, interrupted), turns=2, case=lambda name: name[1])


def test_cases_may_have_fewer_turns(now: list[float]) -> None:
    options, contestants = limited(1e9, now)
    turns = take_turns(options, contestants, turns=3, at_most={"50 ms": 1}, case=lambda name: name[1])
    assert [len(turns.rows(("ours", case))) for case in ("10 ms", "50 ms", "200 ms")] == [3, 1, 3]
    assert turns.count == 3 and turns.missing == []
    assert turns.details()["turns_by_case"] == {"10 ms": 3, "50 ms": 1, "200 ms": 3}


def test_a_case_with_fewer_contestants_is_taken_to_be_shorter(now: list[float]) -> None:
    options, contestants = limited(26, now)
    del contestants["tcp", "200 ms"]
    turns = take_turns(options, contestants, turns=1, case=lambda name: name[1])
    assert turns.missing == [] and now[0] == 25


def test_steps_may_leave_time_and_name_those_left_out(now: list[float]) -> None:
    limit = Limit(seconds=20.0, _began=0.0)
    for _ in limit.steps("abcd", label=str, reserve_s=5.0):
        now[0] += 6.0
    assert now[0] == 12 and limit.missing == ["c", "d"]


def test_a_limit_does_not_end_a_run_between_its_warm_up_and_its_first_turn(now: list[float]) -> None:
    options, contestants = limited(25, now)
    turns = take_turns(options, contestants, turns=9, warm_up=1, case=lambda name: name[1])
    assert now[0] == 20 and turns.names == PAIRS[:2] and turns.missing == ["50 ms", "200 ms"]
    assert len(turns.warm_up["tcp", "10 ms"]) == len(turns.rows(("tcp", "10 ms"))) == 1


def test_turns_take_their_share_of_the_time(now: list[float]) -> None:
    options, contestants = limited(60, now)
    turns = take_turns(options, contestants, turns=9, case=lambda name: name[1], parts=2)
    assert now[0] == 30 and turns.count == 1


def test_figures_without_their_cases_are_left_out_only_where_cases_are_missing() -> None:
    limit = Limit()
    values: dict[str, float] = {}
    figures = {"two": lambda: 2.0, "least": lambda: min(values.values()), "one": lambda: values["1 ms"]}
    with pytest.raises(ValueError, match="empty"):
        limit.known(figures)
    limit.missing.append("1 ms")
    assert limit.known(figures) == {"two": 2.0}


def test_parts_without_time_are_missing(now: list[float]) -> None:
    limit = Limit(seconds=20.0, _began=0.0)
    begun = []
    for hosts, left in limit.shares((8, 16, 32), "{} hosts".format):
        for _ in limit.steps(range(9), left):
            begun.append(hosts)
            now[0] += 8.0
    assert begun == [8, 16] and limit.missing == ["32 hosts"]
    assert limit.stopped == "the time limit of 20 s"


def test_the_first_part_is_measured_without_regard_to_the_limit_and_none_after_ctrl_c(
    now: list[float],
) -> None:
    limit = Limit(seconds=1.0, _began=0.0)
    begun = []
    for part, _ in limit.shares("abc", least_s={"a": 9.0, "b": 5.0}.__getitem__):
        begun.append(part)
    assert begun == ["a"] and limit.missing == ["b", "c"]
    limit = Limit()
    for _ in limit.shares("abc"):
        with limit.interruptible():
            raise KeyboardInterrupt
    assert limit.stopped == "Ctrl-C" and limit.missing == ["b", "c"]


def test_parts_share_the_progress() -> None:
    seen: list[tuple[str, float]] = []
    options = BenchOptions(progress=lambda what, share: seen.append((what, share)))
    contestants = {"a": lambda turn: {}, "b": lambda turn: {}}
    take_turns(options.part("cold", 0.5, 1.0), contestants, turns=1)
    assert seen == [("cold: a, turn 1 of 1", 0.5), ("cold: b, turn 1 of 1", 0.75)]


def test_the_template_is_a_benchmark() -> None:
    answer = bench_module("_null").run(BenchOptions(quick=True))
    assert answer["figures"].keys() == {"x_copy", "gb_per_s"} and answer["peers"].keys() == {"copy_gb_per_s"}
    assert answer["details"]["turns"] == 2
