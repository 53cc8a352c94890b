"""Packets pushed through software switches: under every plan, at every step between two, after every failure."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waystage import events
from waystage.events import PairPath, PathPlan, TopologyChanged, TrafficClass
from waystage.interconnect import labels, pipeline, planner
from waystage.interconnect.generate import fat_tree, leaf_spine, paper
from waystage.interconnect.rules import Change, Field, Output, Phase, Rule, SwitchRules
from waystage.interconnect.soft_table import Journey, Packet, SoftNetwork
from waystage.policies.off_status import base_pairs
from waystage.policies.path_search import path_search
from waystage.state import JobInfo, State
from waystage.topology import Host, Link, Switch, Topology

Held = dict[str, SwitchRules]
HEADERS: dict[TrafficClass | None, dict[str, int]] = {
    None: {},
    "staging": {"ip_dscp": 10},
    "io": {"dst_port": 8731},
    "wan": {"ip_dscp": 14},
}
"""What a host puts into its packets for a class; None is what is classed by its ends."""


def macs_of(topology: Topology) -> dict[str, int]:
    return {host.name: 0x020000000000 + index for index, host in enumerate(topology.hosts, start=1)}


def desired(topology: Topology, live: Topology, plan: PathPlan) -> Held:
    """The rules of a plan where every host's address is known."""
    return planner.desired(topology, live, macs_of(topology), plan)


def network(topology: Topology, live: Topology, plan: PathPlan) -> SoftNetwork:
    """Software switches that hold the rules of a plan."""
    return SoftNetwork(topology, live, desired(topology, live, plan))


def switch_over(topology: Topology, old: PathPlan, new: PathPlan) -> list[Phase]:
    return planner.difference(desired(topology, topology, old), desired(topology, topology, new))


def send(net: SoftNetwork, src: str, dst: str, mark: TrafficClass | None = None) -> Journey:
    macs = macs_of(net.topology)
    label = labels.label_of(net.topology, dst)
    return net.send(src, Packet(eth_src=macs[src], eth_dst=label, **HEADERS[mark]))


def assert_delivered(net: SoftNetwork, src: str, dst: str, mark: TrafficClass | None = None) -> Journey:
    journey = send(net, src, dst, mark)
    assert journey.outcome == "delivered", (src, dst, mark, journey)
    assert journey.host == dst
    assert journey.packet.eth_dst == macs_of(net.topology)[dst], "the host must see its own address"
    assert journey.packet.vlan == 0, "the host must see no tag"
    return journey


def every_packet(topology: Topology) -> list[tuple[str, str, TrafficClass | None]]:
    names = [host.name for host in topology.hosts]
    return [(src, dst, mark) for src, dst in itertools.permutations(names, 2) for mark in HEADERS]


def reachable(live: Topology, src: str, dst: str) -> bool:
    return dst in live.distances(src)


def steps(net: SoftNetwork, phases: list[Phase], order: random.Random) -> Iterator[str]:
    """Carries out the phases with the switches in any order, each at its own speed; yields after every change."""
    for phase in phases:
        waiting = {switch: list(changes) for switch, changes in phase.changes.items()}
        while waiting:
            switch = order.choice(sorted(waiting))
            net.apply(switch, waiting[switch].pop(0))
            if not waiting[switch]:
                del waiting[switch]
            yield phase.name


def line(switches: int) -> Topology:
    """Edge switches in a row and no core: every switch is a root, and most pairs pass other edge switches."""
    names = [f"s{i}" for i in range(1, switches + 1)]
    hosts = [
        Host(name=f"{s}{h}", role="storage" if (s, h) == ("s1", "a") else "compute")
        for s in names
        for h in "ab"
    ]
    links = [
        Link(a=f"{s}{h}", a_port=1, b=s, b_port=port, capacity_bps=10**8)
        for s in names
        for port, h in enumerate("ab", start=1)
    ]
    links += [Link(a=a, a_port=3, b=b, b_port=4, capacity_bps=10**8) for a, b in itertools.pairwise(names)]
    return Topology.build(
        "line", hosts, [Switch(name=s, dpid=i) for i, s in enumerate(names, start=1)], links
    )


