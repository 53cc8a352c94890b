"""Topologies as GraphML files.

Arrives: a path, or the name of a shipped topology.
Leaves: a validated `Topology`, or an error with file and line.
Must not know: OpenFlow, namespaces, policies.

Nodes carry `typ` (host or switch) and optionally `capacity` (process slots of a host), `role`, `mac`,
`ip`, `dpid`; edges carry `capacity` in Mbit/s and ports. Two conventions are read: one undirected edge
a link with `source_port` and `target_port`, and PFSim's two directed edges a link, each with the `port`
it leaves from. docs/reference/topology.md is the specification. networkx's reader was rejected: it gives no line
numbers and processes document type declarations.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from importlib import resources
from pathlib import Path
from typing import NoReturn
from xml.sax.saxutils import escape, quoteattr

from waystage.bounded import read_bounded
from waystage.interconnect.graphml_parser import Element, GraphmlError, parse
from waystage.topology import Host, Link, Role, Switch, Topology, TopologyError, parse_megabits

BITS_PER_MEGABIT = 1_000_000
MAX_CAPACITY_MBPS = 1e9  # a petabit a second: anything above is a unit mistaken
MAX_FILE_BYTES = 64 * 1024 * 1024
MAX_SLOTS = 1_000_000

_MAC = re.compile(r"^[0-9a-f]{2}(:[0-9a-f]{2}){5}$")


def read_topology(source: Path | str) -> Topology:
    """Read a GraphML file, or a shipped topology by its bare name. Raises TopologyError."""
    if isinstance(source, str) and source in shipped_topologies():
        resource = resources.files("waystage") / "data" / "topologies" / f"{source}.graphml"
        return parse_topology(resource.read_bytes(), f"{source}.graphml")
    path = Path(source)
    try:
        data = read_bounded(path, MAX_FILE_BYTES)
    except OSError as error:
        hint = ""
        if isinstance(error, FileNotFoundError) and path.suffix != ".graphml":
            hint = f"; shipped topologies: {', '.join(shipped_topologies())}"
        raise TopologyError(f"{path}: {error.strerror or error}{hint}") from None
    return parse_topology(data, str(path))


def shipped_topologies() -> tuple[str, ...]:
    """The names `read_topology` knows without a file."""
    folder = resources.files("waystage") / "data" / "topologies"
    return tuple(
        sorted(f.name.removesuffix(".graphml") for f in folder.iterdir() if f.name.endswith(".graphml"))
    )


def parse_topology(data: bytes, file_name: str) -> Topology:
    """GraphML bytes to a topology; `file_name` is for messages. Raises TopologyError, and only that."""
    try:
        graph = parse(data)
    except GraphmlError as error:
        raise TopologyError(f"{file_name}:{error.line}: {error}") from None
    reader = _Reader(file_name)
    for node in graph.nodes:
        reader.add_node(node)
    if not graph.nodes:
        raise TopologyError(f"{file_name}: the graph is empty: give it nodes with typ host or switch")
    reader.number_switches()
    halves = []
    for edge in graph.edges:
        if edge.directed and "source_port" not in edge.data and "target_port" not in edge.data:
            halves.append(edge)
        else:
            reader.add_whole(edge)
    reader.add_halves(halves)
    links = reader.finish_links()
    try:
        return Topology.build(
            graph.name or Path(file_name).stem, reader.hosts.values(), reader.switches.values(), links
        )
    except TopologyError as error:
        raise TopologyError(f"{file_name}: {error}") from None


def write_topology(topology: Topology, path: Path) -> None:
    """Write in the undirected convention; reading it back gives an equal topology."""
    path.write_text(format_topology(topology), encoding="utf-8")


def format_topology(topology: Topology) -> str:
    """The GraphML text of a topology."""
    keys = {
        "graph": {"name": "string"},
        "node": {
            "typ": "string",
            "capacity": "long",
            "role": "string",
            "mac": "string",
            "ip": "string",
            "dpid": "string",  # 64 bits unsigned do not fit GraphML's long
        },
        "edge": {"capacity": "double", "source_port": "int", "target_port": "int"},
    }
    lines = [
        '<?xml version="1.0" encoding="utf-8"?>',
        '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">',
    ]
    for target, attributes in keys.items():
        for name, kind in attributes.items():
            key_id = f"{target}_{name}"
            lines.append(f'  <key id="{key_id}" for="{target}" attr.name="{name}" attr.type="{kind}"/>')
    lines += ['  <graph edgedefault="undirected">', _data(4, "graph", {"name": topology.name})]
    for host in topology.hosts:
        role = "storage" if host.role == "storage" else None
        values = {"typ": "host", "capacity": host.slots, "role": role, "mac": host.mac, "ip": host.ip}
        lines += [f"    <node id={quoteattr(host.name)}>", _data(6, "node", values), "    </node>"]
    for switch in topology.switches:
        values = {"typ": "switch", "dpid": switch.dpid}
        lines += [f"    <node id={quoteattr(switch.name)}>", _data(6, "node", values), "    </node>"]
    for link in topology.links:
        megabits = (Decimal(link.capacity_bps) / BITS_PER_MEGABIT).normalize()
        values = {"capacity": f"{megabits:f}", "source_port": link.a_port, "target_port": link.b_port}
        ends = f"source={quoteattr(link.a)} target={quoteattr(link.b)}"
        lines += [f"    <edge {ends}>", _data(6, "edge", values), "    </edge>"]
    lines += ["  </graph>", "</graphml>", ""]
    return "\n".join(lines)


def require_storage(topology: Topology) -> None:
    """Raises TopologyError where no host is a storage node, which staging needs."""
    if not topology.storage_hosts:
        raise TopologyError(
            f"topology {topology.name} has no storage node: give a host the data role=storage to stage from and to"
        )


def _data(indent: int, target: str, values: Mapping[str, object]) -> str:
    return "\n".join(
        f'{" " * indent}<data key="{target}_{name}">{escape(str(value))}</data>'
        for name, value in values.items()
        if value is not None
    )


class _Reader:
    """Collects nodes and links of one file, with the checks that need line numbers."""

    def __init__(self, file_name: str) -> None:
        self.hosts: dict[str, Host] = {}
        self.switches: dict[str, Switch] = {}
        self._file_name = file_name
        self._unnumbered: list[str] = []
        self._links: list[tuple[Element, list[int | None], int]] = []

    def add_node(self, node: Element) -> None:
        if node.id in self.hosts or node.id in self.switches or node.id in self._unnumbered:
            self._refuse(node, "is defined twice: give each node its own id")
        typ = node.data.get("typ")
        if typ == "host":
            self.hosts[node.id] = self._host(node)
        elif typ == "switch":
            if "dpid" in node.data:
                self.switches[node.id] = Switch(name=node.id, dpid=self._dpid(node))
            else:
                self._unnumbered.append(node.id)
        elif typ is None:
            self._refuse(node, "has no typ: give it host or switch")
        else:
            self._refuse(node, f"has the unknown typ {_quote(typ)}: use host or switch")

    def number_switches(self) -> None:
        """Switches without a dpid get the smallest free ones, in file order."""
        used = {switch.dpid for switch in self.switches.values()}
        free = (n for n in range(1, len(used) + len(self._unnumbered) + 1) if n not in used)
        for name, dpid in zip(self._unnumbered, free, strict=False):
            self.switches[name] = Switch(name=name, dpid=dpid)

    def add_whole(self, edge: Element) -> None:
        """An edge that stands for both directions of a link."""
        self._check_ends(edge)
        ports = [self._port(edge, "source_port"), self._port(edge, "target_port")]
        lone = self._port(edge, "port")
        if lone is not None:
            switch_ends = [i for i, end in enumerate((edge.source, edge.target)) if end in self.switches]
            if len(switch_ends) != 1:
                self._refuse(edge, "has 'port', which says not which end: give source_port and target_port")
            ports[switch_ends[0]] = lone
        self._links.append((edge, ports, self._capacity(edge)))

    def add_halves(self, edges: Iterable[Element]) -> None:
        """Directed edges: the n-th from a to b and the n-th from b to a are one link."""
        by_ends: dict[tuple[str, str], list[Element]] = {}
        joined: set[tuple[str, str]] = set()
        for edge in edges:
            self._check_ends(edge)
            by_ends.setdefault((edge.source, edge.target), []).append(edge)
        for (a, b), forth in by_ends.items():
            back = by_ends.get((b, a), [])
            if len(forth) > len(back):
                self._refuse(
                    forth[len(back)],
                    f"has no edge from {b} to {a} beside it: a directed file gives each link in both directions",
                )
            if len(forth) == len(back) and (b, a) not in joined:
                joined.add((a, b))
                for there, here in zip(forth, back, strict=True):
                    capacity = self._capacity(there)
                    if self._capacity(here) != capacity:
                        self._refuse(
                            here, f"has another capacity than its other direction in line {there.line}"
                        )
                    self._links.append(
                        (there, [self._port(there, "port"), self._port(here, "port")], capacity)
                    )

    def finish_links(self) -> list[Link]:
        """Ports that were not given are the smallest free ones, in file order; a host's is 1."""
        used: dict[str, dict[int, Element]] = {}
        for edge, ports, _ in self._links:
            for end, port in zip((edge.source, edge.target), ports, strict=True):
                if end in self.hosts:
                    first = used.setdefault(end, {}).setdefault(1, edge)
                    if first is not edge:
                        self._refuse(
                            edge, f"is a second link of host {end}, after line {first.line}: a host has one"
                        )
                    continue
                if port is None:
                    continue
                other = used.setdefault(end, {}).setdefault(port, edge)
                if other is not edge:
                    self._refuse(
                        edge,
                        f"uses port {port} of {end}, as does edge {other.id} in line {other.line}: give each its own",
                    )
        links = []
        next_free: dict[str, int] = {}
        for edge, ports, capacity in self._links:
            for i, end in enumerate((edge.source, edge.target)):
                if end in self.hosts:
                    ports[i] = 1
                elif ports[i] is None:
                    taken = used.setdefault(end, {})
                    port = next_free.get(end, 1)
                    while port in taken:
                        port += 1
                    taken[port], ports[i], next_free[end] = edge, port, port + 1
            a_port, b_port = ports
            assert a_port is not None and b_port is not None
            links.append(
                Link(a=edge.source, a_port=a_port, b=edge.target, b_port=b_port, capacity_bps=capacity)
            )
        return links

    def _host(self, node: Element) -> Host:
        slots = self._whole_number(node, "capacity", 1, MAX_SLOTS)
        role: Role = "compute"
        if "role" in node.data:
            if node.data["role"] not in ("compute", "storage"):
                self._refuse(
                    node, f"has the unknown role {_quote(node.data['role'])}: use compute or storage"
                )
            role = "storage" if node.data["role"] == "storage" else "compute"
        mac = node.data.get("mac")
        if mac is not None:
            mac = mac.lower().replace("-", ":")
            if not _MAC.match(mac):
                self._refuse(node, f"has the mac {_quote(mac)}: write it as 02:00:00:00:00:01")
            if int(mac[:2], 16) & 1:
                self._refuse(node, f"has the mac {mac}, a multicast address: a host's has an even first byte")
        return Host(
            name=node.id, role=role, slots=1 if slots is None else slots, mac=mac, ip=node.data.get("ip")
        )

    def _dpid(self, node: Element) -> int:
        text = node.data["dpid"].replace(":", "")
        hexadecimal = ":" in node.data["dpid"] or text.lower().startswith("0x")
        try:
            dpid = int(text, 16 if hexadecimal else 10)
        except ValueError:
            self._refuse(node, f"has the dpid {_quote(node.data['dpid'])}: give a number from 1 to 2^64-1")
        if not 0 < dpid < 2**64:
            self._refuse(node, f"has the dpid {_quote(node.data['dpid'])}: give a number from 1 to 2^64-1")
        return dpid

    def _capacity(self, edge: Element) -> int:
        text = edge.data.get("capacity")
        if text is None:
            self._refuse(edge, "has no capacity: give it in Mbit/s")
        try:
            megabits = parse_megabits(text)
        except ValueError:
            megabits = math.nan
        bits = round(megabits * BITS_PER_MEGABIT) if math.isfinite(megabits) else 0
        if not 0 < bits <= MAX_CAPACITY_MBPS * BITS_PER_MEGABIT:
            self._refuse(
                edge,
                f"has the capacity {_quote(text)}: give a number above zero, in Mbit/s, or with a unit such as 100 Gbit/s",
            )
        return bits

    def _port(self, edge: Element, name: str) -> int | None:
        return self._whole_number(edge, name, 1, 0xFEFF)

    def _whole_number(self, element: Element, name: str, low: int, high: int) -> int | None:
        text = element.data.get(name)
        if text is None:
            return None
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not number.is_integer() or not low <= number <= high:
            self._refuse(element, f"has {name} {_quote(text)}: give a whole number from {low} to {high}")
        return int(number)

    def _check_ends(self, edge: Element) -> None:
        for end in (edge.source, edge.target):
            if end not in self.hosts and end not in self.switches:
                self._refuse(edge, f"names {_quote(end)}, which is no node of this file")

    def _refuse(self, element: Element, reason: str) -> NoReturn:
        raise TopologyError(f"{self._file_name}:{element.line}: {element.kind} {element.id} {reason}")


def _quote(text: str) -> str:
    """A value in a message: printable and short."""
    return ascii(text if len(text) <= 40 else text[:40] + "...")
