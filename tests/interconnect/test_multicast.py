"""Multicast trees: each host of a tree gets one copy, no other host any, over every topology and with failures."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waystage.events import MulticastTree, PathPlan
from waystage.interconnect import multicast, pipeline, planner
from waystage.interconnect.generate import fat_tree, leaf_spine
from waystage.interconnect.labels import parse_mac
from waystage.interconnect.rules import SwitchRules
from waystage.interconnect.soft_table import Packet, SoftNetwork
from waystage.interconnect.trees import forest
from waystage.topology import Topology

TOPOLOGIES = [leaf_spine(4, 2, 2), leaf_spine(1, 4, 2), fat_tree(4)]


def network(topology: Topology, live: Topology, plan: PathPlan) -> tuple[SoftNetwork, dict[str, SwitchRules]]:
    macs = {host.name: parse_mac(f"02:00:00:00:00:{at:02x}") for at, host in enumerate(topology.hosts)}
    rules = planner.desired(topology, live, macs, plan)
    made = SoftNetwork(topology, live, dict.fromkeys(rules, SwitchRules()))
    made.apply_phases(planner.difference(made.held, rules))
    return made, rules


def copies(made: SoftNetwork, topology: Topology, src: str, number: int) -> Counter[str]:
    """Packets that each host gets of one that `src` sends, all untagged."""
    found: Counter[str] = Counter()
    edge, port = topology.attachment[src]
    packet = Packet(eth_src=1, eth_dst=multicast.mac(number), ip_proto=17)
    flying = [(edge, port, packet)]
    while flying:
        node, in_port, packet = flying.pop()
        for out, copy in made.switches[node].process(packet, in_port)[0]:
            link = next(k for k in topology.adjacency[node] if k.port_at(node) == out)
            there = link.other(node)
            if there in topology.host_by_name:
                assert copy.vlan == 0
                found[there] += 1
            else:
                flying.append((there, link.port_at(there), copy))
        assert sum(found.values()) + len(flying) < 1000, "it loops"
    return found


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_each_host_of_a_tree_gets_one_copy_and_no_other_host_any(data: st.DataObject) -> None:
    topology = data.draw(st.sampled_from(TOPOLOGIES))
    names = [host.name for host in topology.hosts]
    hosts = data.draw(st.lists(st.sampled_from(names), min_size=2, max_size=8, unique=True))
    down = data.draw(
        st.lists(st.sampled_from([k.name for k in topology.switch_links]), max_size=2, unique=True)
    )
    live = topology.without(down, ())
    trees = forest(topology, live).trees
    core = data.draw(st.sampled_from(sorted(trees)))
    number = data.draw(st.integers(0, 255))
    tree = MulticastTree(app="0/a", hosts=tuple(sorted(hosts)), core=core)
    other = MulticastTree(app="0/b", hosts=tuple(names[:2]), core=next(iter(trees)))
    plan = PathPlan(multicast={number: tree, (number + 1) % 256: other})
    made, _ = network(topology, live, plan)
    edges = {topology.attachment[host][0] for host in hosts}
    for src in names:
        got = copies(made, topology, src, number)
        if src in hosts and edges <= trees[core].edges:
            assert got == Counter(host for host in hosts if host != src)
        else:
            assert not got, "only the tree's hosts send to it, and only a tree that reaches all has rules"


def test_rules_and_groups_of_a_tree_vanish_with_it() -> None:
    topology = TOPOLOGIES[0]
    tree = MulticastTree(
        app="0/a", hosts=tuple(host.name for host in topology.hosts), core=topology.core_switches[0]
    )
    made, rules = network(topology, topology, PathPlan(multicast={7: tree}))
    assert any(group >= pipeline.MULTICAST_BASE for held in rules.values() for group in held.groups)
    _, without = network(topology, topology, PathPlan())
    made.apply_phases(planner.difference(made.held, without))
    assert made.held == {
        name: SwitchRules(rules=dict(r.rules), groups=dict(r.groups)) for name, r in without.items()
    }


@pytest.mark.parametrize(("number", "text"), [(0, "239.87.0.0"), (255, "239.87.0.255"), (258, "239.87.1.2")])
def test_the_mac_address_is_that_of_the_ip_address(number: int, text: str) -> None:
    assert multicast.address(number) == text
    parts = [int(part) for part in text.split(".")]
    assert multicast.mac(number) == 0x01005E000000 | (parts[1] & 0x7F) << 16 | parts[2] << 8 | parts[3]
