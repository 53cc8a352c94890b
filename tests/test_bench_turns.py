"""Turns of a benchmark: their order, what is dropped, and what is derived from the rest."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import pytest

from harness import bench_module
from waystage.bench import BenchError, BenchOptions, TurnFailed, take_turns
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
