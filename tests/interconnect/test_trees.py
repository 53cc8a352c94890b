"""Spanning trees: their shape, their ids, and what changes when something fails."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystage.events import PathPlan
from waystage.interconnect import labelled, labels, path_choices, planner, trees
from waystage.interconnect.collisions import midway
from waystage.interconnect.generate import fat_tree, leaf_spine, paper
from waystage.interconnect.soft_table import Packet, SoftNetwork
from waystage.topology import Host, Link, Switch, Topology, TopologyError

TOPOLOGIES = [paper(), leaf_spine(4, 2, 3), fat_tree(4)]


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=lambda t: t.name)
def test_there_is_a_tree_at_every_core_switch_and_its_paths_are_shortest(topology: Topology) -> None:
    woods = trees.forest(topology, topology)
    assert tuple(woods.trees) == topology.core_switches
    for tree in woods.trees.values():
        for src, dst in itertools.permutations(topology.edge_switches, 2):
            path = tree.path(src, dst)
            assert len(path) - 1 == topology.distances(src)[dst] == tree.hops[src][dst]
            assert all(topology.link_between(a, b) for a, b in itertools.pairwise(path))


def test_ids_follow_from_content_alone() -> None:
    topology = leaf_spine(4, 2, 3)
    shuffled = list(topology.links)
    random.Random(4).shuffle(shuffled)
    again = Topology.build("another name", topology.hosts[::-1], topology.switches[::-1], shuffled)
    ids = {root: tree.vid for root, tree in trees.forest(topology, topology).trees.items()}
    assert ids == {root: tree.vid for root, tree in trees.forest(again, again).trees.items()}
    assert len(set(ids.values())) == 3
    assert all(trees.FIRST_VID <= vid <= trees.LAST_VID for vid in ids.values())


def test_only_the_trees_that_a_failure_touches_get_another_id_and_the_repair_brings_it_back() -> None:
    topology = leaf_spine(4, 2, 3)
    before = trees.forest(topology, topology).trees
    live = topology.without([topology.link_between("edge1", "core2").name])
    after = trees.forest(topology, live).trees
    assert [root for root in before if before[root].vid != after[root].vid] == ["core2"]
    repaired = trees.forest(topology, live.without())
    assert repaired.trees["core2"].vid == after["core2"].vid
    assert trees.forest(topology, topology.without()).trees == before


def test_equally_good_parents_are_shared_out_among_the_trees() -> None:
    """Four core switches, each cabled to both aggregation switches of a pod: neither may be left idle."""
    cores, middles = [f"core{i}" for i in range(1, 9)], ["agg1", "agg2"]
    hosts = [Host(name="a"), Host(name="b")]
    names = ["edge1", "edge2", *middles, *cores]
    ports = dict.fromkeys([*names, "a", "b"], 0)

    def cable(a: str, b: str) -> Link:
        ports[a] += 1
        ports[b] += 1
        return Link(a=a, a_port=ports[a], b=b, b_port=ports[b], capacity_bps=10**8)

    links = [cable("a", "edge1"), cable("b", "edge2")]
    links += [cable(edge, middle) for edge in ("edge1", "edge2") for middle in middles]
    links += [cable(middle, core) for middle in middles for core in cores]
    topology = Topology.build("mesh", hosts, [Switch(name=n, dpid=i) for i, n in enumerate(names, 1)], links)
    used = {tree.up["edge1"][0] for tree in trees.forest(topology, topology).trees.values()}
    assert used == set(middles)


def test_edge_switches_cut_off_from_every_core_switch_still_reach_each_other() -> None:
    topology = fat_tree(4)
    live = topology.without(switches=topology.core_switches)
    woods = trees.forest(topology, live)
    assert woods.ways("edge1", "edge2") == 2
    assert woods.ways("edge1", "edge3") is None


def test_more_trees_than_ids_is_an_error() -> None:
    topology = leaf_spine(2, 1, 3)
    with pytest.raises(ValueError, match="3 trees need as many VLAN ids; there are 2"):
        trees.forest(topology, topology, 2, 3)


# -- ids that are used again ---------------------------------------------------------------------------------


@pytest.fixture
def few_ids(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Seven ids instead of 4,093, so that new trees keep meeting the ids of old ones."""
    caches = (path_choices.path_choices, labelled._static_rules, labelled._class_rules)
    for cache in caches:
        cache.cache_clear()
    for module in (labelled, path_choices):
        monkeypatch.setattr(module, "forest", functools.partial(trees.forest, last_vid=8))
    yield
    for cache in caches:
        cache.cache_clear()


@pytest.mark.usefixtures("few_ids")
def test_an_id_that_changes_its_meaning_is_out_of_use_in_between() -> None:
    topology = leaf_spine(3, 2, 4)
    macs = {host.name: index for index, host in enumerate(topology.hosts, start=1)}
    pairs = list(itertools.permutations(macs, 2))
    cables = [link.name for link in topology.switch_links]
    met = 0
    for seed in range(120):
        order = random.Random(seed)
        lives = [topology.without(order.sample(cables, order.randrange(3))) for _ in range(2)]
        held, wanted = (planner.desired(topology, live, macs, PathPlan(), failover=False) for live in lives)
        if midway(held, wanted) is not None:
            met += 1
            ids = [{t.vid for t in trees.forest(topology, live, last_vid=8).trees.values()} for live in lives]
            if ids[0] == ids[1]:
                continue  # every id may change its meaning, and none is left to borrow
        net = SoftNetwork(topology, topology, held)
        for phase in planner.difference(held, wanted):
            waiting = {switch: list(changes) for switch, changes in phase.changes.items()}
            while waiting:
                switch = order.choice(sorted(waiting))
                net.apply(switch, waiting[switch].pop(0))
                waiting = {name: left for name, left in waiting.items() if left}
                for src, dst in order.sample(pairs, 3):
                    packet = Packet(eth_src=macs[src], eth_dst=labels.label_of(topology, dst))
                    assert net.send(src, packet).host == dst, (seed, phase.name, src, dst)
        assert net.held == wanted
    assert met > 10, "the test must meet ids used again"


@given(st.sampled_from(TOPOLOGIES), st.data())
def test_a_label_can_be_taken_apart_and_matches_its_edge_prefix_alone(
    topology: Topology, data: st.DataObject
) -> None:
    host = data.draw(st.sampled_from(topology.hosts)).name
    label = labels.label_of(topology, host)
    parts = labels.parse(label)
    assert parts is not None and parts.value == label
    edge = topology.attachment[host][0]
    assert topology.hosts_at[edge][parts.position] == host
    assert parts.storage == (host in topology.storage_hosts)
    for other in topology.edge_switches:
        value, mask = labels.edge_prefix(topology, other)
        assert (label & mask == value) == (other == edge)
    assert labels.parse_mac(labels.format_mac(label)) == label
    assert label >> 40 & 3 == 2, "a locally administered unicast address"


def test_labels_are_distinct_and_other_addresses_are_none() -> None:
    topology = fat_tree(4)
    assert len({labels.label_of(topology, host.name) for host in topology.hosts}) == 16
    assert labels.parse(0x020000000001) is None
    assert labels.parse(1 << 48) is None
    for text in ("", "02:57", "02:57:00:00:00:zz", "0257.0000.0001"):
        with pytest.raises(ValueError):
            labels.parse_mac(text)


def test_a_switch_with_more_hosts_than_labels_have_room_for_is_named() -> None:
    topology = leaf_spine(1, 257, 1)
    labels.label_of(topology, "c256")
    with pytest.raises(TopologyError, match="host storage is number 256 on switch edge1"):
        labels.label_of(topology, "storage")