def per_pair_plan(
    topology: Topology, live: Topology, nodes: tuple[str, ...], cores: tuple[str, ...]
) -> PathPlan:
    """OFF entries for all pairs, ON entries for one job's nodes, as link separation lists them."""
    base = base_pairs(topology, live, "pair", 1)
    if not nodes:
        return PathPlan(style="per-pair", base_pairs=base)
    state = State(topology=topology, jobs={"j": JobInfo(job_id="j", nodes=nodes, running=True)})
    others = tuple(core for core in topology.core_switches if core not in cores) or cores
    named: dict[TrafficClass, tuple[str, ...]] = {"mpi": cores, "staging": others, "io": cores}
    pairs = path_search(state, topology, live, named, 1)
    return PathPlan(style="per-pair", separated=True, base_pairs=base, pairs=pairs)


def doubled() -> Topology:
    """Two cables between each edge switch and its only core switch: the second is a reserve."""
    topology = leaf_spine(2, 2, 1)
    spare = [
        Link(a=edge, a_port=9, b="core1", b_port=port, capacity_bps=10**8)
        for port, edge in enumerate(topology.edge_switches, start=8)
    ]
    return Topology.build("doubled", topology.hosts, topology.switches, [*topology.links, *spare])


# -- strategies ------------------------------------------------------------------------------------------------

TOPOLOGIES = [
    paper(),
    leaf_spine(3, 2, 2, storage_hosts=1),
    leaf_spine(2, 2, 3, storage_hosts=2),
    leaf_spine(3, 2, 5, storage_hosts=1),
    fat_tree(4),
    line(4),
    doubled(),
    leaf_spine(1, 4, 1),
]


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Topology, Topology, Topology]:
    """A topology, and two states of it with up to two cables and one switch down each."""
    topology = draw(st.sampled_from(TOPOLOGIES))
    lives: list[Topology] = []
    for _ in range(2):
        cables = st.sampled_from([link.name for link in topology.switch_links] or [""])
        cut = draw(st.lists(cables, max_size=2, unique=True))
        dead = draw(st.lists(st.sampled_from([s.name for s in topology.switches]), max_size=1))
        lives.append(topology.without([name for name in cut if name], dead))
    return topology, lives[0], lives[1]


@st.composite
def plans(draw: st.DrawFn, topology: Topology, live: Topology) -> PathPlan:
    some_cores = st.lists(st.sampled_from(topology.core_switches), unique=True, max_size=4).map(tuple)
    if draw(st.booleans()):
        compute = list(topology.compute_hosts)
        nodes = draw(st.lists(st.sampled_from(compute), unique=True, max_size=3))
        cores = draw(some_cores) or topology.core_switches[:1]
        return per_pair_plan(topology, live, tuple(nodes), cores)
    return PathPlan(
        spread=draw(st.sampled_from(["pair", "destination"])),
        seed=draw(st.integers(0, 2)),
        cores={c: draw(some_cores) for c in ("mpi", "staging", "io")},
    )


# -- every plan ---------------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(data=st.data(), world=worlds())
def test_every_reachable_pair_is_delivered_over_the_path_that_path_of_tells(
    data: st.DataObject, world: tuple[Topology, Topology, Topology]
) -> None:
    topology, live, _ = world
    plan = data.draw(plans(topology, live))
    net = network(topology, live, plan)
    for src, dst, mark in every_packet(topology):
        told = planner.path_of(topology, live, plan, src, dst, mark)
        if reachable(live, src, dst):
            assert assert_delivered(net, src, dst, mark).path == told
            assert len(set(told)) == len(told)
        else:
            assert send(net, src, dst, mark).outcome == "dropped"
            assert told == ()


@settings(max_examples=80)
@given(data=st.data(), world=worlds(), seed=st.integers(0, 2**16))
def test_at_every_step_between_two_plans_every_reachable_pair_is_delivered(
    data: st.DataObject, world: tuple[Topology, Topology, Topology], seed: int
) -> None:
    topology, live, _ = world
    order = random.Random(seed)
    held = desired(topology, live, data.draw(plans(topology, live)))
    wanted = desired(topology, live, data.draw(plans(topology, live)))
    net = SoftNetwork(topology, live, held)
    packets = [p for p in every_packet(topology) if reachable(live, p[0], p[1])]
    for _ in steps(net, planner.difference(held, wanted), order):
        for packet in order.sample(packets, min(6, len(packets))):
            assert_delivered(net, *packet)
    assert net.held == wanted
    for packet in packets:
        assert_delivered(net, *packet)


