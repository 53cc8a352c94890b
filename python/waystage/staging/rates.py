"""How long a transfer is expected to take, by what was measured between the same ends.

Arrives: measured transfers; an amount.
Leaves: a median with its spread, or None where nothing was measured.
Must not know: where measurements are kept.

Each measured transfer is scaled to the amount, by bytes or by files, whichever takes it longer: of many small files
their number decides, of few large ones their bytes. Of the measurements, those with the nearest mean size of a file
count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import msgspec

NEAREST = 9
"""Measurements that an estimate takes."""

LEAST_SECONDS = 0.05
"""Shorter transfers measure the start of an engine."""


class Measured(Protocol):
    @property
    def bytes(self) -> int: ...
    @property
    def files(self) -> int: ...
    @property
    def seconds(self) -> float: ...


class Estimate(msgspec.Struct, frozen=True):
    """Expected seconds: the median, and the least and greatest of `count` measured transfers, scaled."""

    seconds: float
    least: float
    greatest: float
    count: int


def estimate(samples: Sequence[Measured], size: int, files: int) -> Estimate | None:
    """The expected time for `files` files with `size` bytes together."""
    usable = [each for each in samples if each.seconds >= LEAST_SECONDS and (each.bytes or each.files)]
    if not usable:
        return None
    wanted = _mean_size(size, files)
    nearest = sorted(
        usable, key=lambda each: abs(math.log((1 + _mean_size(each.bytes, each.files)) / (1 + wanted)))
    )
    times = sorted(_scaled(each, size, files) for each in nearest[:NEAREST])
    middle = len(times) // 2
    median = times[middle] if len(times) % 2 else (times[middle - 1] + times[middle]) / 2
    return Estimate(median, times[0], times[-1], len(times))


def _mean_size(size: int, files: int) -> float:
    return size / max(files, 1)


def _scaled(sample: Measured, size: int, files: int) -> float:
    by_bytes = size / sample.bytes if sample.bytes else 0.0
    by_files = files / sample.files if sample.files else 0.0
    return sample.seconds * max(by_bytes, by_files)
