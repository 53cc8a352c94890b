"""Turns: contestants measured alternately, and statistics over their valid measurements.

Arrives: contestants, each a callable that measures once; the number of turns; when a measurement is valid.
Leaves: medians, ratios and spreads over valid measurements; which measurements were dropped, and why.
Must not know: what is measured.

In a turn every contestant measures once, one after the other, so that a slow minute of the machine affects all of them:
multiple interleaved trials (Abedi and Brecht, "Conducting Repeatable Experiments in Highly Variable Cloud Computing
Environments", ICPE 2017). The order changes from turn to turn by rotation and reversal, so that each contestant is
early and late equally often, also in few turns.

A turn of many cases may take longer than a run has. `take_turns` then takes turns case by case: all contestants of one
case measure, then those of the next, so that peers have measured as often as ours, however the run ends.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from waystage.bench.options import BenchError, BenchOptions, Stopped
from waystage.machine import CpuWatch
from waystage.stats import median, median_spread

T = TypeVar("T")

Name = str | tuple[str, ...]
"""A contestant, or a contestant in a case: `"rsync"`, `("rsync", "10 ms, 1 %")`."""

Figures = Mapping[str, Any]
"""What one measurement gives: figures by name, and values that explain them."""

Measure = Callable[[int], Figures]
"""Measures once; takes the number of the turn, from 0; warm-up turns have negative numbers."""


class TurnFailed(BenchError):
    """Raised by a contestant that may fail: this measurement is left out, and the result says why."""


class Turns:
    """Every contestant's measurements, each with `turn`, `idle_pct` of the machine and, where dropped, `invalid`: why.

    Statistics are over valid measurements; over all of a contestant where none is valid, and then `valid` is False.
    `count` is the number of turns, the largest of all cases; `missing` are the cases without a complete turn.
    """

    def __init__(
        self, count: int, names: Sequence[Name], case: Callable[[Any], str] = lambda name: ""
    ) -> None:
        self.count = count
        self.names = list(names)
        self.cases: dict[str, list[Name]] = {}
        for name in names:
            self.cases.setdefault(case(name), []).append(name)
        self.missing: list[str] = []
        self.warm_up: dict[Name, list[Figures]] = {name: [] for name in names}
        self._rows: dict[Name, list[Figures]] = {name: [] for name in names}
        self._turns_of = dict.fromkeys(self.cases, count)

    def add(self, name: Name, row: Figures) -> None:
        (self.warm_up if row["turn"] < 0 else self._rows)[name].append(row)

    def cut(self, complete: Mapping[str, int]) -> None:
        """Keep this many turns of each case: the run may have ended early, in one that is not complete."""
        self.count = max(complete.values(), default=0)
        self._turns_of = dict(complete)
        self.missing = [case for case in self.cases if not complete[case]]
        for case, names in self.cases.items():
            for name in names:
                self._rows[name] = [row for row in self._rows[name] if row["turn"] < complete[case]]
        self.names = [name for case, names in self.cases.items() if complete[case] for name in names]

    @property
    def valid(self) -> bool:
        """Whether every contestant of a measured case has a valid measurement."""
        return all(any("invalid" not in row for row in self._rows[name]) for name in self.names)

    def rows(self, name: Name) -> list[Figures]:
        """The measurements that count; empty for a contestant that failed in every turn."""
        measured = [row for row in self._rows[name] if not row.get("failed")]
        return [row for row in measured if "invalid" not in row] or measured

    def values(self, name: Name, key: str) -> list[float]:
        return [float(row[key]) for row in self.rows(name) if row.get(key) is not None]

    def median(self, name: Name, key: str) -> float:
        """The median of a figure. Raises BenchError where no turn gave it."""
        values = self.values(name, key)
        if not values:
            raise BenchError(f"{label(name)}: no turn gave {key}: {'; '.join(self.dropped()) or 'none ran'}")
        return median(values)

    def medians(self, key: str) -> dict[Name, float]:
        """The median of one figure of every contestant that has it."""
        return {name: self.median(name, key) for name in self.names if self.values(name, key)}

    def ratio(self, over: Name, under: Name, key: str) -> float:
        """The ratio of two contestants' medians."""
        return self.median(over, key) / self.median(under, key)

    def paired(self, one: Name, other: Name, key: str) -> list[tuple[float, float]]:
        """A figure of two contestants turn by turn, of the turns in which both count."""
        others = {row["turn"]: float(row[key]) for row in self.rows(other)}
        return [(float(r[key]), others[r["turn"]]) for r in self.rows(one) if r["turn"] in others]

    def dropped(self) -> list[str]:
        """One line for each measurement that was dropped: contestant, turn, why."""
        return [
            f"{label(name)}, turn {row['turn'] + 1}: {row['invalid']}"
            for name, rows in self._rows.items()
            for row in rows
            if "invalid" in row
        ]

    def details(self) -> dict[str, Any]:
        """What explains the figures: medians with 95 % intervals (see `stats.median_spread`), and every measurement."""
        return {
            "turns": self.count,
            "valid": self.valid,
            "dropped": self.dropped(),
            "medians": {label(name): dict(self._summaries(name)) for name in self.names},
            "runs": {label(name): [_rounded(row) for row in self._rows[name]] for name in self.names},
        } | ({"turns_by_case": self._turns_of} if len(set(self._turns_of.values())) > 1 else {})

    def _summaries(self, name: Name) -> Iterator[tuple[str, dict[str, Any]]]:
        rows = self.rows(name)
        for key in rows[0] if rows else ():
            if key == "turn" or not all(_is_number(row.get(key)) for row in rows):
                continue
            values = self.values(name, key)
            found: dict[str, Any] = {"median": median(values), "count": len(values)}
            if (spread := median_spread(values)) is not None:
                found |= {"low": spread.low, "high": spread.high, "is_range": spread.is_range}
            yield key, _rounded(found)


