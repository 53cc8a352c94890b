"""The search for the path's capacity: which rate to try next.

Arrives: the results of the rates tried so far.
Leaves: the next rate, or that the search is over.
Must not know: how rates are tried.

First up in large steps until a train is more than the path carries (or down, where the first one is). Between the
last that it carried and the first that it did not, the rate at which packets still came is where a bottleneck says
that it is; that is tried from both sides, else the middle.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from waystage.wan.probing.points import Point

STEP = 4.0
"""Factor from one rate to the next while the path carries them: a thousandfold in five trains."""

CLOSE = 1.03
"""The search ends where the bounds differ by less than this factor."""

TRIES = 3
"""Attempts after which a machine is too slow for a rate."""

MOST_REFINED = 8
"""Trains between them."""

LEAST_BPS = 32_000.0
"""Below this rate there are too few packets for a result."""

GROWTH = 0.005
"""A queue that grows by more than this share of the time: the rate exceeds the path's by that share."""

LEAST_GROWN_NS = 400_000.0
"""Smaller growth over a train is jitter of the machines."""

LEAST_QUEUE_NS = 1_000_000
"""A smaller increase of delay is no queue."""

ENOUGH_PACKETS = 20_000
"""With this number of packets a loss of 10 % is known within 0.4 points."""

LEAST_EXCESS = 0.005
"""Loss this far above that of a low rate is significant."""


@dataclass(frozen=True)
class Calm:
    """A direction at low rates: its loss, the base delay, and the largest increase of delay."""

    loss: float
    median_ns: int
    longest_wait_ns: int


def calm_of(points: Sequence[Point]) -> Calm:
    """From the trains at the lowest rates, until there are enough packets to estimate the loss."""
    rows = sorted(points, key=lambda p: p.target_bps)
    lost, sent = 0, 0
    for p in rows:
        if sent and (queue_grows(p) or p.loss > 2 * lost / sent + 3 * LEAST_EXCESS):
            break
        lost, sent = lost + p.lost, sent + p.sent
        if sent >= ENOUGH_PACKETS:
            break
    median = min((p.median_ns for p in rows if p.received), default=0)
    longest = max((p.p99_ns for p in rows if p.received), default=0) - median
    return Calm(lost / sent if sent else 0.0, median, longest)


def queue_grows(point: Point) -> bool:
    """Whether the delay increased over the train, significantly."""
    return (
        point.growth > GROWTH and point.grown_ns > LEAST_GROWN_NS and point.grown_ns > 2 * point.wavering_ns
    )


def queue_stands(point: Point, calm: Calm) -> bool:
    """Whether most packets waited at least half of the longest wait: a full queue."""
    wait = point.median_ns - calm.median_ns
    return point.received > 0 and wait > LEAST_QUEUE_NS and wait > calm.longest_wait_ns / 2


def loses_more(point: Point, calm: Calm) -> bool:
    """Whether the loss is significantly above that at low rates."""
    if not point.sent:
        return True
    floor = calm.loss
    chance = 3 * math.sqrt(max(floor, 1 / point.sent) * (1 - floor) / point.sent)
    return point.loss > floor + max(LEAST_EXCESS, chance)


def too_much(point: Point, calm: Calm) -> bool:
    """Whether the path does not carry this rate."""
    return queue_grows(point) or queue_stands(point, calm) or loses_more(point, calm)


@dataclass
class Sweep:
    """The search for one direction's rate: try `next`, `add` its result."""

    start_bps: float
    most_bps: float
    points: list[Point] = field(default_factory=list)
    _refined: int = 0
    _again: float | None = None
    _spoilt: int = 0

    def add(self, point: Point) -> None:
        """Add the result of the requested rate.

        What a machine spoilt is tried again: it may have been busy for a moment.
        """
        if point.machine is not None and self._spoilt < TRIES - 1:
            self._spoilt += 1
            self._again = point.target_bps
            return
        self._spoilt, self._again = 0, None
        self.points.append(point)

    def carried(self) -> list[Point]:
        """Points that the path carried, in ascending order."""
        bound = min((p.target_bps for p in self.refused()), default=math.inf)
        return sorted((p for p in self.points if p.target_bps < bound), key=lambda p: p.target_bps)

    def refused(self) -> list[Point]:
        """Points beyond its capacity, in ascending order."""
        calm = calm_of(self.points)
        return sorted((p for p in self.points if too_much(p, calm)), key=lambda p: p.target_bps)

    def next(self) -> float | None:
        """The rate to try next; None where the search has ended."""
        if self._again is not None:
            return self._again
        if not self.points:
            return min(self.start_bps, self.most_bps)
        carried, refused = self.carried(), self.refused()
        if self.points[-1].machine is not None and not refused:
            # Higher ones would only show the machine again.
            return None
        if not refused:
            highest = carried[-1].target_bps
            return None if highest >= self.most_bps else min(highest * STEP, self.most_bps)
        high = refused[0].target_bps
        if not carried:
            return high / STEP if high / STEP >= LEAST_BPS else None
        low = carried[-1].target_bps
        if high / low <= CLOSE or self._refined >= MOST_REFINED:
            return None
        self._refined += 1
        guess = refused[0].delivered_bps / max(1 - calm_of(self.points).loss, 0.01)
        for near in (guess * 0.985, guess * 1.012):
            if low * 1.005 < near < high / 1.005:
                return near
        return math.sqrt(low * high)