@settings(max_examples=80)
@given(data=st.data(), world=worlds(), seed=st.integers(0, 2**16))
def test_after_a_failure_or_a_repair_no_packet_loops_and_none_that_arrived_is_lost(
    data: st.DataObject, world: tuple[Topology, Topology, Topology], seed: int
) -> None:
    topology, before, after = world
    order = random.Random(seed)
    labelled = data.draw(st.booleans())
    plan = PathPlan(cores={"mpi": topology.core_switches[:1]}) if labelled else None
    held = desired(topology, before, plan or per_pair_plan(topology, before, (), ()))
    wanted = desired(topology, after, plan or per_pair_plan(topology, after, (), ()))
    net = SoftNetwork(topology, after, held)
    packets = [p for p in every_packet(topology) if reachable(after, p[0], p[1])]
    arriving = [p for p in packets if send(net, *p).outcome == "delivered"]
    for _ in steps(net, planner.difference(held, wanted), order):
        for packet in order.sample(arriving, min(4, len(arriving))):
            assert_delivered(net, *packet)
        for packet in order.sample(packets, min(4, len(packets))):
            assert send(net, *packet).outcome != "loop"
    for packet in packets:
        assert_delivered(net, *packet)


@settings(max_examples=60)
@given(data=st.data(), world=worlds(), seed=st.integers(0, 2**16))
def test_the_difference_converges_from_anything_a_killed_controller_left(
    data: st.DataObject, world: tuple[Topology, Topology, Topology], seed: int
) -> None:
    """Some switches empty, some with half of another plan, one that is away, a rule that is not ours."""
    topology, before, live = world
    order = random.Random(seed)
    held: Held = {}
    for switch, rules in desired(topology, before, data.draw(plans(topology, before))).items():
        if order.random() < 0.3:
            held[switch] = SwitchRules()
            continue
        kept = [rule for rule in rules.rules.values() if order.random() < 0.7]
        foreign = Rule(table=0, priority=7, match=(Field("in_port", 99),), steps=(Output(1),), cookie=0xABC)
        held[switch] = SwitchRules.of([*kept, foreign], list(rules.groups.values()))
    away = order.choice(sorted(held))
    del held[away]
    wanted = desired(topology, live, data.draw(plans(topology, live)))
    net = SoftNetwork(topology, live, held)
    packets = every_packet(topology)
    for _ in steps(net, planner.difference(held, wanted), order):
        assert send(net, *order.choice(packets)).outcome != "loop"
    del wanted[away]
    assert {switch: net.held[switch] for switch in held} == wanted
    assert planner.difference(wanted, wanted) == []


def test_each_step_of_off_to_on_and_back_on_the_papers_topology_delivers_every_packet() -> None:
    topology = paper()
    packets = every_packet(topology)
    nodes = ("c1", "c2", "c4")
    labelled_on = PathPlan(separated=True, cores={"mpi": ("core1",), "staging": ("core2",), "io": ("core2",)})
    story = [
        PathPlan(),
        labelled_on,
        PathPlan(),
        per_pair_plan(topology, topology, (), ()),
        per_pair_plan(topology, topology, nodes, ("core1",)),
        per_pair_plan(topology, topology, (*nodes, "c5"), ("core2",)),
        per_pair_plan(topology, topology, (), ()),
        labelled_on,
    ]
    for attempt, (old, new) in enumerate(itertools.pairwise(story)):
        net = network(topology, topology, old)
        phases = switch_over(topology, old, new)
        for number, _ in enumerate(steps(net, phases, random.Random(attempt))):
            for packet in packets[number % 3 :: 3]:
                assert_delivered(net, *packet)


# -- separation ------------------------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(
    topology=st.sampled_from([paper(), leaf_spine(3, 3, 4, storage_hosts=2), fat_tree(4)]),
    data=st.data(),
)
def test_staging_never_crosses_a_core_switch_of_mpi(topology: Topology, data: st.DataObject) -> None:
    cores = list(topology.core_switches)
    mpi = data.draw(st.lists(st.sampled_from(cores), unique=True, min_size=1, max_size=len(cores) - 1))
    staging = tuple(core for core in cores if core not in mpi)
    plan = PathPlan(separated=True, cores={"mpi": tuple(mpi), "staging": staging})
    net = network(topology, topology, plan)
    storage = topology.storage_hosts[0]
    for host in topology.compute_hosts:
        for src, dst in ((storage, host), (host, storage)):
            assert set(assert_delivered(net, src, dst).path).isdisjoint(mpi)
        for other in topology.compute_hosts:
            if other != host:
                assert set(assert_delivered(net, host, other).path).isdisjoint(staging)
                assert set(assert_delivered(net, host, other, "staging").path).isdisjoint(mpi)


