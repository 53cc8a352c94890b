"""The interconnect as a graph: hosts, switches, links and the paths between them.

Arrives: names, ports and capacities, from a GraphML file, from discovery, or over the backplane.
Leaves: validated, immutable `Topology` values and pure graph queries on them.
Must not know: files, sockets, OpenFlow, policies.

Every query is deterministic: neighbours, switches and ports are visited in sorted order, so that
the same topology gives the same paths, labels and rules on every machine and after every restart.
"""

from __future__ import annotations

import functools
import heapq
import ipaddress
import math
import re
from collections import deque
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Literal

import msgspec

from waystage.units import UnitError, parse_bit_rate

Role = Literal["compute", "storage"]

NAME_PATTERN = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")


SLOWEST_MBPS = 10.0
"""A capacity below 10 Mbit/s, that of the first Ethernet, is probably in Gbit/s with the unit missing."""


def parse_megabits(value: object) -> float:
    """`100`, `100 Mbit/s` or `0.1 Gbit/s` -> 100.0: a bare number is in Mbit/s. Raises ValueError."""
    text = str(value)
    try:
        megabits = float(text) if "_" not in text else math.nan
    except ValueError:
        try:
            megabits = parse_bit_rate(text) / 1e6
        except UnitError:
            megabits = math.nan
    if not math.isfinite(megabits) or isinstance(value, bool):
        raise ValueError("give a number above zero, in Mbit/s, or with a unit such as 100 Gbit/s")
    return megabits


