"""The result of one train.

Arrives: packets sent and received, as `WanProbe.train` has it.
Leaves: rates, shares and delays of one train.
Must not know: other trains, sessions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

GIVEN_UP = 0.1
"""A sender that lost more of a train's time than this did not reach the requested rate."""

MOST_DROPPED = 0.001
"""The share that the receiving machine may drop unnoticed: results are then within a tenth of a point."""

Z95 = 1.96
"""Half of the width of a 95 % interval, in standard deviations."""


@dataclass(frozen=True)
class Point:
    """A train: rates in bit/s of whole packets, delays in ns.

    Delays are of two clocks, so that only differences between trains of one direction mean anything. `growth` is by
    how much each second of sending made the delay longer: a queue that grows. `flat` is how sure that is: the same
    for what is left when the trend is taken away.
    """

    target_bps: float
    offered_bps: float
    delivered_bps: float
    sent: int
    received: int
    lost: int
    duplicated: int
    reordered: int
    reordered_by: int
    damaged: int
    bare: bool
    least_ns: int
    median_ns: int
    p99_ns: int
    most_ns: int
    growth: float
    grown_ns: float
    wavering_ns: float
    at_ns: int
    packet_bytes: int
    parts: tuple[float, ...]
    """The received share of each part of the train."""
    machine: str | None = None
    """The limit in the two machines, rather than the path; None where there was none."""
    spoilt: bool = False
    """Whether the receiving machine dropped too many packets for the counts to be valid."""

    @property
    def loss(self) -> float:
        """The share that was not received, damaged or not."""
        return self.lost / self.sent if self.sent else 0.0

    @property
    def loss_range(self) -> tuple[float, float]:
        """The 95 % confidence interval of the path's loss (Wilson)."""
        return wilson(self.lost, self.sent)

    def shifted(self, ns: int) -> Point:
        """The same with delays corrected for clock drift."""
        return replace(
            self,
            least_ns=self.least_ns + ns,
            median_ns=self.median_ns + ns,
            p99_ns=self.p99_ns + ns,
            most_ns=self.most_ns + ns,
        )


def point(found: Any, target_bps: float, packet_bytes: int, up: bool) -> Point:
    """From the result of `WanProbe.train`; `packet_bytes` includes the IP and UDP headers."""
    sent, received = found["sent"], found["received"]
    bits = 8 * packet_bytes
    send_ns = found["last_sent_ns"] - found["first_sent_ns"]
    come_ns = found["last_received_ns"] - found["first_received_ns"]
    offered = (sent - 1) * bits * 1e9 / send_ns if sent > 1 and send_ns > 0 else 0.0
    # What is dropped at the receiving machine has crossed the path.
    lost = max(0, sent - received - found["damaged"] - found["dropped_here"])
    delivered = (received - 1) * bits * 1e9 / come_ns if received > 1 and come_ns > 0 else 0.0
    parts = found["parts"]
    share = [part[0] * len(parts) / sent if sent else 0.0 for part in parts]
    slope, grown, wavering = trend([part[2] for part in parts], [part[0] for part in parts], send_ns)
    least, median, p99, most = found["delays_ns"]
    return Point(
        target_bps=target_bps,
        offered_bps=offered,
        # A train whose end was lost took no shorter to come.
        delivered_bps=min(delivered, offered) if offered else delivered,
        sent=sent,
        received=received,
        lost=lost,
        duplicated=found["duplicated"],
        reordered=found["reordered"],
        reordered_by=found["reordered_by"],
        damaged=found["damaged"],
        bare=found["bare"],
        least_ns=least,
        median_ns=median,
        p99_ns=p99,
        most_ns=most,
        growth=slope,
        grown_ns=grown,
        wavering_ns=wavering,
        at_ns=found["first_sent_ns"] if up else found["first_received_ns"],
        packet_bytes=packet_bytes,
        parts=tuple(round(s, 4) for s in share),
        machine=machine_limit(found, send_ns),
        spoilt=found["dropped_here"] > MOST_DROPPED * sent,
    )


def machine_limit(found: Any, send_ns: int) -> str | None:
    """Effects of the machines rather than the path, in words."""
    if found["refused"]:
        return f"the sending machine's kernel did not take {found['refused']} packets"
    if found["given_up_ns"] > GIVEN_UP * max(send_ns, 1):
        return "the sending machine was too slow for this rate"
    if found["dropped_here"]:
        return f"the receiving machine did not read {found['dropped_here']} packets in time"
    return None


def trend(delays: Sequence[int], weights: Sequence[int], send_ns: int) -> tuple[float, float, float]:
    """Least squares through the parts' mean delays, by how many packets each has.

    The slope, in ns for each ns of sending; by how much the delay grew over the train; and the standard deviation
    of what is left.
    """
    total = sum(weights)
    used = [(i, d, w) for i, (d, w) in enumerate(zip(delays, weights, strict=True)) if w]
    if len(used) < 3 or send_ns <= 0:
        return 0.0, 0.0, 0.0
    origin = used[0][1]
    mean_x = sum(w * i for i, _, w in used) / total
    mean_y = sum(w * (d - origin) for _, d, w in used) / total
    square = sum(w * (i - mean_x) ** 2 for i, _, w in used)
    slope = sum(w * (i - mean_x) * (d - origin - mean_y) for i, d, w in used) / square
    rest = sum(w * (d - origin - mean_y - slope * (i - mean_x)) ** 2 for i, d, w in used) / total
    step_ns = send_ns / len(delays)
    return slope / step_ns, slope * len(delays), math.sqrt(rest)


def wilson(hits: int, of: int, z: float = Z95) -> tuple[float, float]:
    """Wilson's 95 % confidence interval for a share."""
    if of == 0:
        return 0.0, 1.0
    share, square = hits / of, z * z / of
    middle = (share + square / 2) / (1 + square)
    half = z * math.sqrt(share * (1 - share) / of + square / (4 * of)) / (1 + square)
    # Rounding must not put a bound past the share itself: at 0 and 1 they are the same.
    return max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half))