def test_per_pair_io_entries_lie_above_the_pairs_own() -> None:
    topology = paper()
    plan = PathPlan(
        style="per-pair",
        base_pairs=base_pairs(topology, topology, "pair", 0),
        pairs=(
            PairPath(path=("storage", "edge1", "core1", "edge2", "c4"), traffic="staging"),
            PairPath(path=("storage", "edge1", "core2", "edge2", "c4"), traffic="io"),
        ),
    )
    net = network(topology, topology, plan)
    assert "core1" in assert_delivered(net, "storage", "c4").path
    assert "core1" in assert_delivered(net, "storage", "c4", "staging").path
    assert "core2" in assert_delivered(net, "storage", "c4", "io").path


# -- cost ----------------------------------------------------------------------------------------------------------


def test_a_labelled_switch_over_repoints_groups_and_nothing_else() -> None:
    topology = leaf_spine(4, 4, 4, storage_hosts=2)
    on = PathPlan(cores={"mpi": ("core1", "core2"), "staging": ("core3", "core4")})
    phases = switch_over(topology, PathPlan(), on)
    assert [phase.name for phase in phases] == ["switch"]
    assert planner.groups_touched(phases) == planner.count_messages(phases)
    paths = labels.path_count(topology)
    assert planner.count_messages(phases) == 2 * 4 * paths // 2, (
        "half of the path indexes of two classes, at each edge"
    )


def test_labelled_rules_do_not_grow_with_jobs_and_per_pair_rules_do() -> None:
    topology = leaf_spine(2, 8, 4)
    on = PathPlan(separated=True, cores={"mpi": ("core1",), "staging": ("core2",)})
    labelled = planner.rule_counts(desired(topology, topology, on))
    assert labelled == planner.rule_counts(desired(topology, topology, PathPlan()))
    one = per_pair_plan(topology, topology, ("c1", "c9"), ("core1",))
    more = per_pair_plan(topology, topology, ("c1", "c9", "c2", "c10"), ("core1",))
    counts = [planner.rule_counts(desired(topology, topology, p))["edge1"] for p in (one, more)]
    assert counts[1] > counts[0]


def test_labelled_rules_of_a_switch_do_not_grow_with_the_pairs_elsewhere() -> None:
    def at_first_edge(leaves: int) -> int:
        topology = leaf_spine(leaves, 16, 4)
        held = desired(topology, topology, PathPlan())
        return planner.rule_counts(held)["edge1"]

    assert at_first_edge(4) == at_first_edge(32)


def test_planning_for_a_thousand_hosts_takes_seconds_at_most() -> None:
    topology = leaf_spine(32, 32, 16, storage_hosts=32)
    held = desired(topology, topology, PathPlan())
    most = max(planner.rule_counts(held).values())
    pairs_at_an_edge = 32 * 992 * 2 + 32 * 31
    assert most * 100 < pairs_at_an_edge


# -- failures ----------------------------------------------------------------------------------------------------------


def test_an_edge_switch_turns_to_another_uplink_before_any_controller_does() -> None:
    topology = leaf_spine(3, 2, 3)
    held = desired(topology, topology, PathPlan())
    uplink = topology.link_between("edge1", "core1")
    net = SoftNetwork(topology, topology.without([uplink.name]), held)
    for dst in ("c3", "c5", "storage"):
        for mark in HEADERS:
            assert_delivered(net, "c1", dst, mark)


def test_a_class_leaves_its_core_switches_only_where_they_lead_the_long_way() -> None:
    topology = leaf_spine(3, 2, 2)
    live = topology.without([topology.link_between("edge2", "core1").name])
    plan = PathPlan(separated=True, cores={"mpi": ("core1",), "staging": ("core2",)})
    net = network(topology, live, plan)
    assert assert_delivered(net, "c1", "c5").path == ("c1", "edge1", "core1", "edge3", "c5")
    assert assert_delivered(net, "c1", "c3").path == ("c1", "edge1", "core2", "edge2", "c3")


def test_a_stale_per_pair_plan_over_a_dead_link_still_delivers() -> None:
    topology = paper()
    live = topology.without(switches=["core1"])
    plan = per_pair_plan(topology, topology, ("c1", "c4"), ("core1",))
    net = network(topology, live, plan)
    for packet in every_packet(topology):
        assert_delivered(net, *packet)


def test_a_path_that_the_topology_does_not_have_is_named() -> None:
    topology = paper()
    for path, why in (
        (("c1", "edge1", "edge2", "c4"), "no link from edge1 to edge2"),
        (("c1",), "from one host over switches"),
        (("c1", "edge1", "c2", "edge1", "c3"), "passes a host"),
    ):
        plan = PathPlan(style="per-pair", base_pairs=(PairPath(path=path),))
        with pytest.raises(planner.PlanError, match=why):
            desired(topology, topology, plan)


