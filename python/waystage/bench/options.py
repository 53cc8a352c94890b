"""What a benchmark is given, and how it fails.

Arrives: nothing.
Leaves: the options of a run; the errors of a benchmark.
Must not know: what a benchmark measures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path


class BenchError(RuntimeError):
    """A benchmark failed; the message says which part and why."""


class NoBenchmark(BenchError):
    """There is no such benchmark, or the file is not one."""


def _no_progress(what: str, share: float) -> None:
    return None


@dataclass(frozen=True)
class BenchOptions:
    """How much to run.

    `quick` asks for a smoke run; `repetitions` replaces the benchmark's own number of turns. `out` is a folder for
    files of the run, or None. `progress` takes the current step and the share done, 0 to 1. `inputs` are files to
    measure with instead of the benchmark's own, by name; a benchmark lists the names that it accepts in `INPUTS`.
    """

    quick: bool = False
    repetitions: int | None = None
    out: Path | None = None
    progress: Callable[[str, float], None] = field(default=_no_progress, compare=False)
    inputs: Mapping[str, Path] = field(default_factory=dict)

    def part(self, name: str, begin: float, end: float) -> BenchOptions:
        """The same options for one part of the run, whose progress goes from `begin` to `end` of the total."""

        def progress(what: str, share: float) -> None:
            self.progress(f"{name}: {what}", begin + (end - begin) * share)

        return replace(self, progress=progress)
