"""The capacity of a direction and what limits it, from the rates tried.

Arrives: the points of a sweep, the loss at low rate.
Leaves: a verdict in numbers and one sentence.
Must not know: how they were measured.

A link with a buffer delays before it loses. What polices a rate (a token bucket without a queue) loses and does not
delay: above its rate the same rate comes through whatever is offered, after a first burst that passes whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from waystage.stats import median
from waystage.wan.probing.points import Point
from waystage.wan.probing.sweep import Calm, calm_of, loses_more, queue_grows, queue_stands

Kind = Literal["queue", "policed", "cap", "machine", "loss"]

PINNED = 1.4
"""Above a policed rate the rate of arrivals differs by less than this."""

PLAIN_LOSS = 0.1
"""Loss above which a rate is clearly limited."""


@dataclass(frozen=True)
class Verdict:
    """The capacity of a direction.

    Rates in bit/s of whole packets, delays in ns, `burst_bytes` what a policer lets pass at first.
    """

    achievable_bps: float
    kind: Kind
    why: str
    bottleneck_bps: float | None = None
    burst_bytes: int | None = None
    queue_ns: int = 0
    most_queue_ns: int = 0


def verdict(
    carried: Sequence[Point],
    refused: Sequence[Point],
    *,
    base_ns: int,
    most_bps: float,
    cap: str,
    known_loss: float | None = None,
) -> Verdict:
    """From trains that the path carried and trains that it did not, each in ascending order.

    `cap` says who set `most_bps`; `known_loss` is that of a longer train at a low rate, where there was one.
    """
    best = max((min(p.offered_bps, p.target_bps * 1.02) for p in carried), default=0.0)
    queue = max(0, carried[-1].median_ns - base_ns) if carried else 0
    everything = [*carried, *refused]
    most_queue = max((p.p99_ns - base_ns for p in everything), default=0)
    if not refused:
        last = carried[-1] if carried else None
        if last is not None and last.machine is not None:
            return Verdict(best, "machine", last.machine, queue_ns=queue, most_queue_ns=most_queue)
        reached = f"the path carried the most that was tried, {most_bps / 1e6:.4g} Mbit/s ({cap})"
        return Verdict(best, "cap", reached, queue_ns=queue, most_queue_ns=most_queue)
    if refused[0].machine is not None:
        return Verdict(best, "machine", refused[0].machine, queue_ns=queue, most_queue_ns=most_queue)
    calm = calm_of(everything)
    if known_loss is not None:
        calm = replace(calm, loss=known_loss)
    through = [p.delivered_bps / max(1 - calm.loss, 0.01) for p in refused if loses_more(p, calm)]
    if any(queue_grows(p) or queue_stands(p, calm) for p in refused):
        why = "a link with a queue: above its rate packets wait, and are lost where the queue is full"
        rate = median(through) if through else None
        return Verdict(best, "queue", why, rate, queue_ns=queue, most_queue_ns=most_queue)
    cut = [p for p in refused if 1 - tail(p) > calm.loss + PLAIN_LOSS]
    rates = [policed_rate(p, calm) for p in cut]
    if rates and max(rates) <= PINNED * min(rates):
        # In the fastest trains the first burst was over soonest.
        fastest = [p for p in cut if p.offered_bps >= max(c.offered_bps for c in cut) / 2]
        rate = median([policed_rate(p, calm) for p in fastest])
        burst = max(burst_bytes(p, rate, calm) for p in fastest)
        why = (
            f"something polices the rate: above {rate / 1e6:.4g} Mbit/s packets are lost and none waits (or a link's buffer is "
            "too small to be seen)"
        )
        # What a first burst let pass is no rate that lasts.
        return Verdict(min(best, rate), "policed", why, rate, burst, queue, most_queue)
    why = "loss rises with the rate, and no packet waits: a shallow buffer, a policer, or others' traffic"
    return Verdict(best, "loss", why, None, queue_ns=queue, most_queue_ns=most_queue)


def tail(point: Point) -> float:
    """The share received of the last quarter of a train, after any initial burst."""
    last = point.parts[-max(1, len(point.parts) // 4) :]
    return sum(last) / len(last)


def policed_rate(point: Point, calm: Calm) -> float:
    """The rate of arrivals at the end of the train, corrected for the usual loss."""
    return point.offered_bps * tail(point) / max(1 - calm.loss, 0.01)


def burst_bytes(point: Point, rate_bps: float, calm: Calm) -> int:
    """The initial content of a token bucket: arrivals beyond its rate over the train."""
    if not point.offered_bps:
        return 0
    passed = point.received * point.packet_bytes / max(1 - calm.loss, 0.01)
    seconds = 8 * point.sent * point.packet_bytes / point.offered_bps
    return max(0, round(passed - rate_bps * seconds / 8))
