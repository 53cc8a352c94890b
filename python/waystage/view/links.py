"""The topology in tiers, and the use of its links by class.

Arrives: a topology; `LinkUse` events; links that are down.
Leaves: the shape of the topology and a row for each link.
Must not know: frames, pages.

Above `collapse_above` hosts, the hosts of an edge switch are one node and their links one row: the sum of them.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from waystage.events import CLASSES, LinkUse, TrafficClass
from waystage.topology import Topology
from waystage.view.frames import Row

COLLAPSE_ABOVE = 1000
"""Hosts; more are drawn by edge switch."""

Use = list[int]
"""bit/s of the whole port, then of each class in the order of `CLASSES`."""


class Links:
    """`rows`: link -> use in both directions, `ab` and `ba`, and whether it is down."""

    def __init__(self, collapse_above: int = COLLAPSE_ABOVE) -> None:
        self.rows: dict[str, Row] = {}
        self.time = 0
        self._collapse_above = collapse_above
        self._topology: Topology | None = None
        self._collapsed = False
        self._ports: dict[tuple[str, int], tuple[str, str]] = {}
        self._key_of: dict[str, str] = {}
        self._hosts: dict[tuple[str, int], tuple[str, str]] = {}
        self._host_use: dict[str, dict[str, Use]] = {}

    def show(self, topology: Topology) -> bool:
        """Whether it is another topology than before."""
        if topology == self._topology:
            return False
        self._topology = topology
        self._collapsed = len(topology.hosts) > self._collapse_above
        self.rows, self._ports, self._key_of = {}, {}, {}
        self._hosts, self._host_use = {}, {}
        hosts = topology.host_by_name
        for link in topology.links:
            host = link.a if link.a in hosts else link.b if link.b in hosts else None
            key, a, b = link.name, (link.a, link.a_port), (link.b, link.b_port)
            if self._collapsed and host is not None:
                switch = link.other(host)
                key = f"{switch}:hosts"
                a, b = (host, link.port_at(host)), (switch, link.port_at(switch))
                self._hosts |= {a: (host, "from"), b: (host, "to")}
            self._ports[a], self._ports[b] = (key, "ab"), (key, "ba")
            self._key_of[link.name] = key
            self.rows.setdefault(key, {})
        return True

    def shape(self) -> Row | None:
        """Nodes with their tier (hosts 0, edge switches 1, ...) and links with their ends; None before one is known."""
        topology = self._topology
        if topology is None:
            return None
        level = topology.level
        nodes: list[Row] = [
            {"id": s.name, "kind": "switch", "tier": level.get(s.name, 0) + 1} for s in topology.switches
        ]
        links: list[Row] = []
        if self._collapsed:
            for switch, names in topology.hosts_at.items():
                key = f"{switch}:hosts"
                found = [topology.host_by_name[name] for name in names]
                storage = sum(host.role == "storage" for host in found)
                nodes.append(
                    {
                        "id": key,
                        "kind": "hosts",
                        "tier": 0,
                        "count": len(found),
                        "storage": storage,
                        "at": switch,
                    }
                )
                capacity = sum(
                    link.capacity_bps for link in topology.adjacency[switch] if link.other(switch) in names
                )
                links.append({"id": key, "a": key, "b": switch, "bps": capacity})
        else:
            at = {name: switch for name, (switch, _) in topology.attachment.items()}
            nodes += [
                {"id": h.name, "kind": h.role, "tier": 0, "at": at.get(h.name, "")} for h in topology.hosts
            ]
        for link in topology.links:
            if self._key_of[link.name] == link.name:
                links.append({"id": link.name, "a": link.a, "b": link.b, "bps": link.capacity_bps})
        return {
            "name": topology.name,
            "hosts": len(topology.hosts),
            "collapsed": self._collapsed,
            "nodes": nodes,
            "links": links,
        }

    def use(self, event: LinkUse, time_ms: int) -> Iterable[str]:
        """Fold the use of ports; the rows that it changes."""
        if event.interval_ns <= 0:
            return ()
        self.time = time_ms
        scale = 8e9 / event.interval_ns
        sums: dict[tuple[str, str], Use] = {}
        for port in event.ports:
            place = (port.node, port.port)
            known = self._ports.get(place)
            if known is None:
                continue
            found = [round(port.bytes * scale), *(_class(port.by_class, c, scale) for c in CLASSES)]
            if place in self._hosts:
                host, way = self._hosts[place]
                self._host_use.setdefault(host, {})[way] = found
            before = sums.get(known)
            sums[known] = found if before is None else [a + b for a, b in zip(before, found, strict=True)]
        changed: dict[str, None] = {}
        for (key, way), total in sums.items():
            row = self.rows[key]
            rounded = [_round(value) for value in total] if any(total) else []
            if row.get(way, []) != rounded:
                self.rows[key] = (
                    row | {way: rounded} if rounded else {k: v for k, v in row.items() if k != way}
                )
                changed[key] = None
        return changed

    def set_down(self, down: Container[str]) -> Iterable[str]:
        """Mark links as down or up; the rows that it changes. Of collapsed links, a number."""
        counts = dict.fromkeys(self.rows, 0)
        for name, key in self._key_of.items():
            counts[key] += name in down
        changed = []
        for key, count in counts.items():
            row = self.rows[key]
            if row.get("down", 0) != count:
                self.rows[key] = (
                    row | {"down": count} if count else {k: v for k, v in row.items() if k != "down"}
                )
                changed.append(key)
        return changed

    def idle(self) -> None:
        """Nothing moves."""
        self.rows = {key: {} for key in self.rows}

    def hosts_at(self, switch: str) -> list[Row]:
        """The hosts of an edge switch, with what each sends and receives."""
        topology = self._topology
        if topology is None:
            return []
        return [
            {"host": name, "role": topology.host_by_name[name].role, **self._host_use.get(name, {})}
            for name in topology.hosts_at.get(switch, ())
        ]


def _class(by_class: dict[TrafficClass, int], traffic: TrafficClass, scale: float) -> int:
    return round(by_class.get(traffic, 0) * scale)


def _round(value: int) -> int:
    """Three digits: more are noise of the counters, and cost memory in the history."""
    digits = len(str(value)) - 3
    return round(value, -digits) if digits > 0 else value
