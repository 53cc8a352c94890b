"""Selectors and mappers: what each one gives by hand, and what all keep to."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulate_support import small_cluster
from waystage._native import Network
from waystage.experiment.scheduling import AlgorithmError
from waystage.experiment.schema import GeneratedPattern, TopologyChoice
from waystage.simulate.algorithms import SHIPPED, build
from waystage.simulate.cluster import Cluster, from_topology
from waystage.simulate.mappers.application_aware import ApplicationAware
from waystage.simulate.mappers.partition import Graph, divide
from waystage.simulate.selectors.linear import Linear
from waystage.simulate.selectors.topology_aware import TopologyAware
from waystage.simulate.topologies import build as build_topology
from waystage.simulate.traffic import Pairs, Traffic, generate, merged, placed
from waystage.topology import Host, Link, Switch, Topology

CLUSTER = small_cluster(leaves=4, hosts=4, spines=2)


def uneven() -> Cluster:
    """Hosts of 1, 2, 3 and 4 slots in turn, three on each of four edge switches."""
    hosts = [Host(name=f"h{i}", slots=1 + i % 4) for i in range(12)]
    switches = [Switch(name=f"s{i}", dpid=i + 1) for i in range(5)]
    links = [
        Link(a=f"h{i}", a_port=1, b=f"s{i // 3}", b_port=1 + i % 3, capacity_bps=10**8) for i in range(12)
    ]
    links += [Link(a=f"s{i}", a_port=9, b="s4", b_port=i + 1, capacity_bps=10**8) for i in range(4)]
    return from_topology(Topology.build("uneven", hosts, switches, links))


def pairs_of(ranks: int, *triples: tuple[int, int, float]) -> Traffic:
    src, dst, amount = (np.array(column) for column in zip(*triples, strict=True))
    total = Pairs(src.astype(np.uint32), dst.astype(np.uint32), amount.astype(np.float64))
    return Traffic(ranks, total, (total,), str(triples))


def test_linear_takes_the_smallest_gap_that_does() -> None:
    # Gaps of 2, 5 and 3.
    free = [0, 1, 4, 5, 6, 7, 8, 12, 13, 14]
    assert Linear().select(3, free, CLUSTER) == [12, 13, 14]
    assert Linear().select(4, free, CLUSTER) == [4, 5, 6, 7]
    # None does: the largest first.
    assert Linear().select(6, free, CLUSTER) == [4, 5, 6, 7, 8, 12]
    assert Linear().select(11, free, CLUSTER) is None


def test_topology_aware_stays_under_one_switch_and_keeps_large_gaps() -> None:
    # Switches hold hosts 0-3, 4-7, 8-11, 12-15; one has two free hosts, one three, one four.
    free = [0, 1, 4, 5, 6, 8, 9, 10, 11]
    assert TopologyAware().select(2, free, CLUSTER) == [0, 1]
    assert TopologyAware().select(3, free, CLUSTER) == [4, 5, 6]
    # Six: the whole fourth switch and the two-host gap, not the three-host one.
    assert TopologyAware().select(6, free, CLUSTER) == [0, 1, 8, 9, 10, 11]
    assert TopologyAware().select(10, free, CLUSTER) is None


def test_topology_aware_prefers_the_same_pod() -> None:
    tree = build_topology(TopologyChoice(kind="fat-tree", params={"k": 4}), Path("."))
    # Two hosts a switch, two switches a pod; pods 1 and 2 have one free switch, pod 3 has both.
    edges = sorted(set(tree.edge_of))
    free = [h for h, edge in enumerate(tree.edge_of) if edge in (edges[0], edges[2], edges[4], edges[5])]
    chosen = TopologyAware().select(4, free, tree)
    assert chosen is not None and {tree.edge_of[h] for h in chosen} == {edges[4], edges[5]}


@pytest.mark.parametrize("name", sorted(SHIPPED["host_selector"]))
@settings(max_examples=60)
@given(data=st.data())
def test_a_selector_gives_free_hosts_with_slots_enough_or_none_where_there_are_none(
    name: str, data: Any
) -> None:
    cluster = uneven()
    free = sorted(data.draw(st.sets(st.integers(0, 11))))
    ranks = data.draw(st.integers(1, 30))
    selector = build("host_selector", name, {}, 7)
    chosen = selector.select(ranks, free, cluster)
    if sum(cluster.slots[h] for h in free) < ranks:
        assert chosen is None
    else:
        assert len(set(chosen)) == len(chosen) and set(chosen) <= set(free)
        assert sum(cluster.slots[h] for h in chosen) >= ranks


def test_block_fills_hosts_and_cyclic_goes_round_them() -> None:
    cluster, hosts = uneven(), [1, 2, 3]  # 2, 3 and 4 slots
    traffic = generate(GeneratedPattern(kind="ring", ranks=8))
    assert build("process_mapper", "block", {}, 0).map(traffic, hosts, cluster) == [1, 1, 2, 2, 2, 3, 3, 3]
    assert build("process_mapper", "cyclic", {}, 0).map(traffic, hosts, cluster) == [1, 2, 3, 1, 2, 3, 2, 3]


@pytest.mark.parametrize("name", sorted(SHIPPED["process_mapper"]))
@settings(max_examples=25)
@given(ranks=st.integers(1, 30), seed=st.integers(0, 5), kind=st.sampled_from(["ring", "grid", "random"]))
def test_a_mapper_places_every_rank_and_overfills_no_host(
    name: str, ranks: int, seed: int, kind: Any
) -> None:
    cluster = uneven()
    hosts = Linear().select(ranks, range(12), cluster)
    assert hosts is not None
    traffic = generate(GeneratedPattern(kind=kind, ranks=ranks, partners=3))
    host_of = list(build("process_mapper", name, {}, seed).map(traffic, hosts, cluster))
    assert len(host_of) == ranks
    assert all(host_of.count(h) <= cluster.slots[h] for h in set(host_of))
    assert set(host_of) <= set(hosts)
    assert host_of == list(build("process_mapper", name, {}, seed).map(traffic, hosts, cluster))


def test_application_aware_finds_the_groups_that_talk_among_themselves() -> None:
    # Four groups of four ranks, dealt out so that neither block nor cyclic mapping keeps one together.
    order = list(range(16))
    random.Random(1).shuffle(order)
    groups = [order[i : i + 4] for i in range(0, 16, 4)]
    triples = [(a, b, 1000.0) for g in groups for a in g for b in g if a != b]
    triples += [(a, (a + 1) % 16, 1.0) for a in range(16)]
    traffic = pairs_of(16, *triples)
    host_of = ApplicationAware().map(traffic, range(16), CLUSTER)
    edge_of_rank = [CLUSTER.edge_of[h] for h in host_of]
    assert all(len({edge_of_rank[r] for r in group}) == 1 for group in groups)


def test_application_aware_spares_the_busiest_switch_and_not_the_sum() -> None:
    traffic = generate(GeneratedPattern(kind="grid", ranks=64, bytes=1000))
    cluster = build_topology(
        TopologyChoice(kind="xgft", params={"m": [4, 4], "w": [1, 2], "slots": 4}),
        Path("."),
    )

    def busiest(host_of: Any) -> float:
        pairs = merged(placed(traffic.total, np.asarray(host_of, dtype=np.uint32)), 16)
        network: Network = cluster.network
        loads = network.route_loads("greedy-max", pairs.src, pairs.dst, pairs.amount).loads
        return network.max_load(loads)

    ours = busiest(ApplicationAware().map(traffic, range(16), cluster))
    others = [
        busiest(build("process_mapper", n, {}, 0).map(traffic, range(16), cluster))
        for n in ("block", "cyclic", "random")
    ]
    # A quarter of the 8 x 8 torus under each switch, 4 x 4: 16 cells on its rim send 1000 each; two uplinks.
    assert ours <= 8000
    assert ours <= min(others)


@settings(max_examples=40)
@given(
    sizes=st.lists(st.integers(0, 6), min_size=1, max_size=6).filter(sum),
    edges=st.lists(st.tuples(st.integers(0, 35), st.integers(0, 35), st.floats(0.5, 1e15)), max_size=40),
)
def test_a_graph_is_divided_into_parts_of_exactly_the_sizes_asked_for(sizes: Any, edges: Any) -> None:
    n = sum(sizes)
    columns = [[a % n for a, _, _ in edges], [b % n for _, b, _ in edges]]
    src, dst = (np.array(c, dtype=np.int64) for c in columns)
    graph = Graph.of(n, src, dst, np.array([w for _, _, w in edges], dtype=np.float64))
    part = divide(graph, np.array(sizes), 0)
    assert np.bincount(part, minlength=len(sizes)).tolist() == sizes


def test_bytes_between_hosts_are_added_up_in_order_of_first_appearance() -> None:
    traffic = pairs_of(4, (3, 0, 5.0), (0, 1, 1.0), (2, 0, 2.0), (3, 1, 4.0))
    host_of = np.array([0, 0, 1, 2], dtype=np.uint32)
    pairs = merged(placed(traffic.total, host_of), 3)
    found = list(zip(pairs.src.tolist(), pairs.dst.tolist(), pairs.amount.tolist(), strict=True))
    assert found == [(2, 0, 9.0), (1, 0, 2.0)]


def test_an_unknown_algorithm_is_refused_with_what_there_is() -> None:
    with pytest.raises(AlgorithmError, match="unknown router 'dmodk': did you mean d-mod-k"):
        build("router", "dmodk", {}, 0)
    with pytest.raises(AlgorithmError, match="cannot import no_such_module"):
        build("router", "no_such_module:Router", {}, 0)
    with pytest.raises(AlgorithmError, match="has no method paths"):
        build("router", "pathlib:PurePath", {}, 0)
    with pytest.raises(AlgorithmError, match="'easy' has no option 'speed': it takes none"):
        build("scheduler", "easy", {"speed": 3}, 0)
