"""The extent of a probe.

Arrives: the user's options.
Leaves: durations, counts and bounds of each step.
Must not know: sessions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Direction = Literal["up", "down"]
"""From this host to the server, and back."""

Part = Literal["rtt", "mtu", "rate", "loss", "tcp"]

PARTS: tuple[Part, ...] = ("rtt", "mtu", "rate", "loss", "tcp")


@dataclass(frozen=True)
class Plan:
    """The measurements and their durations. Rates are bit/s of whole packets.

    `duration_s` is what each direction's loss is measured for, at `loss_bps` if given; the rest follows from it.
    """

    directions: tuple[Direction, ...] = ("up", "down")
    parts: tuple[Part, ...] = PARTS
    duration_s: float = 10.0
    most_bps: float = 1e9
    loss_bps: float | None = None
    udp_wait_s: float = 3.0

    @property
    def echo_interval_s(self) -> float:
        """Fifty small packets a second disturb no other traffic."""
        return 0.02

    @property
    def echo_count(self) -> int:
        """At least 100, so that there is a 99th percentile."""
        return max(100, round(self.duration_s / 2 / self.echo_interval_s))

    @property
    def train_s(self) -> float:
        """Of a train of the sweep: a rate that is 1 % too high makes a queue of 10 ms in a second."""
        return min(2.0, max(0.3, self.duration_s / 10))

    @property
    def stream_s(self) -> float:
        """Of the comparison with TCP, which needs seconds to reach its rate."""
        return max(1.0, self.duration_s / 2)

    @property
    def start_bps(self) -> float:
        """The first rate of the sweep."""
        return min(1e6, self.most_bps)


LOSS_PACKET_BYTES = 400
"""Packet size of loss measurements, with all headers: small, to send many at a low rate."""

LOSS_PACKETS_PER_S = 10_000
"""The most packets per second: in 10 s a loss of 10 % is known within 0.2 points with 95 % confidence."""

LOSS_SHARE = 0.4
"""Share of the path's rate at which loss is measured: below any congestion."""

UNKNOWN_BPS = 8e6
"""The rate of the loss measurement where the path's rate is unknown."""
