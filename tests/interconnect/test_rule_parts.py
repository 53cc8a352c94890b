"""Cookies, marks, generated topologies, path indexes, and the order of changes to a pair's path."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystage import spread
from waystage.events import CLASSES, PairPath, PathPlan
from waystage.interconnect import cookies, labels, planner
from waystage.interconnect.cookies import Cookie
from waystage.interconnect.generate import fat_tree, leaf_spine, paper
from waystage.interconnect.marks import Mark
from waystage.interconnect.rules import Output, Rule, SetEthDst
from waystage.interconnect.soft_table import Packet, SoftNetwork
from waystage.policies.off_status import base_pairs
from waystage.topology import Host, Link, Switch, Topology, TopologyError


@given(
    kind=st.sampled_from(cookies.KINDS),
    traffic=st.sampled_from([None, *CLASSES]),
    port=st.integers(0, 0xFFFF),
    rank=st.integers(0, 15),
    content=st.integers(0, cookies.HASH_MASK),
)
def test_a_cookie_keeps_all_its_parts(kind, traffic, port, rank, content) -> None:  # type: ignore[no-untyped-def]
    cookie = Cookie(kind=kind, traffic=traffic, port=port, rank=rank, content=content)
    assert cookies.decode(cookies.encode(cookie)) == cookie
    assert 0 <= cookies.encode(cookie) < 2**64


@given(st.integers(0, 2**64 - 1))
def test_a_foreign_cookie_is_none_or_encodes_to_itself(value: int) -> None:
    cookie = cookies.decode(value)
    assert cookie is None or cookies.encode(cookie) == value


def test_rules_with_other_steps_have_other_cookies() -> None:
    one, other = (cookies.stamped(1, 1, (), (SetEthDst(mac), Output(1))) for mac in (1, 2))
    assert one.cookie != other.cookie
    assert cookies.content_of(one) == cookies.content_of(Rule(table=1, priority=1, steps=one.steps))


def test_every_rule_is_accounted_for_by_its_port_and_class() -> None:
    topology = paper()
    macs = {host.name: i for i, host in enumerate(topology.hosts, start=1)}
    for plan in (
        PathPlan(),
        PathPlan(style="per-pair", base_pairs=base_pairs(topology, topology, "pair", 0)),
    ):
        held = planner.desired(topology, topology, macs, plan)
        for switch, rules in held.items():
            ports = {link.port_at(switch) for link in topology.adjacency[switch]}
            counted = Counter()  # type: ignore[var-annotated]
            for rule in rules.rules.values():
                cookie = cookies.decode(rule.cookie)
                assert cookie is not None
                counted[cookie.kind] += 1
                if cookie.kind != "none":
                    assert cookie.port in ports and cookie.traffic is not None
            assert counted["rx"] or counted["tx"]


def test_a_mark_needs_exactly_one_header_in_range() -> None:
    for wrong in ({}, {"dscp": 10, "tcp_port": 1}, {"dscp": 64}, {"dscp": 0}, {"tcp_port": 65536}):
        with pytest.raises(ValueError, match="mark for io"):
            Mark(traffic="io", **wrong)


def test_an_operators_own_marks_replace_the_defaults() -> None:
    topology = paper()
    macs = {host.name: i for i, host in enumerate(topology.hosts, start=1)}
    plan = PathPlan(cores={"mpi": ("core1",), "io": ("core2",)})
    marks = (Mark(traffic="io", tcp_port=2049),)
    net = SoftNetwork(topology, topology, planner.desired(topology, topology, macs, plan, marks=marks))
    label = labels.label_of(topology, "c4")
    for headers, core in (
        ({"dst_port": 2049}, "core2"),
        ({"src_port": 2049}, "core2"),
        ({"dst_port": 8731}, "core1"),
        ({"ip_dscp": 12}, "core1"),
        ({"dst_port": 2049, "ip_proto": 17}, "core1"),
    ):
        journey = net.send("c1", Packet(eth_src=macs["c1"], eth_dst=label, **headers))
        assert core in journey.path, headers


# -- generated topologies ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("topology", "hosts", "cores", "edges"),
    [
        (paper(), 7, 2, 2),
        (leaf_spine(8, 8, 4, storage_hosts=2), 64, 4, 8),
        (leaf_spine(32, 32, 16, storage_hosts=32), 1024, 16, 32),
        (fat_tree(4), 16, 4, 8),
        (fat_tree(16, storage_hosts=8), 1024, 64, 128),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_generated_topologies_have_the_shape_asked_for(
    topology: Topology, hosts: int, cores: int, edges: int
) -> None:
    assert (len(topology.hosts), len(topology.core_switches), len(topology.edge_switches)) == (
        hosts,
        cores,
        edges,
    )
    assert len({len(topology.hosts_at[edge]) for edge in topology.edge_switches}) <= 2


WRONG_SHAPES: list[Callable[[], Topology]] = [
    lambda: leaf_spine(0, 1, 1),
    lambda: leaf_spine(1, 1, 1, storage_hosts=2),
    lambda: fat_tree(3),
    lambda: fat_tree(0),
]


@pytest.mark.parametrize("build", WRONG_SHAPES)
def test_a_shape_that_cannot_be_built_is_an_error(build: Callable[[], Topology]) -> None:
    with pytest.raises(TopologyError, match="give"):
        build()


# -- path indexes ----------------------------------------------------------------


@given(cores=st.integers(1, 200), data=st.data())
def test_slots_divide_evenly_and_a_slot_keeps_its_core_switch_where_it_may(
    cores: int, data: st.DataObject
) -> None:
    names = [f"core{i}" for i in range(cores)]
    usable = data.draw(st.lists(st.sampled_from(names), unique=True, min_size=1))
    homes, everywhere = spread.cores_of_paths(names, usable), spread.cores_of_paths(names, ())
    assert set(homes) <= set(usable)
    assert all(home == own for home, own in zip(homes, everywhere, strict=True) if own in usable)
    counts = Counter(homes)
    if cores <= 16:
        assert set(homes) == set(usable)
        assert max(counts.values()) - min(counts.values()) <= max(1, max(counts.values()) // 2)
    if cores <= 4:
        assert len(set(counts.values())) == 1
    assert spread.host_key_count(cores) % spread.path_count(cores) == 0
    assert spread.host_key_count(cores) <= spread.MAX_PATHS


def test_the_pair_table_is_bounded_balanced_and_seeded() -> None:
    for cores in range(1, 200):
        table = spread.pair_table(cores, 1)
        cells = Counter(itertools.chain.from_iterable(table))
        assert sum(cells.values()) <= 12 * 16
        assert set(cells) <= set(range(spread.path_count(cores)))
        assert max(cells.values()) - min(cells.values()) <= 1
    assert spread.pair_table(4, 1) != spread.pair_table(4, 2)


# -- the order in which a pair's path changes ----------------------------------------------------------------


def mesh() -> Topology:
    """Two edge switches, each cabled to two others, and those to two core switches: paths may share switches."""
    hosts = [Host(name="x"), Host(name="y")]
    names = ["edge1", "edge2", "agg1", "agg2", "core1", "core2"]
    ports = dict.fromkeys([*names, "x", "y"], 0)
    links: list[Link] = []
    cables = [("x", "edge1"), ("y", "edge2")]
    cables += [(edge, agg) for edge in names[:2] for agg in names[2:4]]
    cables += [(agg, core) for agg in names[2:4] for core in names[4:]]
    for a, b in cables:
        ports[a] += 1
        ports[b] += 1
        links.append(Link(a=a, a_port=ports[a], b=b, b_port=ports[b], capacity_bps=10**8))
    return Topology.build("mesh", hosts, [Switch(name=n, dpid=i) for i, n in enumerate(names, 1)], links)


ROUTES = [
    ("x", "edge1", "agg1", "edge2", "y"),
    ("x", "edge1", "agg2", "edge2", "y"),
    ("x", "edge1", "agg1", "core1", "agg2", "edge2", "y"),
    ("x", "edge1", "agg2", "core1", "agg1", "edge2", "y"),
    ("x", "edge1", "agg1", "core2", "agg2", "edge2", "y"),
]


@pytest.mark.parametrize(("old", "new"), list(itertools.permutations(ROUTES, 2)), ids=str)
def test_a_path_that_meets_the_old_one_is_put_in_from_its_end(
    old: tuple[str, ...], new: tuple[str, ...]
) -> None:
    """The third and fourth route pass the same switches in opposite order: any other order of changes loops."""
    topology = mesh()
    macs = {host.name: i for i, host in enumerate(topology.hosts, start=1)}
    packet = Packet(eth_src=macs["x"], eth_dst=labels.label_of(topology, "y"))
    below, above = (PairPath(path=old),), (PairPath(path=new),)
    story = [
        PathPlan(style="per-pair", base_pairs=base, pairs=pairs)
        for base, pairs in (
            (below, ()),
            (below, above),
            (below, below),
            (below, above),
            (below, ()),
            (above, ()),
        )
    ]
    for before, after in itertools.pairwise(story):
        held, wanted = (planner.desired(topology, topology, macs, plan) for plan in (before, after))
        for seed in range(6):
            net, order = SoftNetwork(topology, topology, held), random.Random(seed)
            for phase in planner.difference(held, wanted):
                todo = [(switch, change) for switch, changes in phase.changes.items() for change in changes]
                order.shuffle(todo)
                for switch, change in todo:
                    net.apply(switch, change)
                    assert net.send("x", packet).host == "y", (phase.name, switch, change.op)
            assert net.held == wanted