def format_rate(bits_per_s: float) -> str:
    """1e9 -> `1 Gbit/s`."""
    for unit, factor in (("Tbit/s", 1e12), ("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)):
        if bits_per_s >= factor:
            return f"{bits_per_s / factor:.4g} {unit}"
    return f"{bits_per_s:.4g} bit/s"


def slow_links(rates_bps: Iterable[float]) -> str:
    """A warning if links are implausibly slow, else an empty string."""
    slowest = min(rates_bps, default=SLOWEST_MBPS * 1e6)
    if slowest >= SLOWEST_MBPS * 1e6:
        return ""
    return (
        f"links carry {format_rate(slowest)}, since a capacity without a unit is in Mbit/s: "
        f"write {slowest / 1e6:g} Gbit/s if that is intended"
    )


class TopologyError(ValueError):
    """An unusable topology; the message names the node, port or link and the fix."""


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """A compute or storage host; `slots` is the number of processes it runs concurrently."""

    name: str
    role: Role = "compute"
    slots: int = 1
    mac: str | None = None
    ip: str | None = None


class Switch(msgspec.Struct, frozen=True, kw_only=True):
    """An OpenFlow switch; `dpid` is its 64-bit datapath id."""

    name: str
    dpid: int


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """A full-duplex cable; `capacity_bps` is per direction. A host's port is 1."""

    a: str
    a_port: int
    b: str
    b_port: int
    capacity_bps: int

    @property
    def name(self) -> str:
        """A stable name, `edge1:1-core1:2`, used in messages, events and results."""
        return f"{self.a}:{self.a_port}-{self.b}:{self.b_port}"

    def other(self, node: str) -> str:
        return self.b if node == self.a else self.a

    def port_at(self, node: str) -> int:
        return self.a_port if node == self.a else self.b_port


class Topology(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Hosts, switches and links; build with `Topology.build`, which validates."""

    name: str
    hosts: tuple[Host, ...]
    switches: tuple[Switch, ...]
    links: tuple[Link, ...]

    @classmethod
    def build(
        cls, name: str, hosts: Iterable[Host], switches: Iterable[Switch], links: Iterable[Link]
    ) -> Topology:
        """Sort and validate. Raises TopologyError."""
        topology = cls(
            name=name,
            hosts=tuple(sorted(hosts, key=lambda h: natural_key(h.name))),
            switches=tuple(sorted(switches, key=lambda s: natural_key(s.name))),
            links=tuple(sorted(links, key=lambda link: natural_key(link.name))),
        )
        _validate(topology)
        return topology

    # -- look-ups ---------------------------------------------------------------------------

    @cached_property
    def _hash(self) -> int:
        return hash((self.name, self.hosts, self.switches, self.links))

    def __hash__(self) -> int:
        """Cached, because results derived from a topology are looked up by it at each decision."""
        return self._hash

    @cached_property
    def host_by_name(self) -> dict[str, Host]:
        return {host.name: host for host in self.hosts}

    @cached_property
    def switch_by_name(self) -> dict[str, Switch]:
        return {switch.name: switch for switch in self.switches}

    @cached_property
    def switch_by_dpid(self) -> dict[int, Switch]:
        return {switch.dpid: switch for switch in self.switches}

    @cached_property
    def host_index(self) -> dict[str, int]:
        """Position of each host in sorted order: the 'D' of D-mod-K."""
        return {host.name: index for index, host in enumerate(self.hosts)}

    @cached_property
    def storage_hosts(self) -> tuple[str, ...]:
        return tuple(h.name for h in self.hosts if h.role == "storage")

    @cached_property
    def compute_hosts(self) -> tuple[str, ...]:
        return tuple(h.name for h in self.hosts if h.role == "compute")

    @property
    def nodes(self) -> tuple[Host | Switch, ...]:
        """Hosts, then switches."""
        return self.hosts + self.switches

    @cached_property
    def adjacency(self) -> dict[str, tuple[Link, ...]]:
        """Links at each node, ordered by the port they leave from."""
        at: dict[str, list[Link]] = {n.name: [] for n in self.nodes}
        for link in self.links:
            at[link.a].append(link)
            at[link.b].append(link)
        return {n: tuple(sorted(ls, key=lambda link: link.port_at(n))) for n, ls in at.items()}

    @cached_property
    def attachment(self) -> dict[str, tuple[str, int]]:
        """host -> (edge switch, port on that switch). Hosts have one link each."""
        found: dict[str, tuple[str, int]] = {}
        for host in self.hosts:
            for link in self.adjacency[host.name]:
                switch = link.other(host.name)
                found[host.name] = (switch, link.port_at(switch))
        return found

    @cached_property
    def hosts_at(self) -> dict[str, tuple[str, ...]]:
        """edge switch -> its hosts in port order; switches without hosts are absent."""
        at: dict[str, list[tuple[int, str]]] = {}
        for host, (switch, port) in self.attachment.items():
            at.setdefault(switch, []).append((port, host))
        return {switch: tuple(h for _, h in sorted(pairs)) for switch, pairs in at.items()}

    @cached_property
    def edge_switches(self) -> tuple[str, ...]:
        """Switches with hosts, in sorted order."""
        return tuple(s.name for s in self.switches if s.name in self.hosts_at)

    @cached_property
    def switch_links(self) -> tuple[Link, ...]:
        """Links between two switches."""
        names = self.switch_by_name
        return tuple(link for link in self.links if link.a in names and link.b in names)

    @cached_property
    def uplink_ports(self) -> frozenset[tuple[str, int]]:
        """Edge switch and port of every link from one towards another switch."""
        ends = [end for link in self.switch_links for end in ((link.a, link.a_port), (link.b, link.b_port))]
        return frozenset(end for end in ends if end[0] in self.hosts_at)

    @cached_property
    def level(self) -> dict[str, int]:
        """switch -> hops to the nearest edge switch: 0 at the edge, the core highest."""
        level = dict.fromkeys(self.edge_switches, 0)
        queue = deque(self.edge_switches)
        while queue:
            at = queue.popleft()
            for neighbour in self.neighbour_switches(at):
                if neighbour not in level:
                    level[neighbour] = level[at] + 1
                    queue.append(neighbour)
        return level

    @cached_property
    def core_switches(self) -> tuple[str, ...]:
        """Switches of the highest level (the roots of a fat tree); all switches where there is one level."""
        top = max(self.level.values(), default=0)
        return tuple(s.name for s in self.switches if self.level.get(s.name) == top)

    # -- graph ------------------------------------------------------------------------------

    def neighbour_switches(self, node: str) -> list[str]:
        """Neighbouring switches in port order, each once."""
        names = (link.other(node) for link in self.adjacency[node])
        return list(dict.fromkeys(n for n in names if n in self.switch_by_name))

    def link_between(self, a: str, b: str) -> Link:
        """The first link, by port, from `a` to `b`. Raises KeyError where there is none."""
        for link in self.adjacency[a]:
            if link.other(a) == b:
                return link
        raise KeyError(f"no link between {a} and {b}")

    def without(self, links: Iterable[str] = (), switches: Iterable[str] = ()) -> Topology:
        """The same nodes without the named links and the links of the named switches."""
        gone_links, gone_switches = frozenset(links), frozenset(switches)
        return _without(self, gone_links, gone_switches) if gone_links or gone_switches else self

    def distances(self, source: str, avoid: frozenset[str] = frozenset()) -> dict[str, int]:
        """Hops from `source` to every node reached through switches outside `avoid`."""
        found = {source: 0}
        queue = deque([source])
        while queue:
            at = queue.popleft()
            if at in self.host_by_name and at != source:
                continue  # hosts do not forward
            for link in self.adjacency[at]:
                neighbour = link.other(at)
                if neighbour not in found and neighbour not in avoid:
                    found[neighbour] = found[at] + 1
                    queue.append(neighbour)
        return found

    def dijkstra(
        self,
        src: str,
        dst: str,
        *,
        avoid: frozenset[str] = frozenset(),
        weight: Callable[[Link, str], float] | None = None,
    ) -> tuple[str, ...] | None:
        """The lightest path src..dst over switches outside `avoid`, or None.

        `weight(link, from_node)` is one per hop by default. Ties go to the smaller name, so the
        answer is the same everywhere.
        """
        best: dict[str, float] = {src: 0.0}
        heap: list[tuple[float, tuple[str, ...]]] = [(0.0, (src,))]
        while heap:
            cost, path = heapq.heappop(heap)
            at = path[-1]
            if at == dst:
                return path
            if cost > best[at] or (at in self.host_by_name and at != src):
                continue
            for link in self.adjacency[at]:
                neighbour = link.other(at)
                if neighbour in avoid:
                    continue
                total = cost + (1.0 if weight is None else weight(link, at))
                if total < best.get(neighbour, float("inf")):
                    best[neighbour] = total
                    heapq.heappush(heap, (total, (*path, neighbour)))
        return None

    def shortest_paths(self, src: str, dst: str) -> list[tuple[str, ...]]:
        """Every path of least hops, sorted by node names: the candidates of ECMP (RFC 2991)."""
        to_dst = self.distances(dst)
        if src not in to_dst:
            return []
        paths: list[tuple[str, ...]] = [(src,)]
        for remaining in range(to_dst[src] - 1, -1, -1):
            step: list[tuple[str, ...]] = []
            for path in paths:
                names = {link.other(path[-1]) for link in self.adjacency[path[-1]]}
                step += [(*path, n) for n in sorted(names) if to_dst.get(n) == remaining]
            paths = step
        return paths


@functools.lru_cache(maxsize=16)
def _without(whole: Topology, links: frozenset[str], switches: frozenset[str]) -> Topology:
    """Cached with its derived tables, because a failure lasts for many events."""
    kept = tuple(link for link in whole.links if link.name not in links and not {link.a, link.b} & switches)
    return Topology(name=whole.name, hosts=whole.hosts, switches=whole.switches, links=kept)


def natural_key(text: str) -> tuple[tuple[int, int | str], ...]:
    """Sort key that puts `c2` before `c10`."""
    return tuple((0, int(p)) if p.isdigit() else (1, p) for p in re.split(r"(\d+)", text) if p)


def _validate(topology: Topology) -> None:
    nodes: set[str] = set()
    for node in topology.nodes:
        if not NAME_PATTERN.match(node.name):
            raise TopologyError(
                f"node name {node.name!r}: use 1 to 63 letters, digits, '_', '.' or '-', starting with a letter or digit"
            )
        if node.name in nodes:
            raise TopologyError(f"node {node.name} is there twice: give each node its own name")
        nodes.add(node.name)
    dpids: dict[int, str] = {}
    for switch in topology.switches:
        if not 0 < switch.dpid < 2**64:
            raise TopologyError(f"switch {switch.name}: dpid {switch.dpid} is not between 1 and 2^64-1")
        if switch.dpid in dpids:
            raise TopologyError(
                f"switches {dpids[switch.dpid]} and {switch.name} share dpid {switch.dpid}: give each its own"
            )
        dpids[switch.dpid] = switch.name
    _validate_hosts(topology)
    _validate_links(topology, nodes)
    _validate_reach(topology)


def _validate_hosts(topology: Topology) -> None:
    seen: dict[str, str] = {}
    for host in topology.hosts:
        if host.slots < 1:
            raise TopologyError(f"host {host.name}: capacity {host.slots} runs no process; give at least 1")
        if host.ip is not None:
            try:
                ipaddress.IPv4Address(host.ip)
            except ValueError:
                raise TopologyError(f"host {host.name}: ip {host.ip!r} is not an IPv4 address") from None
        for address in (host.ip, host.mac):
            if address is not None and address in seen:
                raise TopologyError(f"hosts {seen[address]} and {host.name} share the address {address}")
            if address is not None:
                seen[address] = host.name


def _validate_links(topology: Topology, nodes: set[str]) -> None:
    used: dict[tuple[str, int], str] = {}
    for link in topology.links:
        for node, port in ((link.a, link.a_port), (link.b, link.b_port)):
            if node not in nodes:
                raise TopologyError(f"link {link.name}: there is no node {node}")
            if node in topology.switch_by_name and not 0 < port < 0xFF00:
                raise TopologyError(f"link {link.name}: port {port} of {node} is not between 1 and 65279")
            if (node, port) in used:
                raise TopologyError(
                    f"port {port} of {node} is used by links {used[node, port]} and {link.name}: give each link its own port"
                )
            used[node, port] = link.name
        if link.a == link.b:
            raise TopologyError(f"link {link.name} joins {link.a} to itself")
        if link.capacity_bps <= 0:
            raise TopologyError(f"link {link.name}: capacity must be above zero Mbit/s")
        if link.a in topology.host_by_name and link.b in topology.host_by_name:
            raise TopologyError(f"link {link.name} joins two hosts: hosts are joined by switches")


def _validate_reach(topology: Topology) -> None:
    if not topology.hosts:
        raise TopologyError(f"topology {topology.name} has no host: give nodes typ=host")
    if not topology.switches:
        raise TopologyError(f"topology {topology.name} has no switch: give nodes typ=switch")
    for host in topology.hosts:
        count = len(topology.adjacency[host.name])
        if count != 1:
            raise TopologyError(f"host {host.name} has {count} links: give it exactly one, to a switch")
    first = topology.hosts[0].name
    reached = topology.distances(first)
    for node in topology.nodes:
        if node.name not in reached:
            raise TopologyError(f"{node.name} cannot be reached from {first}: add the missing link")
