"""Bytes counted late, redistributed to the interval in which they crossed the link.

Arrives: samples of ports in the order of time, what each port carries at most.
Leaves: the same samples, in which no port carries more than its link and no classes more than their port.
Must not know: who counted, what the classes are.

A switch counts what leaves a port at once, but adds what a flow entry matched only when it next reads its datapath's
flows, up to a second later (Open vSwitch revalidates every 500 ms), and a switch that missed a reading gives two intervals
in one. A sample then shows 125 Mbit/s on a link of 100. Counters are late and never early, so what is too much goes to the
intervals before, the nearest first; what the port's own reading came too early for goes to those after. What no
interval near has room for was matched and then dropped at the port's queue: it never crossed the link.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from waystage.experiment.results import PortSample

WHOLE = "all"
"""The port's own count among the classes."""

REACH, REACH_S = 4, 4.0
"""Intervals that a count may be away from its own, and their time: a flow entry that is idle is looked at every few
seconds.
"""

I64 = NDArray[np.int64]


def redistribute(
    samples: Sequence[PortSample], capacity_bps: Mapping[tuple[str, int], int]
) -> list[PortSample]:
    """Samples of any policies and sets; `capacity_bps` by node and port."""
    by_port: dict[tuple[str, int, str, int], list[PortSample]] = defaultdict(list)
    moments: dict[tuple[str, int], dict[float, float]] = defaultdict(dict)
    for sample in samples:
        by_port[sample.policy, sample.set, sample.node, sample.port].append(sample)
        moments[sample.policy, sample.set][sample.at_s] = sample.interval_s
    settled: list[PortSample] = []
    for (policy, number, node, port), mine in by_port.items():
        times = moments[policy, number]
        most_bps = capacity_bps.get((node, port))
        settled += _settle_port(mine, times, most_bps)
    settled.sort(key=lambda s: (s.policy, s.set, s.at_s, s.node, s.port, s.traffic))
    return settled


def _settle_port(
    samples: Sequence[PortSample], times: Mapping[float, float], most_bps: int | None
) -> list[PortSample]:
    at = sorted(times)
    place = {moment: i for i, moment in enumerate(at)}
    reach = max(REACH, round(REACH_S * len(at) / max(1e-9, sum(times.values()))))
    counts: dict[str, I64] = defaultdict(lambda: np.zeros(len(at), dtype=np.int64))
    for sample in samples:
        counts[sample.traffic][place[sample.at_s]] += sample.bytes
    classes = sorted(set(counts) - {WHOLE})
    known = WHOLE in counts
    whole = counts[WHOLE]
    if not known:
        for name in classes:
            whole += counts[name]
    if most_bps is not None:
        room = np.array([int(most_bps * times[moment] / 8) for moment in at], dtype=np.int64)
        whole += _spread(whole, room, reach)  # it is right in sum: where no interval has room, it stays
    if known:
        _fit_classes([counts[name] for name in classes], whole, reach)
    first = samples[0]
    return [
        PortSample(
            policy=first.policy,
            set=first.set,
            at_s=moment,
            interval_s=times[moment],
            node=first.node,
            port=first.port,
            peer=first.peer,
            traffic=name,
            bytes=int(counts[name][i]),
            core=first.core,
        )
        for i, moment in enumerate(at)
        for name in ([WHOLE, *classes] if known else classes)
        if counts[name][i]
    ]


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
