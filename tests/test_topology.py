"""The graph: what is accepted, what is refused with which words, and its deterministic answers."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import networkx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystage.interconnect.generate import fat_tree, leaf_spine, paper
from waystage.topology import Host, Link, Switch, Topology, TopologyError, natural_key

MBPS = 10**6
Parts = dict[str, list[Host] | list[Switch] | list[Link]]


def link(a: str, a_port: int, b: str, b_port: int, mbps: int = 100) -> Link:
    return Link(a=a, a_port=a_port, b=b, b_port=b_port, capacity_bps=mbps * MBPS)


def build(**changed: object) -> Topology:
    parts: dict[str, object] = {
        "hosts": [Host(name="a", ip="10.0.0.1", mac="02:00:00:00:00:01"), Host(name="b")],
        "switches": [Switch(name="s", dpid=1), Switch(name="t", dpid=2)],
        "links": [link("a", 1, "s", 1), link("b", 1, "t", 1), link("s", 2, "t", 2)],
    }
    return Topology.build("test", **(parts | changed))  # type: ignore[arg-type]


def test_a_sound_topology_is_accepted_and_sorted_by_nature() -> None:
    topology = build(links=[link("s", 2, "t", 2), link("b", 1, "t", 1), link("a", 1, "s", 1)])
    assert topology == build()
    assert [host.name for host in topology.hosts] == ["a", "b"]
    assert sorted(["c10", "c2", "c1"], key=natural_key) == ["c1", "c2", "c10"]


good_links = [link("a", 1, "s", 1), link("b", 1, "t", 1), link("s", 2, "t", 2)]
WRONG: list[tuple[str, Callable[[], Topology], str]] = [
    ("unreachable", lambda: build(links=good_links[:2]), "cannot be reached from a: add the missing link"),
    ("port twice", lambda: build(links=[*good_links, link("s", 2, "t", 3)]), "port 2 of s is used by links"),
    (
        "zero capacity",
        lambda: build(links=[*good_links[:2], link("s", 2, "t", 2, 0)]),
        "capacity must be above zero",
    ),
    ("two links", lambda: build(links=[*good_links, link("a", 2, "t", 3)]), "host a has 2 links"),
    ("no link", lambda: build(links=good_links[1:]), "host a has 0 links"),
    ("no node", lambda: build(links=[*good_links, link("s", 3, "x", 1)]), "there is no node x"),
    ("to itself", lambda: build(links=[*good_links, link("s", 3, "s", 4)]), "joins s to itself"),
    ("port 0", lambda: build(links=[*good_links[:2], link("s", 0, "t", 2)]), "port 0 of s"),
    (
        "dpid twice",
        lambda: build(switches=[Switch(name="s", dpid=1), Switch(name="t", dpid=1)]),
        "share dpid 1",
    ),
    ("dpid 0", lambda: build(switches=[Switch(name="s", dpid=0), Switch(name="t", dpid=1)]), "dpid 0"),
    ("name twice", lambda: build(hosts=[Host(name="a"), Host(name="a")]), "is there twice"),
    ("bad name", lambda: build(hosts=[Host(name="a b"), Host(name="b")]), "node name 'a b'"),
    ("no slot", lambda: build(hosts=[Host(name="a", slots=0), Host(name="b")]), "runs no process"),
    ("bad ip", lambda: build(hosts=[Host(name="a", ip="10.0.0.256"), Host(name="b")]), "not an IPv4 address"),
    (
        "address twice",
        lambda: build(hosts=[Host(name="a", ip="10.0.0.1"), Host(name="b", ip="10.0.0.1")]),
        "share the address 10.0.0.1",
    ),
    ("no host", lambda: build(hosts=[], links=good_links[2:]), "has no host"),
    ("no switch", lambda: Topology.build("x", [Host(name="a")], [], []), "has no switch"),
]


@pytest.mark.parametrize(("make", "words"), [(m, w) for _, m, w in WRONG], ids=[name for name, _, _ in WRONG])
def test_a_faulty_topology_is_refused_in_words_that_name_the_fault(
    make: Callable[[], Topology], words: str
) -> None:
    with pytest.raises(TopologyError) as caught:
        make()
    assert words in str(caught.value)


TOPOLOGIES = [paper(), leaf_spine(3, 2, 3), fat_tree(4)]


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=lambda t: t.name)
def test_levels_edges_and_cores(topology: Topology) -> None:
    assert all(name.startswith("edge") for name in topology.edge_switches)
    assert all(name.startswith("core") for name in topology.core_switches)
    assert set(topology.level.values()) == ({0, 1, 2} if topology.name == "fat-tree-4" else {0, 1})
    for edge, hosts in topology.hosts_at.items():
        ports = [topology.attachment[host][1] for host in hosts]
        assert ports == sorted(ports) and all(topology.attachment[host][0] == edge for host in hosts)


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=lambda t: t.name)
def test_paths_agree_with_an_independent_implementation(topology: Topology) -> None:
    graph = networkx.Graph()
    graph.add_edges_from((item.a, item.b) for item in topology.links)
    names = [host.name for host in topology.hosts]
    for src, dst in itertools.islice(itertools.permutations(names, 2), 60):
        theirs = {tuple(path) for path in networkx.all_shortest_paths(graph, src, dst)}
        ours = topology.shortest_paths(src, dst)
        assert set(ours) == theirs and ours == sorted(ours)
        assert topology.dijkstra(src, dst) in theirs
        assert topology.distances(src)[dst] == len(ours[0]) - 1


@given(st.sampled_from(TOPOLOGIES), st.data())
def test_dijkstra_keeps_out_of_what_it_shall_avoid_and_minds_weights(
    topology: Topology, data: st.DataObject
) -> None:
    src, dst = data.draw(st.sampled_from(list(itertools.permutations([h.name for h in topology.hosts], 2))))
    avoid = frozenset(data.draw(st.lists(st.sampled_from(topology.core_switches), unique=True)))
    path = topology.dijkstra(src, dst, avoid=avoid)
    assert (path is None) == (dst not in topology.distances(src, avoid))
    assert path is None or not set(path) & avoid
    heavy = data.draw(st.sampled_from(topology.core_switches))
    light = topology.dijkstra(src, dst, weight=lambda item, at: 9.0 if item.other(at) == heavy else 1.0)
    assert light is not None and heavy not in light


def test_what_is_down_takes_its_cables_along_and_nodes_stay() -> None:
    topology = paper()
    name = topology.link_between("edge1", "core1").name
    assert topology.without() is topology
    cut = topology.without([name])
    assert len(cut.links) == len(topology.links) - 1 and cut.hosts == topology.hosts
    dead = topology.without(switches=["core1"])
    assert not dead.adjacency["core1"] and dead.switches == topology.switches
    with pytest.raises(KeyError):
        cut.link_between("edge1", "core1")
