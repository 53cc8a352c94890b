"""What a benchmark is given, and how it fails.

Arrives: nothing.
Leaves: the options of a run, its time limit; the errors of a benchmark.
Must not know: what a benchmark measures.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
CTRL_C = "Ctrl-C"
"""Why a run that was interrupted ended."""


class BenchError(RuntimeError):
    """A benchmark failed; the message says which part and why."""


class NoBenchmark(BenchError):
    """There is no such benchmark, or the file is not one."""


class Stopped(BenchError):
    """The run ended early, by its time limit or by Ctrl-C, before a part of it had a complete turn."""


class Measured(Protocol):
    """Turns of one part of a benchmark, as `bench.turns.Turns`."""

    def details(self) -> dict[str, Any]: ...


@dataclass(eq=False)
class Limit:
    """The time limit of a run, why it ended early, and what it has measured.

    `seconds` is None where there is no limit. `stopped` is None until the run ends early. `parts` are the turns so
    far, in the order in which they were begun; `missing` are the cases and parts that were not measured.
    """

    seconds: float | None = None
    stopped: str | None = None
    parts: list[Measured] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    _began: float = field(default_factory=time.monotonic)
    _steps_done: int = 0
    _longest_s: float = 0.0
    """Of all steps of the run."""

    def steps(
        self,
        items: Iterable[T],
        parts: int = 0,
        *,
        weight: Callable[[T], float] = lambda item: 1.0,
        label: Callable[[T], str] | None = None,
        reserve_s: float = 0.0,
    ) -> Iterator[T]:
        """The items, until the next would probably end after the limit; the first one of a run always.

        A step is taken to last as long as the longest one before it, in proportion to their `weight`. Where `parts` of
        a run are left, this one included, it gets that share of the time left, and its first item always. There are
        none after Ctrl-C. `reserve_s` seconds are kept for what follows the steps. With a `label` of each, the items
        left out are `missing`.
        """
        begin = time.monotonic()
        left = None if self.seconds is None else self.seconds - reserve_s - (begin - self._began)
        longest, first, ended = 0.0, parts > 0 or not self._steps_done, self.interrupted
        for item in items:
            now = time.monotonic()
            late = left is not None and now - begin + longest * weight(item) > max(left, 0.0) / (parts or 1)
            if (
                ended
                or self.interrupted
                or (not first and (late or (self.stopped is not None and not parts)))
            ):
                self._ended_by_time()
                if label is None:
                    return
                ended = True
                self.missing.append(label(item))
                continue
            yield item
            took = time.monotonic() - now
            longest, first = max(longest, took / weight(item)), False
            self._longest_s = max(self._longest_s, took)
            self._steps_done += 1

    def shares(
        self,
        parts: Iterable[T],
        label: Callable[[T], str] = str,
        *,
        least_s: Callable[[T], float] = lambda part: 0.0,
    ) -> Iterator[tuple[T, int]]:
        """The parts of a run that still have time, each with how many are left, itself included, as `steps` takes them.

        The first one always. A part is taken to last at least as long as the longest step of the run so far, and
        `least_s` of it, in seconds. Those without time are `missing`, by their `label`.
        """
        left = list(parts)
        for number, part in enumerate(left):
            spent = time.monotonic() - self._began
            late = self.seconds is not None and spent + max(self._longest_s, least_s(part)) > self.seconds
            if self.interrupted or (number and late):
                self._ended_by_time()
                self.missing += map(label, left[number:])
                return
            yield part, len(left) - number

    def _ended_by_time(self) -> None:
        self.stopped = self.stopped or f"the time limit of {self.seconds:g} s"

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C has ended the run."""
        return self.stopped == CTRL_C

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """Ctrl-C ends the body, and the run after it: what was measured before is the result."""
        try:
            yield
        except KeyboardInterrupt:
            self.stopped = CTRL_C

    def known(self, figures: Mapping[str, Callable[[], float]]) -> dict[str, float]:
        """The figures, each derived by a call; where cases are `missing`, without those that need what is not there.

        A call needs it where it raises LookupError, ValueError or BenchError: a case that has no value, the least of
        no values, a median of no turns.
        """
        found: dict[str, float] = {}
        for name, derive in figures.items():
            try:
                found[name] = derive()
            except (LookupError, ValueError, BenchError):
                if not self.missing:
                    raise
        return found


def _no_progress(what: str, share: float) -> None:
    return None


@dataclass(frozen=True)
class BenchOptions:
    """How much to run.

    `quick` asks for a smoke run; `repetitions` replaces the benchmark's own number of turns. `out` is a folder for
    files of the run, or None. `progress` takes the current step and the share done, 0 to 1. `inputs` are files to
    measure with instead of the benchmark's own, by name; a benchmark lists the names that it accepts in `INPUTS`.
    `limit` ends the run early; the parts of a run share it.
    """

    quick: bool = False
    repetitions: int | None = None
    out: Path | None = None
    progress: Callable[[str, float], None] = field(default=_no_progress, compare=False)
    inputs: Mapping[str, Path] = field(default_factory=dict)
    limit: Limit = field(default_factory=Limit, compare=False)

    def part(self, name: str, begin: float, end: float) -> BenchOptions:
        """The same options for one part of the run, whose progress goes from `begin` to `end` of the total."""

        def progress(what: str, share: float) -> None:
            self.progress(f"{name}: {what}", begin + (end - begin) * share)

        return replace(self, progress=progress)
