"""Multicast trees: groups of type `all` that copy a packet to every host of a program.

Arrives: a topology, its trees, the multicast trees of a plan.
Leaves: rules and groups by switch; the address of a tree's group.
Must not know: who sends, why a tree has its core switch, how losses are repaired.

A group has the IPv4 address 239.87.x.y of the organisation-local scope (RFC 2365), x and y from the tree's number, and
the MAC address that RFC 1112 makes of it. Packets are taken from the ports of the tree's hosts alone, and are bound to
one spanning tree by its VLAN id, so that they cannot loop. Unlike unicast packets they keep their destination address.
"""

from __future__ import annotations

from collections.abc import Mapping

from waystage.events import MulticastTree
from waystage.interconnect import pipeline
from waystage.interconnect.cookies import stamped
from waystage.interconnect.rules import (
    Bucket,
    Field,
    Group,
    Output,
    PopVlan,
    PushVlan,
    Rule,
    SwitchRules,
    ToGroup,
)
from waystage.interconnect.trees import Tree
from waystage.topology import Topology

_MAC = 0x01005E570000
"""RFC 1112, section 6.4, of 239.87.0.0."""


def address(number: int) -> str:
    """The IPv4 address of the group of tree `number`, below 65,536."""
    return f"239.87.{number >> 8 & 0xFF}.{number & 0xFF}"


def mac(number: int) -> int:
    return _MAC | number


def rules(
    topology: Topology, trees: Mapping[str, Tree], wanted: Mapping[int, MulticastTree]
) -> dict[str, SwitchRules]:
    """Switch -> rules and groups; none for a tree that does not reach all its hosts."""
    found: dict[str, tuple[list[Rule], list[Group]]] = {}
    for number, multicast in sorted(wanted.items()):
        tree = trees.get(multicast.core)
        hosts = [host for host in multicast.hosts if host in topology.attachment]
        edges = {topology.attachment[host][0] for host in hosts}
        if tree is None or len(hosts) < 2 or not edges <= tree.edges:
            continue
        for switch, ports in branches(tree, edges).items():
            locals_ = [
                topology.attachment[host][1] for host in hosts if topology.attachment[host][0] == switch
            ]
            rules_, groups = found.setdefault(switch, ([], []))
            _add(rules_, groups, number, tree, ports, locals_, is_edge=switch in topology.hosts_at)
    return {switch: SwitchRules.of(*parts) for switch, parts in found.items()}


def branches(tree: Tree, edges: set[str]) -> dict[str, list[int]]:
    """Switches of the smallest part of `tree` that joins `edges`, and their ports within it."""
    found: dict[str, list[int]] = {}
    for switch, down in tree.down.items():
        below = {edge for edge in edges if edge in down}
        members = below | ({switch} & edges)
        ports = {down[edge] for edge in below}
        if members and members != edges and switch in tree.up:
            ports.add(tree.up[switch][1])
        # A switch above the place where all branches meet has one branch and no host.
        if members and (switch in edges or len(ports) > 1):
            found[switch] = sorted(ports)
    return found


def _add(
    rules_: list[Rule],
    groups: list[Group],
    number: int,
    tree: Tree,
    ports: list[int],
    hosts: list[int],
    *,
    is_edge: bool,
) -> None:
    code = pipeline.class_code("mpi")
    to_group = Field("eth_dst", mac(number))
    arriving = pipeline.MULTICAST_BASE + 2 * number
    if ports:
        out = [Bucket(steps=(Output(port),)) for port in ports]
        out += [Bucket(steps=(PopVlan(), Output(port))) for port in hosts]
        groups.append(Group(group_id=arriving, kind="all", buckets=tuple(out)))
        table = pipeline.ARRIVAL if is_edge else pipeline.TRANSIT
        match = (Field("vlan_vid", tree.vid), to_group)
        rules_.append(stamped(table, pipeline.PRIORITY_MULTICAST, match, (ToGroup(arriving),)))
    if hosts:
        out = [Bucket(steps=(Output(port),)) for port in hosts]
        out += [Bucket(steps=(PushVlan(tree.vid, code), Output(port))) for port in ports]
        groups.append(Group(group_id=arriving + 1, kind="all", buckets=tuple(out)))
        for port in hosts:
            match = (Field("in_port", port), to_group)
            rules_.append(
                stamped(pipeline.LOCAL, pipeline.PRIORITY_MULTICAST, match, (ToGroup(arriving + 1),))
            )
