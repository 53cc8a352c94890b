"""Bytes counted late, redistributed to the interval in which they crossed the link.

Arrives: the counts of a port in the order of time, what it carries at most.
Leaves: the same counts, in which the port carries no more than its link and its classes no more than the port.
Must not know: who counted, what the classes are.

A switch counts what leaves a port at once, but adds what a flow entry matched only when it next reads its datapath's
flows, up to a second later (Open vSwitch revalidates every 500 ms), and a switch that missed a reading gives two intervals
in one. A sample then shows 125 Mbit/s on a link of 100. Counters are late and never early, so what is too much goes to the
intervals before, the nearest first; what the port's own reading came too early for goes to those after. What no
interval near has room for was matched and then dropped at the port's queue: it never crossed the link.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

WHOLE = "all"
"""The port's own count among the classes."""

REACH, REACH_S = 4, 4.0
"""Intervals that a count may be away from its own, and their time: a flow entry that is idle is looked at every few
seconds.
"""

I64 = NDArray[np.int64]


def settle(counts: Mapping[str, I64], took_s: Sequence[float], most_bps: int | None) -> None:
    """Settle the counts of one port by what is counted, each shape (intervals,), in place. `took_s` of each interval."""
    reach = max(REACH, round(REACH_S * len(took_s) / max(1e-9, sum(took_s))))
    classes = [column for name, column in sorted(counts.items()) if name != WHOLE]
    known = WHOLE in counts
    whole = counts[WHOLE] if known else np.sum(classes, axis=0)
    if most_bps is not None:
        room = np.array([int(most_bps * each / 8) for each in took_s], dtype=np.int64)
        whole += _spread(whole, room, reach)  # it is right in sum: where no interval has room, it stays
    if known:
        _fit_classes(classes, whole, reach)


def _spread(amounts: I64, room: I64, reach: int) -> I64:
    """Move what is above `room` to intervals with room, in place; what is left over, where it was."""
    left = np.zeros_like(amounts)
    for i in np.flatnonzero(amounts > room).tolist():
        excess = int(amounts[i] - room[i])
        amounts[i] = room[i]
        for j in _near(i, amounts.size, reach):
            if not excess:
                break
            moved = min(excess, max(0, int(room[j] - amounts[j])))
            amounts[j] += moved
            excess -= moved
        left[i] = excess
    return left


def _fit_classes(classes: Sequence[I64], whole: I64, reach: int) -> None:
    """The classes of each interval add up to `whole` at most, in place."""
    if not classes:
        return
    sums = np.sum(classes, axis=0)
    for i in np.flatnonzero(sums > whole).tolist():
        together = int(sums[i])
        excess = together - int(whole[i])
        # Each class is late by the same share.
        cuts = [min(int(c[i]), -(-excess * int(c[i]) // together)) for c in classes]
        for column, cut in zip(classes, cuts, strict=True):
            moving = min(cut, max(0, int(sums[i] - whole[i])))
            column[i] -= moving
            sums[i] -= moving
            for j in _near(i, whole.size, reach):
                if not moving:
                    break
                moved = min(moving, max(0, int(whole[j] - sums[j])))
                column[j] += moved
                sums[j] += moved
                moving -= moved


def _near(i: int, count: int, reach: int) -> Iterator[int]:
    """The intervals before, the nearest first, and then those after."""
    yield from range(i - 1, max(-1, i - 1 - reach), -1)
    yield from range(i + 1, min(count, i + 1 + reach))
