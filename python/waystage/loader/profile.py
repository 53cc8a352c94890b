"""How many loaders a storage target takes: measured on a few targets with a small part of the bytes, kept in a file.

Arrives: files, or a function that measures; a file of earlier measurements.
Leaves: a slowdown curve and the resulting number of loaders, by SwiftLoad's algorithm 1.
Must not know: who loads.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from waystage._native import choose_loaders, measure_target
from waystage.loader.errors import LoaderError
from waystage.loader.files import FileSet
from waystage.native_options.loads import MeasureOptions
from waystage.outputs import write_whole
from waystage.task import Progress

FORMAT = "waystage-load-profile"
VERSION = 1

SHARE = 0.05
"""The largest share of all bytes to read."""

SAMPLED_TARGETS = 3
"""Targets of a file system are usually alike; a few show whether they are."""

MOST_READERS = 64
ROUNDS = 3
"""Pieces of each reader: with fewer, the start dominates."""

FALLEN = 0.8
"""Below this share of the highest rate, the number of readers is past the maximum of the curve."""

Measure = Callable[[int], float | None]
"""From a number of readers to the seconds that one takes for a byte; None where the budget is exhausted."""


@dataclass(frozen=True)
class TargetProfile:
    """The measurement of one target: (readers, slowdown), smoothed, and the best number of readers."""

    target: str
    points: list[tuple[int, float]]
    best_loaders: int
    bytes_read: int


@dataclass(frozen=True)
class Profile:
    """A profile for loaders. `best_loaders` is for each target, over all processes."""

    best_loaders: int
    points: list[tuple[int, float]] = field(default_factory=list)
    targets: list[TargetProfile] = field(default_factory=list)
    share: float = 0.0
    """The share of all bytes that was read."""

    def save(self, path: Path) -> None:
        """Raises OSError where the file cannot be written."""
        text = json.dumps({"format": FORMAT, "version": VERSION} | asdict(self), indent=1) + "\n"
        write_whole(path, text.encode())

    @classmethod
    def load(cls, path: Path) -> Profile:
        """Raises LoaderError where the file is no profile."""
        try:
            value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            if value["format"] != FORMAT or value["version"] != VERSION:
                raise ValueError
            points = [(int(x), float(g)) for x, g in value["points"]]
            best = int(value["best_loaders"])
            if not 1 <= best < 1 << 32 or not all(0 <= x < 1 << 32 for x, _ in points):
                raise ValueError
            return cls(best, points, share=float(value["share"]))
        except OSError as error:
            raise LoaderError(f"{path}: {error.strerror or error}") from None
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            raise LoaderError(
                f"{path} is no profile of this version: make one with waystage profile-targets"
            ) from None


def profile_targets(
    files: FileSet,
    *,
    most_readers: int = MOST_READERS,
    share: float = SHARE,
    piece_bytes: int = 1 << 20,
    progress: Progress | None = None,
) -> Profile:
    """Measure a few targets, those with most bytes, with at most `share` of all bytes. Raises LoaderError, OSError."""
    if not 0 < share <= 1:
        raise LoaderError(f"a share of {share} of the bytes: give more than 0 and at most 1")
    by_target = dict(zip(files.files.targets, files.files.bytes_by_target(), strict=True))
    total = sum(by_target.values())
    if total == 0:
        raise LoaderError(f"{files.root} has no bytes to read: profile targets where there are files")
    chosen = sorted((n for n in by_target if by_target[n]), key=lambda n: -by_target[n])[:SAMPLED_TARGETS]
    budget = int(total * share) // len(chosen)
    measured: list[tuple[dict[int, float], TargetProfile]] = []
    for index, number in enumerate(chosen):
        name = files.targets.get(number, str(number))
        meter = _Meter(files, number, budget, piece_bytes)

        def told(readers: int, name: str = name, index: int = index) -> None:
            if progress is not None:
                progress(f"{name}: {readers} readers", index / len(chosen))

        paces = explore(meter, most_readers, told)
        if not paces:
            raise LoaderError(
                f"{name} has too few bytes to measure with {share:.0%} of them: allow a larger share"
            )
        points, best = _of(paces)
        measured.append((paces, TargetProfile(name, points, best, meter.bytes_read)))
    points, best = _of(pooled([paces for paces, _ in measured]))
    targets = [profile for _, profile in measured]
    return Profile(best, points, targets, sum(t.bytes_read for t in targets) / total)


def explore(measure: Measure, most: int, told: Callable[[int], None] | None = None) -> dict[int, float]:
    """Readers -> seconds a byte: by doubling until past the maximum, then between its neighbours."""
    paces: dict[int, float] = {}

    def look(readers: int) -> bool:
        if told is not None:
            told(readers)
        pace = measure(readers)
        if pace is not None:
            paces[readers] = pace
        return pace is not None

    def rate(readers: int) -> float:
        return readers / paces[readers]

    readers = 1
    while readers <= most and look(readers):
        if rate(readers) < FALLEN * max(rate(x) for x in paces):
            break
        readers *= 2
    if paces:
        # The maximum is between the neighbours of the best point.
        top = max(paces, key=rate)
        between = sorted({top * 3 // 4, top * 5 // 4, top * 3 // 2} - set(paces))
        for readers in between:
            if not (1 <= readers <= most and look(readers)):
                break
    return dict(sorted(paces.items()))


def pooled(measured: list[dict[int, float]]) -> dict[int, float]:
    """The mean pace of several targets, for the numbers of readers that all were measured with."""
    common = set(measured[0]).intersection(*measured[1:])
    return {x: sum(paces[x] for paces in measured) / len(measured) for x in sorted(common)}


def _of(paces: dict[int, float]) -> tuple[list[tuple[int, float]], int]:
    alone = paces[1]
    best, points = choose_loaders([(x, pace / alone) for x, pace in paces.items()])
    return points, best


class _Meter:
    """Measures a target with dedicated readers, each object once, with cold caches as far as possible."""

    def __init__(self, files: FileSet, target: int, budget: int, piece_bytes: int) -> None:
        self._files, self._target = files, target
        self._left = budget
        self._piece_bytes = piece_bytes
        self._skip = 0
        self.bytes_read = 0

    def __call__(self, readers: int) -> float | None:
        options = MeasureOptions(
            target=self._target,
            skip=self._skip,
            pieces=ROUNDS * readers,
            readers=readers,
            piece_bytes=self._piece_bytes,
            most_bytes=self._left,
        )
        size, seconds, pieces = measure_target(self._files.files, options)
        self._skip += pieces
        self._left -= size
        self.bytes_read += size
        # A number of readers that found too little to do was not measured.
        if pieces < ROUNDS * readers or size == 0:
            return None
        return seconds / size