# -- what no host should send --------------------------------------------------------------------------------


@pytest.mark.parametrize("style", ["labelled", "per-pair"])
def test_strange_packets_are_dropped_and_never_loop(style: str) -> None:
    topology = leaf_spine(3, 2, 2)
    macs = macs_of(topology)
    plan = PathPlan() if style == "labelled" else per_pair_plan(topology, topology, (), ())
    net = network(topology, topology, plan)
    label = labels.label_of(topology, "c3")
    for packet in (
        Packet(eth_src=macs["c1"], eth_dst=0xFFFFFFFFFFFF),
        Packet(eth_src=macs["c1"], eth_dst=macs["c3"]),
        Packet(eth_src=macs["c1"], eth_dst=labels.Label(999, 0, False, 3).value),
        Packet(eth_src=macs["c1"], eth_dst=labels.Label(0, 200, False, 3).value),
        Packet(eth_src=macs["c1"], eth_dst=labels.Label(1, 200, False, 3).value),
        Packet(eth_src=macs["c1"], eth_dst=labels.label_of(topology, "c1")),
        Packet(eth_src=macs["c1"], eth_dst=label, vlan=2, pcp=1),
        Packet(eth_src=macs["c1"], eth_dst=label, vlan=100, pcp=7),
    ):
        journey = net.send("c1", packet)
        assert journey.outcome == "dropped", journey
    dropped = net.send("c1", Packet(eth_src=macs["c1"], eth_dst=labels.Label(0, 200, False, 3).value))
    assert dropped.path == ("c1", "edge1"), "no use of the core for a host that is not there"
    for eth_type in (pipeline.ETH_ARP, pipeline.ETH_LLDP):
        journey = net.send("c1", Packet(eth_src=macs["c1"], eth_dst=0xFFFFFFFFFFFF, eth_type=eth_type))
        assert journey.outcome == "controller"


def test_a_host_whose_address_is_not_known_yet_gets_nothing_and_disturbs_no_other() -> None:
    topology = paper()
    macs = macs_of(topology)
    known = {host: mac for host, mac in macs.items() if host != "c4"}
    net = SoftNetwork(topology, topology, planner.desired(topology, topology, known, PathPlan()))
    assert send(net, "c1", "c4").outcome == "dropped"
    assert_delivered(net, "c1", "c5")
    held = planner.desired(topology, topology, known, PathPlan())
    phases = planner.difference(held, desired(topology, topology, PathPlan()))
    assert [(p.name, set(p.changes)) for p in phases] == [("prepare", {"edge2"})]


def test_a_new_true_address_changes_one_switch() -> None:
    topology = paper()
    macs = macs_of(topology)
    held = desired(topology, topology, PathPlan())
    new = planner.desired(topology, topology, macs | {"c4": 0x02AA00000001}, PathPlan())
    phases = planner.difference(held, new)
    assert {switch for phase in phases for switch in phase.changes} == {"edge2"}


def test_rules_read_back_without_steps_compare_by_key_and_cookie() -> None:
    topology = paper()
    wanted = desired(topology, topology, PathPlan())
    read = {
        switch: SwitchRules.of(
            [
                Rule(table=r.table, priority=r.priority, match=r.match, cookie=r.cookie)
                for r in rules.rules.values()
            ],
            list(rules.groups.values()),
        )
        for switch, rules in wanted.items()
    }
    assert planner.difference(read, wanted) == []


def test_the_software_switch_refuses_what_a_switch_refuses() -> None:
    topology = paper()
    net = SoftNetwork(topology, topology, planner.desired(topology, topology, {}, PathPlan()))
    group = next(iter(net.held["edge1"].groups.values()))
    with pytest.raises(ValueError, match="while a rule sends to it"):
        net.apply("edge1", Change(op="delete", item=group))
    with pytest.raises(ValueError, match="cannot add"):
        net.apply("edge1", Change(op="add", item=group))


def test_the_same_topology_read_twice_gives_the_same_rules() -> None:
    topology = fat_tree(4)
    again = events.decode(events.encode(events.envelope(TopologyChanged(topology=topology)))).event
    assert isinstance(again, TopologyChanged)
    macs = macs_of(topology)
    one = desired(topology, topology, PathPlan())
    assert one == planner.desired(again.topology, again.topology, macs, PathPlan())
