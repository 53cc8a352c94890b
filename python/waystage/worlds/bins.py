"""The use of links over time, in bins that become longer as a set does.

Arrives: counts of one interval after the other, by port and class.
Leaves: bins: the shortest that the bounds allow, or of a given time.
Must not know: events, topologies, policies.

A change of paths shows in bins of 100 ms and not in those of a second; an hour of them would be too much to keep and to
draw. Where the bounds are reached, neighbours are merged and later bins are as long.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

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

Key = tuple[str, int, str]
"""Node, port, class."""


class Bin(msgspec.Struct):
    """Counts over `took_ns` up to `end_ns`."""

    end_ns: int
    took_ns: int
    counts: dict[Key, int]


class Bins:
    """Of one set. `interval_s`: bins of at least that time; None lets them grow from the shortest."""

    def __init__(self, interval_s: float | None = None) -> None:
        self._grows = interval_s is None
        self._interval_ns = round((interval_s or SHORTEST_S) * 1e9)
        self._closed: list[Bin] = []
        self._open: Bin | None = None
        self._counts = 0

    @property
    def interval_s(self) -> float:
        """How long the next bin is at least."""
        return self._interval_ns / 1e9

    def add(self, end_ns: int, took_ns: int, counts: Mapping[Key, int]) -> None:
        """The interval that follows."""
        if self._open is None:
            self._open = Bin(end_ns, took_ns, dict(counts))
        else:
            _merge(self._open, end_ns, took_ns, counts)
        if self._open.took_ns + min(EARLY * self._interval_ns, took_ns / 2) >= self._interval_ns:
            self.close()

    def close(self) -> None:
        """What was added since the last bin becomes one."""
        if self._open is None:
            return
        self._closed.append(self._open)
        self._counts += len(self._open.counts)
        self._open = None
        if self._grows and self._is_full():
            self._interval_ns *= 2
            pairs = iter(self._closed)
            self._closed = []
            for first in pairs:
                second = next(pairs, None)
                if second is not None:
                    _merge(first, second.end_ns, second.took_ns, second.counts)
                self._closed.append(first)
            self._counts = sum(len(each.counts) for each in self._closed)

    def __iter__(self) -> Iterator[Bin]:
        return iter(self._closed)

    def _is_full(self) -> bool:
        most = MOST_COUNTS if self._interval_ns < SECOND_S * 1e9 else MOST_LONG_COUNTS
        return len(self._closed) > MOST_BINS or self._counts > most


def _merge(into: Bin, end_ns: int, took_ns: int, counts: Mapping[Key, int]) -> None:
    into.end_ns = end_ns
    into.took_ns += took_ns
    for key, count in counts.items():
        into.counts[key] = into.counts.get(key, 0) + count
