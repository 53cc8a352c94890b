"""Tags: layouts of topologies of every size, and tagged packets through software switches."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.interconnect.test_planner import macs_of, network

from waystage.events import PathPlan, RuleStyle
from waystage.interconnect import labels, tags
from waystage.interconnect.generate import fat_tree, leaf_spine, paper
from waystage.interconnect.soft_table import Packet
from waystage.patterns.kinds import KINDS
from waystage.topology import Topology

TOPOLOGIES = {"paper": paper(), "fat tree": fat_tree(4), "leaf-spine": leaf_spine(8, 20, 4, storage_hosts=2)}


def tag_to(topology: Topology, host: str, **parts: int | str) -> int:
    layout = tags.layout_of(topology)
    label = labels.parse(labels.label_of(topology, host))
    assert layout is not None and label is not None
    fields = {"primitive": "bcast", "job": 1, "communicator": 3, "source": 5, "destination": 6} | parts
    fields |= {"edge_index": label.edge_index, "position": label.position, "host_key": label.host_key}
    return layout.encode(tags.Tag(**fields))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_a_tag_goes_where_its_label_goes_and_the_host_sees_its_own_address(name: str) -> None:
    topology = TOPOLOGIES[name]
    for plan in (PathPlan(), PathPlan(spread="destination"), PathPlan(seed=7)):
        net = network(topology, topology, plan)
        macs = macs_of(topology)
        hosts = [host.name for host in topology.hosts][:12]
        for number, (src, dst) in enumerate(itertools.permutations(hosts, 2)):
            primitive = KINDS[number % len(KINDS)].name
            tag = tag_to(topology, dst, primitive=primitive, job=number % 5, source=number % 99)
            journey = net.send(src, Packet(eth_src=macs[src], eth_dst=tag))
            assert (journey.outcome, journey.host) == ("delivered", dst), journey
            assert journey.packet.eth_dst == macs[dst]
            if topology.host_by_name[src].role != "storage" and topology.host_by_name[dst].role != "storage":
                label = labels.label_of(topology, dst)
                plain = net.send(src, Packet(eth_src=macs[src], eth_dst=label))
                assert journey.path == plain.path, "a tag alone changes no path"


def test_a_tag_for_no_host_is_dropped_at_the_first_switch() -> None:
    topology = leaf_spine(2, 3, 2)
    net = network(topology, topology, PathPlan())
    layout = tags.layout_of(topology)
    first, second, *_ = topology.hosts_at[topology.edge_switches[0]]
    assert layout is not None
    unused = tag_to(topology, first) | 0b11 << layout.shift("position")
    journey = net.send(second, Packet(eth_src=macs_of(topology)[second], eth_dst=unused))
    assert journey.outcome == "dropped" and len(journey.path) == 2


@given(st.integers(0, 2**48 - 1))
def test_any_address_is_decoded_or_is_no_tag(address: int) -> None:
    layout = tags.layout_of(paper())
    assert layout is not None
    tag = layout.decode(address)
    assert (tag is not None) == tags.is_tag(address)
    if tag is not None and any(k.name == tag.primitive for k in KINDS[1:]):
        assert layout.encode(tag) == address
    if labels.parse(address) is not None:
        assert tag is None


def test_layouts_use_forty_bits_and_have_room_for_the_topology() -> None:
    for topology in (*TOPOLOGIES.values(), leaf_spine(32, 32, 16)):
        layout = tags.layout_of(topology)
        assert layout is not None
        assert sum(getattr(layout, field) for field in layout.__struct_fields__) == 40
        for host in topology.hosts:
            label = labels.parse(labels.label_of(topology, host.name))
            tag = layout.decode(tag_to(topology, host.name, source=10**6))
            assert tag is not None and label is not None
            assert (tag.edge_index, tag.position, tag.host_key) == (
                label.edge_index,
                label.position,
                label.host_key,
            )
            assert tag.source == (1 << layout.source) - 1, "what does not fit is not taken for another rank"


def test_a_primitive_is_matched_at_the_same_place_in_every_topology() -> None:
    field = tags.primitive_field("bcast")
    for topology in TOPOLOGIES.values():
        for kind in KINDS:
            tag = tag_to(topology, topology.hosts[0].name, primitive=kind.name)
            assert field.mask is not None
            assert (tag & field.mask == field.value) == (kind.name == "bcast")
    with pytest.raises(ValueError, match="no primitive"):
        tags.primitive_field("broadcast")


def test_style_per_pair_knows_no_tags() -> None:
    style: RuleStyle = "per-pair"
    topology = paper()
    net = network(topology, topology, PathPlan(style=style))
    journey = net.send("c1", Packet(eth_src=macs_of(topology)["c1"], eth_dst=tag_to(topology, "c4")))
    assert journey.outcome == "dropped"
