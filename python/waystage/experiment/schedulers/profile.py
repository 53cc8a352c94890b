"""The number of free nodes over time.

Arrives: reservations: from, until, nodes.
Leaves: the earliest time at which a number of nodes is free for a duration.
Must not know: jobs, hosts.
"""

from __future__ import annotations

from bisect import bisect_left


class Profile:
    """A step function of time from `start_s` on; `free[i]` holds from `times[i]` to `times[i + 1]`."""

    def __init__(self, start_s: float, nodes: int) -> None:
        self._times = [start_s]
        self._free = [nodes]

    def reserve(self, begin_s: float, end_s: float, nodes: int) -> None:
        """Take `nodes` from `begin_s` until `end_s`; they may be infinitely long or empty."""
        self._add(begin_s, end_s, -nodes)

    def release(self, begin_s: float, end_s: float, nodes: int) -> None:
        """Give back what `reserve` with the same arguments took."""
        self._add(begin_s, end_s, nodes)

    def earliest(self, nodes: int, length_s: float) -> float:
        """The first time at which `nodes` are free for `length_s`; infinity where that is never."""
        times, free = self._times, self._free
        at = 0
        while at < len(times):
            if free[at] < nodes:
                at += 1
                continue
            end_s = times[at] + length_s
            blocked = next(
                (i for i in range(at + 1, len(times)) if times[i] < end_s and free[i] < nodes), None
            )
            if blocked is None:
                return times[at]
            at = blocked + 1
        return float("inf")

    def _add(self, begin_s: float, end_s: float, change: int) -> None:
        begin_s = max(begin_s, self._times[0])
        if end_s <= begin_s or begin_s == float("inf"):
            return
        first = self._cut(begin_s)
        last = len(self._times) if end_s == float("inf") else self._cut(end_s)
        for i in range(first, last):
            self._free[i] += change

    def _cut(self, at_s: float) -> int:
        """The index of the step that begins at `at_s`, made where there is none."""
        i = bisect_left(self._times, at_s)
        if i == len(self._times) or self._times[i] != at_s:
            self._times.insert(i, at_s)
            self._free.insert(i, self._free[i - 1])
        return i
