"""Link utilization from flow and port counters.

Arrives: what switches have counted by flow entry and by port, sample after sample.
Leaves: bytes that left each port in an interval, in all and by class, and drops; consecutive ones as `LinkUse` events.
Must not know: sockets, threads, which rules there are; it reads cookies only.

A rule's cookie says whether it counts received or sent packets of a port. Traffic received
at one port of a cable left the opposite port, so the rules of either port give the use of both directions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from waystage.events import LinkUse, PortUse, TrafficClass, UsePart
from waystage.interconnect import cookies
from waystage.topology import Topology


class FlowLike(Protocol):
    """A flow entry's counters: the same `key` is the same entry."""

    @property
    def key(self) -> bytes: ...
    @property
    def cookie(self) -> int: ...
    @property
    def bytes(self) -> int: ...


class PortLike(Protocol):
    """A port's counters since the switch started."""

    @property
    def port(self) -> int: ...
    @property
    def rx_packets(self) -> int: ...
    @property
    def tx_packets(self) -> int: ...
    @property
    def rx_bytes(self) -> int: ...
    @property
    def tx_bytes(self) -> int: ...
    @property
    def rx_dropped(self) -> int: ...
    @property
    def tx_dropped(self) -> int: ...


Sample = tuple[Iterable[FlowLike], Iterable[PortLike]]
"""Counters of one switch, by flow entry and by port."""


class _Total(msgspec.Struct):
    """Traffic out of one port of a cable in the interval; None if only the opposite port can count it."""

    bytes: int = 0
    packets: int = 0
    drops: int = 0
    sent: dict[TrafficClass, int] = {}
    arrived: dict[TrafficClass, int] = {}


class Counters:
    """Keeps the previous sample of each switch; `sample` returns the difference."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._flows: dict[tuple[str, bytes, int], int] = {}
        self._ports: dict[tuple[str, int], tuple[int, ...]] = {}
        self._known: set[str] = set()
        self._time_ns = 0
        self._ends: dict[tuple[str, int], tuple[str, int]] = {}
        for link in topology.links:
            self._ends[link.a, link.a_port] = (link.b, link.b_port)
            self._ends[link.b, link.b_port] = (link.a, link.a_port)

    def sample(self, time_ns: int, switches: Mapping[str, Sample]) -> UsePart | None:
        """The use since the last sample, by end of cable; None for the first sample.

        A switch missing in the sample is omitted; its next sample covers the longer interval.
        """
        totals: dict[tuple[str, int], _Total] = {}
        for switch, (flows, ports) in switches.items():
            self._take_ports(switch, ports, totals)
            self._take_flows(switch, flows, totals)
        before, self._time_ns = self._time_ns, time_ns
        if before == 0 or time_ns <= before:
            return None
        uses = [
            PortUse(
                node=node,
                port=port,
                bytes=total.bytes,
                packets=total.packets,
                drops=total.drops,
                by_class=_larger(total.sent, total.arrived),
            )
            for (node, port), total in sorted(totals.items())
        ]
        return UsePart(interval_ns=time_ns - before, ports=tuple(uses))

    def arrived(self, switch: str, ports: Iterable[PortLike]) -> list[int]:
        """Ports by which packets came in since the last sample; call before `sample`."""
        return [
            count.port
            for count in ports
            if (before := self._ports.get((switch, count.port))) and count.rx_packets > before[-1]
        ]

    def _take_ports(
        self, switch: str, ports: Iterable[PortLike], totals: dict[tuple[str, int], _Total]
    ) -> None:
        for count in ports:
            end = (switch, count.port)
            if end not in self._ends:
                continue
            now = (count.tx_bytes, count.tx_packets, count.tx_dropped, count.rx_bytes, count.rx_packets)
            before = self._ports.get(end)
            self._ports[end] = now
            if before is None:
                continue
            tx_bytes, tx_packets, drops, rx_bytes, rx_packets = map(_since, before, now)
            total = totals.setdefault(end, _Total())
            total.bytes, total.packets, total.drops = tx_bytes, tx_packets, drops
            far = self._ends[end]
            if far[0] in self._topology.host_by_name:  # hosts count nothing themselves
                totals[far] = _Total(bytes=rx_bytes, packets=rx_packets)

    def _take_flows(
        self, switch: str, flows: Iterable[FlowLike], totals: dict[tuple[str, int], _Total]
    ) -> None:
        seen: dict[tuple[str, bytes, int], int] = {}
        known = switch in self._known
        self._known.add(switch)
        for flow in flows:
            cookie = cookies.decode(flow.cookie)
            if cookie is None or cookie.kind == "none" or cookie.traffic is None:
                continue
            key = (switch, flow.key, flow.cookie)
            seen[key] = flow.bytes
            end = (switch, cookie.port)
            # Counts before the first reading of a switch belong to no interval.
            grown = _since(self._flows.get(key, 0), flow.bytes) if known else 0
            if not grown or end not in self._ends:
                continue
            if cookie.kind == "tx":
                sent = totals.setdefault(end, _Total()).sent
                sent[cookie.traffic] = sent.get(cookie.traffic, 0) + grown
            else:
                arrived = totals.setdefault(self._ends[end], _Total()).arrived
                arrived[cookie.traffic] = arrived.get(cookie.traffic, 0) + grown
        self._flows = {key: value for key, value in self._flows.items() if key[0] != switch} | seen


def together(parts: Sequence[UsePart]) -> LinkUse:
    """Consecutive intervals as one, with the parts where there are several."""
    sums: dict[tuple[str, int], PortUse] = {}
    for part in parts:
        for use in part.ports:
            before = sums.get((use.node, use.port))
            sums[use.node, use.port] = use if before is None else _sum(before, use)
    return LinkUse(
        interval_ns=sum(part.interval_ns for part in parts),
        ports=tuple(use for _, use in sorted(sums.items())),
        parts=tuple(parts) if len(parts) > 1 else (),
    )


def _sum(a: PortUse, b: PortUse) -> PortUse:
    return PortUse(
        node=a.node,
        port=a.port,
        bytes=a.bytes + b.bytes,
        packets=a.packets + b.packets,
        drops=a.drops + b.drops,
        by_class={c: a.by_class.get(c, 0) + b.by_class.get(c, 0) for c in sorted(a.by_class | b.by_class)},
    )


def _since(before: int, now: int) -> int:
    """Growth of a counter; one that fell was reset, and has counted `now` since."""
    return now - before if now >= before else now


def _larger(a: dict[TrafficClass, int], b: dict[TrafficClass, int]) -> dict[TrafficClass, int]:
    """Both ends of a cable may count the same bytes: take each class once."""
    return {c: max(a.get(c, 0), b.get(c, 0)) for c in sorted(a.keys() | b.keys())}
