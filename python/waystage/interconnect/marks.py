"""Marks: packet headers that select the class of a packet.

Arrives: nothing, or the operator's own marks.
Leaves: `Mark` values and the match fields that recognise them.
Must not know: tables, topologies, senders.

Traffic without a mark is classified by its endpoints: from or to a storage host it is staging, else MPI.
"""

from __future__ import annotations

import msgspec

from waystage.events import TrafficClass
from waystage.interconnect.rules import Field

ETH_IPV4 = 0x0800
IP_PROTO_TCP = 6


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """IPv4 packets of this DSCP, or TCP segments from or to this port, are of class `traffic`. Give one of the two."""

    traffic: TrafficClass
    dscp: int | None = None
    tcp_port: int | None = None

    def __post_init__(self) -> None:
        if (self.dscp is None) == (self.tcp_port is None):
            raise ValueError(f"mark for {self.traffic}: give either a DSCP or a TCP port")
        if self.dscp is not None and not 0 < self.dscp < 64:
            raise ValueError(f"mark for {self.traffic}: DSCP {self.dscp} is not between 1 and 63")
        if self.tcp_port is not None and not 0 < self.tcp_port < 65536:
            raise ValueError(f"mark for {self.traffic}: TCP port {self.tcp_port} is not between 1 and 65535")

    @property
    def matches(self) -> tuple[tuple[Field, ...], ...]:
        """One set of match fields a rule: a TCP port is recognised at either end."""
        if self.dscp is not None:
            return ((Field("eth_type", ETH_IPV4), Field("ip_dscp", self.dscp)),)
        tcp = (Field("eth_type", ETH_IPV4), Field("ip_proto", IP_PROTO_TCP))
        port = self.tcp_port or 0
        return ((*tcp, Field("tcp_src", port)), (*tcp, Field("tcp_dst", port)))


DEFAULT_MARKS: tuple[Mark, ...] = (
    Mark(traffic="staging", dscp=10),
    Mark(traffic="io", dscp=12),
    Mark(traffic="wan", dscp=14),
    Mark(traffic="staging", tcp_port=8730),
    Mark(traffic="io", tcp_port=8731),
)
"""DSCP 10, 12 and 14 are the AF1x code points of bulk data (RFC 4594 section 4.8). The TCP ports are those
of the lab's staging and I/O services; a DSCP mark wins over a port."""
