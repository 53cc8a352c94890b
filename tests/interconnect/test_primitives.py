"""Packets of MPI primitives on separate core switches, through software switches."""

from __future__ import annotations

import itertools

import pytest
from tests.interconnect.test_planner import macs_of, network
from tests.interconnect.test_tags import tag_to

from waystage.events import PathPlan
from waystage.interconnect import labels, planner
from waystage.interconnect.changes import difference
from waystage.interconnect.generate import fat_tree, leaf_spine
from waystage.interconnect.rules import Group
from waystage.interconnect.soft_table import Packet, SoftNetwork
from waystage.topology import Topology

SPINES = leaf_spine(3, 3, 4, storage_hosts=0)
TWO = PathPlan(primitives={"bcast": ("core1",), "reduce": ("core2", "core3")})


@pytest.mark.parametrize("topology", [SPINES, fat_tree(4, storage_hosts=0)], ids=["leaf-spine", "fat tree"])
def test_each_primitive_uses_its_core_switches_and_other_packets_keep_their_path(topology: Topology) -> None:
    macs, cores = macs_of(topology), topology.core_switches
    allowed = {"bcast": {cores[0]}, "reduce": {*cores[1:3]}}
    plan = PathPlan(seed=3, primitives={name: tuple(sorted(some)) for name, some in allowed.items()})
    net, plain = network(topology, topology, plan), PathPlan(seed=3)
    used: dict[str, set[str]] = {"bcast": set(), "reduce": set()}
    for src, dst in itertools.permutations([host.name for host in topology.hosts][:9], 2):
        for primitive in ("bcast", "reduce", "allreduce"):
            journey = net.send(
                src, Packet(eth_src=macs[src], eth_dst=tag_to(topology, dst, primitive=primitive))
            )
            assert (journey.outcome, journey.host) == ("delivered", dst)
            used.get(primitive, set()).update({*journey.path} & {*cores})
            expected = planner.Router(topology, topology, plan).path(src, dst, "mpi", primitive)
            assert journey.path == expected
        label = net.send(src, Packet(eth_src=macs[src], eth_dst=labels.label_of(topology, dst)))
        assert label.path == planner.path_of(topology, topology, plain, src, dst)
    assert used == allowed


def test_other_core_switches_for_a_primitive_change_groups_alone_and_no_packet_is_lost() -> None:
    macs = macs_of(SPINES)
    held = planner.desired(SPINES, SPINES, macs, TWO)
    wanted = planner.desired(
        SPINES, SPINES, macs, PathPlan(primitives={**TWO.primitives, "bcast": ("core4",)})
    )
    phases = difference(held, wanted)
    changed = [change for phase in phases for some in phase.changes.values() for change in some]
    assert changed and all(isinstance(change.item, Group) and change.op == "modify" for change in changed)
    assert [phase.name for phase in phases] == ["switch"]


@pytest.mark.parametrize("before", [PathPlan(), TWO], ids=["begin", "end"])
def test_packets_arrive_after_every_single_change(before: PathPlan) -> None:
    macs, after = macs_of(SPINES), TWO if before == PathPlan() else PathPlan()
    net = SoftNetwork(SPINES, SPINES, planner.desired(SPINES, SPINES, macs, before))
    src, dst = SPINES.hosts[0].name, SPINES.hosts[-1].name
    for phase in difference(
        planner.desired(SPINES, SPINES, macs, before), planner.desired(SPINES, SPINES, macs, after)
    ):
        for switch, changes in phase.changes.items():
            for change in changes:
                net.switches[switch].apply(change)
                packet = Packet(eth_src=macs[src], eth_dst=tag_to(SPINES, dst, primitive="bcast"))
                assert net.send(src, packet).outcome == "delivered", change


def test_a_primitive_whose_core_switch_is_down_goes_as_others() -> None:
    live = SPINES.without(switches={"core1"})
    net = network(SPINES, live, TWO)
    src, dst = SPINES.hosts[0].name, SPINES.hosts[-1].name
    packet = Packet(eth_src=macs_of(SPINES)[src], eth_dst=tag_to(SPINES, dst, primitive="bcast"))
    journey = net.send(src, packet)
    assert journey.outcome == "delivered" and "core1" not in journey.path


def test_rules_do_not_grow_with_hosts() -> None:
    counts = []
    for hosts in (4, 32):
        topology = leaf_spine(2, hosts, 4, storage_hosts=0)
        with_, without = (
            planner.rule_counts(planner.desired(topology, topology, macs_of(topology), plan))
            for plan in (TWO, PathPlan())
        )
        counts.append({switch: with_[switch] - without[switch] for switch in with_})
    assert counts[0] == counts[1] and max(counts[0].values()) > 0
