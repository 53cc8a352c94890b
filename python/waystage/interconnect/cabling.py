"""Builds a topology from the cables that LLDP discovered.

Arrives: switches with their ports, who heard whom, hosts that announced themselves.
Leaves: a `Topology`; the node that an announcement stands for.
Must not know: time, connections, rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from waystage.events import HostSeen
from waystage.topology import Host, Link, Role, Switch, Topology, TopologyError, natural_key

ASSUMED_BPS = 10**9
"""Capacity of a port of unknown speed."""


class Port(msgspec.Struct, frozen=True, kw_only=True):
    """A switch port: whether it is enabled and has carrier, and its speed, 0 where unknown."""

    up: bool
    speed_bps: int = 0


def host_named(topology: Topology, name: str, mac: str) -> str | None:
    """The topology's host for a system name, with or without its domain, or else for an address."""
    for candidate in (name, name.split(".")[0]):
        if candidate in topology.host_by_name:
            return candidate
    return next((host.name for host in topology.hosts if host.mac is not None and host.mac == mac), None)


def assemble(
    switches: Mapping[int, Mapping[int, Port]],
    heard: Mapping[tuple[int, int], tuple[int, int]],
    hosts: Iterable[HostSeen],
    storage: frozenset[str],
    before: Topology | None = None,
) -> Topology | None:
    """The connected component with the most hosts; None before there is one.

    A cable counts when both ends have received each other's frames. Cables, switches and hosts of `before` are kept, so
    that temporary failures change neither the topology nor the labels.
    """
    names = {dpid: f"s{dpid:x}" for dpid in switches}
    links: dict[frozenset[tuple[str, int]], Link] = {}
    found_hosts: dict[str, Host] = {}
    found_switches = {name: Switch(name=name, dpid=dpid) for dpid, name in names.items()}
    for (dpid, port), (peer, peer_port) in sorted(heard.items()):
        if heard.get((peer, peer_port)) != (dpid, port) or (dpid, port) > (peer, peer_port):
            continue
        speed = _speed(switches, (dpid, port), (peer, peer_port))
        _add(links, Link(a=names[dpid], a_port=port, b=names[peer], b_port=peer_port, capacity_bps=speed))
    dpids = {name: dpid for dpid, name in names.items()}
    taken: set[str | None] = set()
    for seen in sorted(hosts, key=lambda h: natural_key(h.host)):
        role: Role = "storage" if seen.host in storage else "compute"
        # Of two hosts with one address the first has it, or no topology could be made at all.
        mac, ip = (None if address in taken else address for address in (seen.mac, seen.ip))
        taken |= {mac, ip}
        found_hosts[seen.host] = Host(name=seen.host, role=role, mac=mac, ip=ip)
        speed = _speed(switches, (dpids.get(seen.switch, 0), seen.port))
        _add(links, Link(a=seen.host, a_port=1, b=seen.switch, b_port=seen.port, capacity_bps=speed))
    if before is not None:
        found_switches = before.switch_by_name | found_switches
        found_hosts = before.host_by_name | found_hosts
        for link in before.links:
            _add(links, link)
    return _largest(found_hosts, found_switches, list(links.values()))


def _add(links: dict[frozenset[tuple[str, int]], Link], link: Link) -> None:
    """Add the cable unless one of its ports is taken; call in order of the latest frame first."""
    ends = {(link.a, link.a_port), (link.b, link.b_port)}
    if not any(ends & taken for taken in links):
        links[frozenset(ends)] = link


def _speed(switches: Mapping[int, Mapping[int, Port]], *ends: tuple[int, int]) -> int:
    speeds = [switches[d][p].speed_bps for d, p in ends if d in switches and p in switches[d]]
    return min((speed for speed in speeds if speed > 0), default=ASSUMED_BPS)


def _largest(hosts: dict[str, Host], switches: dict[str, Switch], links: list[Link]) -> Topology | None:
    at: dict[str, list[str]] = {}
    for link in links:
        at.setdefault(link.a, []).append(link.b)
        at.setdefault(link.b, []).append(link.a)
    best: set[str] = set()
    left = set(hosts)
    while left:
        part, edge = set(), [min(left)]
        while edge:
            node = edge.pop()
            if node not in part:
                part.add(node)
                edge += at.get(node, [])
        left -= part | {min(left)}
        if len(part & hosts.keys()) > len(best & hosts.keys()):
            best = part
    try:
        return Topology.build(
            "discovered",
            (host for name, host in hosts.items() if name in best),
            (switch for name, switch in switches.items() if name in best),
            (link for link in links if link.a in best and link.b in best),
        )
    except TopologyError:
        return None  # not enough was heard yet