def take_turns(
    options: BenchOptions,
    contestants: Mapping[Any, Measure],
    *,
    turns: int,
    quick: int = 1,
    at_most: int | Mapping[str, int] | None = None,
    warm_up: int = 0,
    least_idle_pct: float = 0.0,
    invalid: Callable[[Figures], str | None] = lambda figures: None,
    case: Callable[[Any], str] = lambda name: "",
    quick_cases: Collection[str] | None = None,
    parts: int = 0,
) -> Turns:
    """Measure every contestant (by `Name`) in `turns` turns, in a quick run in `quick`.

    `--repetitions` replaces both numbers; there are never more than `at_most`, of all cases or by case.
    The first `warm_up` turns do not count. A measurement is dropped where `invalid` returns a reason, where the
    machine was less than `least_idle_pct` idle meanwhile, or where the contestant raises TurnFailed.

    The complete turns are the result where the time limit or Ctrl-C ends the run. Raises Stopped where there is none.
    Where `case` tells the case of a contestant, a turn consists of one turn of each case, which is complete by itself;
    cases that have none are then `missing`, as are those of a quick run that are not in `quick_cases`. Where `parts` of
    the run are left, this one included, it gets that share of the time left.
    """
    count = options.repetitions or (quick if options.quick else turns)
    found = Turns(count, list(contestants), case)
    options.limit.parts.append(found)
    most = dict.fromkeys(found.cases, count)
    for each in most:
        bound = at_most.get(each) if isinstance(at_most, Mapping) else at_most
        most[each] = min(count, bound or count)
    if options.quick and quick_cases is not None:
        most = {each: most[each] if each in quick_cases else 0 for each in most}
    # A case warms up in the step of its first turn, without which it would be for nothing.
    steps = [
        (each, range(turn if turn else -warm_up, turn + 1))
        for turn in range(max(most.values(), default=0))
        for each in order(list(most), turn)
        if turn < most[each]
    ]
    complete = dict.fromkeys(found.cases, 0)
    with options.limit.interruptible():
        begun = options.limit.steps(
            steps, parts, weight=lambda step: len(found.cases[step[0]]) * len(step[1])
        )
        for done, (each, numbers) in enumerate(begun):
            names = found.cases[each]
            for turn in numbers:
                for place, name in enumerate(order(names, turn + warm_up)):
                    what = f"{label(name)}, {f'turn {turn + 1} of {most[each]}' if turn >= 0 else 'warm-up'}"
                    share = ((turn - numbers[0]) + place / len(names)) / len(numbers)
                    options.progress(what, (done + share) / len(steps))
                    found.add(name, _measured(contestants[name], turn, least_idle_pct, invalid))
            complete[each] = numbers[-1] + 1
    found.cut(complete)
    if not found.count:
        raise Stopped(f"ended by {options.limit.stopped} before every contestant was measured")
    options.limit.missing += found.missing
    return found


def order(names: Sequence[T], turn: int) -> list[T]:
    """The order in a turn: reversed every other turn, rotated by one every two turns."""
    first = turn // 2 % max(len(names), 1)
    rotated = [*names[first:], *names[:first]]
    return rotated[::-1] if turn % 2 else rotated


def label(name: Name) -> str:
    return name if isinstance(name, str) else ", ".join(name)


def _measured(
    measure: Measure, turn: int, least_idle_pct: float, invalid: Callable[[Figures], str | None]
) -> Figures:
    reason: str | None = None
    figures: dict[str, Any]
    with CpuWatch() as watch:
        try:
            figures = dict(measure(turn))
        except TurnFailed as error:
            figures, reason = {"failed": True}, str(error)
    idle_pct = round(watch.idle_pct, 1)
    row = {"turn": turn, "idle_pct": idle_pct} | figures
    reason = reason or invalid(row)
    if reason is None and idle_pct < least_idle_pct:
        reason = f"the machine was {idle_pct} % idle, less than {least_idle_pct} %"
    return row if reason is None else row | {"invalid": reason}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _rounded(value: Any) -> Any:
    """Floats with six significant digits, in whatever they are in."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {key: _rounded(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(inner) for inner in value]
    return value
