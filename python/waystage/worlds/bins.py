"""The use of links over time, in bins that become longer as a set does.

Arrives: counts of one interval after the other, by key: a number that stands for a port and class.
Leaves: bins: the shortest that the bounds allow, or of a given time.
Must not know: events, topologies, policies.

A change of paths shows in bins of 100 ms and not in those of a second; an hour of them would be too much to keep and to
draw. Where the bounds are reached, neighbours are merged and later bins are as long.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

SHORTEST_S = 0.1

SECOND_S = 1.0

MOST_BINS = 1200
"""Of one set: two minutes in the shortest, twenty in those of a second."""

MOST_COUNTS = 400_000
"""Of one set, in bins below a second: large fabrics get longer bins sooner."""

MOST_LONG_COUNTS = 1_000_000
"""Of one set in any bins: a day on thousands of ports would be more rows than a report can read."""

EARLY = 0.05
"""Readings come a little early or late: a bin may be this part of its interval too short, or half of a reading."""

I64 = NDArray[np.int64]


class Bin(msgspec.Struct):
    """Counts over `took_ns` up to `end_ns`, of keys in rising order: `counts[i]` is that of `keys[i]`."""

    end_ns: int
    took_ns: int
    keys: I64
    counts: I64


class Bins:
    """Of one set, of keys in [0, `keys`). `interval_s`: bins of at least that time; None lets them grow from the
    shortest.
    """

    def __init__(self, keys: int, interval_s: float | None = None) -> None:
        self._grows = interval_s is None
        self._interval_ns = round((interval_s or SHORTEST_S) * 1e9)
        self._closed: list[Bin] = []
        self._sums = np.zeros(keys, dtype=np.int64)
        self._counted = np.zeros(keys, dtype=np.bool_)
        self._end_ns = self._took_ns = 0
        self._is_open = False
        self._counts = 0

    @property
    def interval_s(self) -> float:
        """How long the next bin is at least."""
        return self._interval_ns / 1e9

    def add(self, end_ns: int, took_ns: int, keys: I64, counts: I64) -> None:
        """The interval that follows; `keys` are distinct."""
        self._is_open = True
        self._end_ns = end_ns
        self._took_ns += took_ns
        self._sum(keys, counts)
        if self._took_ns + min(EARLY * self._interval_ns, took_ns / 2) >= self._interval_ns:
            self.close()

    def close(self) -> None:
        """What was added since the last bin becomes one."""
        if not self._is_open:
            return
        self._closed.append(Bin(self._end_ns, self._took_ns, *self._taken()))
        self._counts += self._closed[-1].keys.size
        self._is_open, self._took_ns = False, 0
        if self._grows and self._is_full():
            self._interval_ns *= 2
            pairs = iter(self._closed)
            self._closed = []
            for first in pairs:
                second = next(pairs, None)
                if second is not None:
                    first.end_ns = second.end_ns
                    first.took_ns += second.took_ns
                    self._sum(first.keys, first.counts)
                    self._sum(second.keys, second.counts)
                    first.keys, first.counts = self._taken()
                self._closed.append(first)
            self._counts = sum(each.keys.size for each in self._closed)

    def _sum(self, keys: I64, counts: I64) -> None:
        self._sums[keys] += counts
        self._counted[keys] = True

    def _taken(self) -> tuple[I64, I64]:
        """The keys and counts summed since the last call."""
        keys = np.flatnonzero(self._counted)
        counts = self._sums[keys]
        self._sums[keys] = 0
        self._counted[keys] = False
        return keys, counts

    def __iter__(self) -> Iterator[Bin]:
        return iter(self._closed)

    def _is_full(self) -> bool:
        most = MOST_COUNTS if self._interval_ns < SECOND_S * 1e9 else MOST_LONG_COUNTS
        return len(self._closed) > MOST_BINS or self._counts > most
