"""Switches in software: packets pushed through rules and groups, one table after another.

Arrives: a topology, what is up of it, what each switch holds, changes to that, packets.
Leaves: where a packet ends, over which nodes, and why.
Must not know: OpenFlow messages, plans, how the rules came about.

The semantics are those of OpenFlow 1.3 section 5 as far as Waystage's rules use them: highest priority first, one
match a table, no entry means drop, apply-actions at once, a packet never leaves by the port it came in.
Tests and dry runs use it; it is no data plane.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from waystage.interconnect.rules import (
    Change,
    Field,
    Goto,
    Group,
    Output,
    Phase,
    PopVlan,
    PushVlan,
    Rule,
    SetEthDst,
    Step,
    SwitchRules,
    ToController,
    ToGroup,
    WriteMetadata,
)
from waystage.topology import Topology

MAX_HOPS = 64
"""More hops than the depth of any tree: a packet with more is in a loop."""

Outcome = Literal["delivered", "dropped", "loop", "controller"]


class Packet(msgspec.Struct, frozen=True, kw_only=True):
    """The headers that rules look at. `vlan` 0 is untagged; ports are TCP's where `ip_proto` is 6, UDP's where 17."""

    eth_src: int
    eth_dst: int
    vlan: int = 0
    pcp: int = 0
    eth_type: int = 0x0800
    ip_dscp: int = 0
    ip_proto: int = 6
    src_port: int = 40000
    dst_port: int = 40001


class Journey(msgspec.Struct, frozen=True, kw_only=True):
    """`host` is set where the outcome is `delivered`, `reason` says why where it is not. `path` lists the nodes
    passed."""

    outcome: Outcome
    path: tuple[str, ...]
    packet: Packet
    host: str = ""
    reason: str = ""


class SoftSwitch:
    """One switch; `live_ports` are those whose cable is up."""

    def __init__(self, held: SwitchRules, live_ports: frozenset[int]) -> None:
        self.live_ports = live_ports
        self.groups: dict[int, Group] = dict(held.groups)
        self._rules: dict[tuple[int, int, tuple[Field, ...]], Rule] = {}
        self._tables: dict[int, list[_Space]] = {}
        for rule in held.rules.values():
            self._add(rule)

    @property
    def held(self) -> SwitchRules:
        return SwitchRules(rules=dict(self._rules), groups=dict(self.groups))

    def apply(self, change: Change) -> None:
        """One flow-mod or group-mod. Raises ValueError where a switch would refuse it."""
        item = change.item
        if isinstance(item, Rule):
            if change.op == "delete":
                self._remove(item)
            else:
                self._add(item)
            return
        if change.op == "delete":
            if any(ToGroup(item.group_id) in rule.steps for rule in self._rules.values()):
                raise ValueError(f"group {item.group_id:#x} is deleted while a rule sends to it")
            self.groups.pop(item.group_id, None)
        elif (item.group_id in self.groups) != (change.op == "modify"):
            raise ValueError(f"cannot {change.op} group {item.group_id:#x}: it is there already, or is not")
        else:
            self.groups[item.group_id] = item

    def process(self, packet: Packet, in_port: int) -> tuple[list[tuple[int, Packet]], str]:
        """Outputs as (port, packet), port 0 the controller; and why, where there are none."""
        metadata, table = 0, 0
        outputs: list[tuple[int, Packet]] = []
        while True:
            rule = self._lookup(table, packet, in_port, metadata)
            if rule is None:
                return outputs, f"no entry in table {table}"
            goto = 0
            for step in rule.steps:
                if isinstance(step, WriteMetadata):
                    metadata = metadata & ~step.mask | step.value & step.mask
                elif isinstance(step, Goto):
                    goto = step.table
                else:
                    packet = self._act(step, packet, outputs)
            if not goto:
                kept = [(port, out) for port, out in outputs if port != in_port]
                return kept, "" if kept else f"an entry of table {table} drops it"
            table = goto

    def _act(self, step: Step, packet: Packet, outputs: list[tuple[int, Packet]]) -> Packet:
        """The packet after one action; outputs are appended."""
        if isinstance(step, Output):
            outputs.append((step.port, packet))
        elif isinstance(step, ToController):
            outputs.append((0, packet))
        elif isinstance(step, SetEthDst):
            return msgspec.structs.replace(packet, eth_dst=step.mac)
        elif isinstance(step, PushVlan):
            return msgspec.structs.replace(packet, vlan=step.vid, pcp=step.pcp)
        elif isinstance(step, PopVlan):
            return msgspec.structs.replace(packet, vlan=0, pcp=0)
        elif isinstance(step, ToGroup):
            group = self.groups.get(step.group_id)
            for bucket in group.buckets if group else ():
                if bucket.watch_port == 0 or bucket.watch_port in self.live_ports:
                    inner = packet
                    for action in bucket.steps:
                        inner = self._act(action, inner, outputs)
                    if group is not None and group.kind != "all":
                        break
        return packet

    def _add(self, rule: Rule) -> None:
        for step in rule.steps:
            if isinstance(step, ToGroup) and step.group_id not in self.groups:
                raise ValueError(
                    f"a rule of table {rule.table} sends to group {step.group_id:#x}, which is not there"
                )
            if isinstance(step, Goto) and step.table <= rule.table:
                raise ValueError(f"a rule of table {rule.table} goes back to table {step.table}")
        self._rules[rule.key] = rule
        shape = tuple((field.name, field.mask) for field in rule.match)
        spaces = self._tables.setdefault(rule.table, [])
        for space in spaces:
            if space.priority == rule.priority and space.shape == shape:
                break
        else:
            space = _Space(rule.priority, shape)
            spaces.append(space)
            spaces.sort(key=lambda s: -s.priority)
        space.rules[tuple(field.value for field in rule.match)] = rule

    def _remove(self, rule: Rule) -> None:
        if self._rules.pop(rule.key, None) is None:
            return
        shape = tuple((field.name, field.mask) for field in rule.match)
        for space in self._tables[rule.table]:
            if space.priority == rule.priority and space.shape == shape:
                space.rules.pop(tuple(field.value for field in rule.match), None)

    def _lookup(self, table: int, packet: Packet, in_port: int, metadata: int) -> Rule | None:
        headers = _headers(packet, in_port, metadata)
        for space in self._tables.get(table, ()):
            rule = space.find(headers)
            if rule is not None:
                return rule
        return None


class _Space:
    """Rules of one priority that look at the same bits: one dictionary look-up finds the match."""

    def __init__(self, priority: int, shape: tuple[tuple[str, int | None], ...]) -> None:
        self.priority = priority
        self.shape = shape
        self.rules: dict[tuple[int, ...], Rule] = {}

    def find(self, headers: dict[str, int]) -> Rule | None:
        for wildcard in (False, True):  # vlan_vid -1 stands for any tag
            values: list[int] = []
            for name, mask in self.shape:
                if name not in headers:
                    return None
                value = headers[name]
                if name == "vlan_vid" and wildcard and value:
                    value = -1
                values.append(value if mask is None else value & mask)
            rule = self.rules.get(tuple(values))
            if rule is not None:
                return rule
        return None


def _headers(packet: Packet, in_port: int, metadata: int) -> dict[str, int]:
    found = {
        "in_port": in_port,
        "eth_type": packet.eth_type,
        "eth_src": packet.eth_src,
        "eth_dst": packet.eth_dst,
        "vlan_vid": packet.vlan,
        "metadata": metadata,
    }
    if packet.vlan:
        found["vlan_pcp"] = packet.pcp
    if packet.eth_type == 0x0800:
        found |= {"ip_dscp": packet.ip_dscp, "ip_proto": packet.ip_proto}
        names = {6: ("tcp_src", "tcp_dst"), 17: ("udp_src", "udp_dst")}.get(packet.ip_proto)
        if names:
            found |= {names[0]: packet.src_port, names[1]: packet.dst_port}
    return found


class SoftNetwork:
    """Every switch of a topology with its cables; those not in `live` carry nothing."""

    def __init__(self, topology: Topology, live: Topology, held: dict[str, SwitchRules]) -> None:
        self.topology = topology
        self.switches: dict[str, SoftSwitch] = {}
        self._cable: dict[tuple[str, int], tuple[str, int]] = {}
        for link in live.links:
            self._cable[link.a, link.a_port] = (link.b, link.b_port)
            self._cable[link.b, link.b_port] = (link.a, link.a_port)
        for switch in topology.switch_by_name:
            ports = frozenset(port for node, port in self._cable if node == switch)
            self.switches[switch] = SoftSwitch(held.get(switch, SwitchRules()), ports)

    @property
    def held(self) -> dict[str, SwitchRules]:
        """What each switch holds now."""
        return {name: switch.held for name, switch in self.switches.items()}

    def apply(self, switch: str, change: Change) -> None:
        self.switches[switch].apply(change)

    def apply_phases(self, phases: list[Phase]) -> None:
        """Every change of every phase, in order."""
        for phase in phases:
            for switch, changes in phase.changes.items():
                for change in changes:
                    self.apply(switch, change)

    def send(self, src: str, packet: Packet) -> Journey:
        """Push one packet from host `src` until it is delivered, dropped, looping or at the controller."""
        path = [src]
        port = self.topology.adjacency[src][0].port_at(src)
        for _ in range(MAX_HOPS):
            there = self._cable.get((path[-1], port))
            if there is None:
                return self._ended(
                    "dropped", path, packet, f"port {port} of {path[-1]} has no cable that is up"
                )
            node, in_port = there
            path.append(node)
            if node in self.topology.host_by_name:
                return Journey(outcome="delivered", path=tuple(path), packet=packet, host=node)
            outputs, why = self.switches[node].process(packet, in_port)
            if not outputs:
                return self._ended("dropped", path, packet, f"{node}: {why}")
            if len(outputs) > 1:
                return self._ended("loop", path, packet, f"{node} copies it to {len(outputs)} ports")
            port, packet = outputs[0]
            if port == 0:
                return self._ended("controller", path, packet, f"{node} sends it to the controller")
        return self._ended("loop", path, packet, f"it passed {MAX_HOPS} switches")

    def _ended(self, outcome: Outcome, path: list[str], packet: Packet, reason: str) -> Journey:
        return Journey(outcome=outcome, path=tuple(path), packet=packet, reason=reason)
