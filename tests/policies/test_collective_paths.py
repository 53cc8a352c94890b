"""Paths of MPI collectives: never worse than the hash, bounded, given back, and what switches do is what was planned."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waystage import mpi_steps
from waystage.controllers.collective_placements import CollectivePlacements
from waystage.events import (
    AssignPaths,
    CollectiveDeclared,
    CollectiveObserved,
    Envelope,
    Event,
    FlowsListed,
    LinkDown,
    MpiProgramFinished,
    MpiRanksReported,
    PathPlan,
    TopologyChanged,
)
from waystage.events.actions import MAX_STEERED
from waystage.forecast.collectives import Placement, calls
from waystage.interconnect import labels, planner
from waystage.interconnect.generate import fat_tree, leaf_spine
from waystage.interconnect.soft_table import Packet, SoftNetwork
from waystage.policies.base import Policy, PolicyError, load_policy
from waystage.state import State
from waystage.topology import Topology

EIGHT = leaf_spine(2, 4, 2, storage_hosts=0)
SIXTEEN = leaf_spine(4, 4, 4, storage_hosts=0)


class Controlled:
    """The policy with the state that it is asked about."""

    def __init__(self, topology: Topology, **options: Any) -> None:
        self.policy = self.load(**options)
        self.state, self.topology = State(), topology
        self.see(TopologyChanged(topology=topology))

    def load(self, **options: Any) -> Policy:
        return load_policy("collective-paths", **options)

    def see(self, *events: Event) -> None:
        for event in events:
            self.state.apply(Envelope(event=event, event_id="e", time_ns=self.state.time_ns + 1))
            for action in self.policy(event, self.state):
                assert isinstance(action, AssignPaths)
                self.state.record_request(action)

    def start(self, app: str, hosts: list[str], per_host: int = 1) -> None:
        size = len(hosts) * per_host
        for at, host in enumerate(hosts):
            ranks = tuple(range(at * per_host, (at + 1) * per_host))
            self.see(MpiRanksReported(app=app, agent="n1", host=host, ranks=ranks, size=size))

    def declare(self, app: str, size: int, algorithm: str = "recursive_doubling", **more: Any) -> None:
        fields: dict[str, Any] = {
            "primitive": "allreduce",
            "bytes": 1 << 20,
            "ranks": tuple(range(size)),
        } | more
        self.see(
            CollectiveDeclared(app=app, agent="n1", key=f"{algorithm}{more}", algorithm=algorithm, **fields)
        )

    @property
    def plan(self) -> PathPlan:
        assert self.state.requested is not None
        return self.state.requested

    def seconds(self, app: str, plan: PathPlan) -> float:
        cores = {(src, dst): core for src, row in plan.steered.items() for dst, core in row.items()}
        placement = Placement(self.state, PathPlan(seed=plan.seed), {})
        return placement.seconds(calls(self.state, self.state.mpi.programs[app]), cores)


@given(
    topology=st.sampled_from(
        [EIGHT, SIXTEEN, leaf_spine(4, 2, 2, storage_hosts=0), fat_tree(4, storage_hosts=0)]
    ),
    seed=st.integers(0, 50),
    algorithm=st.sampled_from(["recursive_doubling", "rabenseifner", "ring"]),
    order=st.randoms(use_true_random=False),
    per_host=st.sampled_from([1, 3]),
)
@settings(max_examples=40, deadline=None)
def test_a_call_is_never_predicted_to_be_slower_than_over_the_hash(
    topology: Topology, seed: int, algorithm: str, order: Any, per_host: int
) -> None:
    control = Controlled(topology, seed=seed)
    hosts = list(topology.compute_hosts)
    order.shuffle(hosts)
    hosts = hosts[: order.randint(2, len(hosts))]
    control.start("0/a", hosts, per_host)
    control.declare("0/a", len(hosts) * per_host, algorithm)
    assert control.seconds("0/a", control.plan) <= control.seconds("0/a", PathPlan(seed=seed)) * (1 + 1e-9)


def test_eight_hosts_of_which_a_hash_sends_all_pairs_over_one_uplink_are_spread_evenly() -> None:
    control = Controlled(EIGHT, seed=0)
    hosts = list(EIGHT.compute_hosts)
    hosts = [
        hosts[half * 4 + at] for at in range(4) for half in (0, 1)
    ]  # neighbours in rank on different switches
    control.start("0/a", hosts)
    control.declare("0/a", 8)
    over: Counter[str] = Counter()
    for left in range(0, 8, 2):
        over[planner.path_of(EIGHT, EIGHT, control.plan, hosts[left], hosts[left + 1])[2]] += 1
    assert over == {"core1": 2, "core2": 2}


def test_hosts_share_no_uplink_with_others_in_any_step_where_there_are_enough() -> None:
    control = Controlled(SIXTEEN, seed=1)
    hosts = list(SIXTEEN.compute_hosts)
    control.start("0/a", hosts)
    control.declare("0/a", 16)
    users: dict[tuple[str, str], set[str]] = {}
    for steps in calls(control.state, control.state.mpi.programs["0/a"]):
        for src, dst in {pair for step in steps for pair in step}:
            path = planner.path_of(SIXTEEN, SIXTEEN, control.plan, src, dst)
            if len(path) > 3:
                users.setdefault((path[1], path[2]), set()).add(src)
                users.setdefault((path[2], path[3]), set()).add(dst)
    assert {len(ends) for ends in users.values()} == {1}


def test_messages_that_take_no_time_on_the_wire_change_no_path() -> None:
    control = Controlled(SIXTEEN, seed=1)
    control.start("0/a", list(SIXTEEN.compute_hosts))
    control.declare("0/a", 16, bytes=8)
    assert not control.plan.steered
    control.declare("0/a", 16, bytes=1 << 20)
    assert control.plan.steered


def test_a_larger_message_of_the_same_ranks_moves_no_pair_again() -> None:
    control = Controlled(SIXTEEN, seed=1)
    control.start("0/a", list(SIXTEEN.compute_hosts))
    control.declare("0/a", 16, bytes=1 << 20)
    first = control.plan.steered
    for exponent in range(21, 26):
        control.declare("0/a", 16, bytes=1 << exponent)
        assert control.plan.steered == first


def test_packets_of_steered_pairs_take_the_planned_path_and_others_keep_theirs() -> None:
    control = Controlled(SIXTEEN, seed=1)
    hosts = list(SIXTEEN.compute_hosts)
    control.start("0/a", hosts)
    control.declare("0/a", 16)
    plan = control.plan
    assert plan.steered
    macs = {host: number for number, host in enumerate(hosts, start=1)}
    net = SoftNetwork(SIXTEEN, SIXTEEN, planner.desired(SIXTEEN, SIXTEEN, macs, plan))
    for src in hosts:
        for dst in hosts:
            if src != dst:
                journey = net.send(src, Packet(eth_src=1, eth_dst=labels.label_of(SIXTEEN, dst)))
                assert journey.path == planner.path_of(SIXTEEN, SIXTEEN, plan, src, dst)
                if dst not in plan.steered.get(src, {}):
                    assert journey.path == planner.path_of(SIXTEEN, SIXTEEN, PathPlan(seed=1), src, dst)


def test_switches_get_a_bounded_number_of_rules_whatever_a_plan_asks_for() -> None:
    large = leaf_spine(4, 32, 4, storage_hosts=0)
    hosts = list(large.compute_hosts)
    plan = PathPlan(steered={src: dict.fromkeys(hosts, "core1") for src in hosts})
    macs = {host: number for number, host in enumerate(hosts, start=1)}
    plain = planner.rule_counts(planner.desired(large, large, macs, PathPlan()))
    for switch, count in planner.rule_counts(planner.desired(large, large, macs, plan)).items():
        assert count - plain[switch] <= 2 * MAX_STEERED


def test_a_programs_pairs_go_back_to_the_hash_when_it_ends_and_anothers_stay() -> None:
    control = Controlled(SIXTEEN, seed=1)
    hosts = list(SIXTEEN.compute_hosts)
    control.start("0/a", hosts[::2])
    control.declare("0/a", 8)
    first = control.plan.steered
    control.start("0/b", hosts[1::2])
    control.declare("0/b", 8)
    assert first and {**control.plan.steered, **first} == control.plan.steered
    for host in hosts[1::2]:
        control.see(MpiProgramFinished(app="0/b", agent="n1", host=host))
    assert control.plan.steered == first
    control.see(
        FlowsListed(agent="n1", flows=())
    )  # its agent has started again: nothing is known of its ranks
    assert not control.plan.steered and not control.state.mpi.programs


def test_without_a_core_switch_pairs_move_to_those_that_are_left() -> None:
    control = Controlled(SIXTEEN, seed=1)
    hosts = list(SIXTEEN.compute_hosts)
    control.start("0/a", hosts)
    control.declare("0/a", 16)
    for link in SIXTEEN.adjacency["core1"]:
        control.see(LinkDown(link=link.name))
    live = control.state.live_topology
    assert live is not None
    for src in hosts:
        for dst in hosts:
            assert src == dst or "core1" not in planner.path_of(SIXTEEN, live, control.plan, src, dst)


def test_thousands_of_declarations_leave_a_bounded_state() -> None:
    control = Controlled(EIGHT)
    control.start("0/a", list(EIGHT.compute_hosts))
    for number in range(200):
        control.declare("0/a", 8, bytes=number + 1)
    assert len(control.state.mpi.programs["0/a"].collectives) <= 64


def ring_of(hosts: list[str]) -> dict[int, tuple[tuple[int, int], ...]]:
    """What its ranks send: to the next one in the order of names."""
    order = sorted(range(len(hosts)), key=lambda rank: hosts[rank])
    return {rank: ((order[(at + 1) % len(order)], 1 << 20),) for at, rank in enumerate(order)}


def pairs_of(control: Controlled, app: str) -> set[tuple[str, str]]:
    return {
        pair
        for steps in calls(control.state, control.state.mpi.programs[app])
        for step in steps
        for pair in step
    }


def test_pairs_that_were_observed_take_the_place_of_the_predicted_ones() -> None:
    control = Controlled(SIXTEEN, seed=1)
    hosts = list(SIXTEEN.compute_hosts)
    control.start("0/a", hosts)
    control.declare("0/a", 16)
    predicted = pairs_of(control, "0/a")
    key = next(iter(control.state.mpi.programs["0/a"].collectives))
    # One rank sends to another than was said: the pairs of all others stay.
    control.see(CollectiveObserved(app="0/a", agent="n1", key=key, sent={3: ((9, 5000),)}))
    theirs = {pair for pair in predicted if pair[0] != hosts[3]}
    assert pairs_of(control, "0/a") == theirs | {(hosts[3], hosts[9])}
    ring = ring_of(hosts)
    control.see(CollectiveObserved(app="0/a", agent="n1", key=key, sent=ring))
    assert pairs_of(control, "0/a") == {(hosts[a], hosts[to[0][0]]) for a, to in ring.items()}
    assert control.seconds("0/a", control.plan) <= control.seconds("0/a", PathPlan(seed=1)) * (1 + 1e-9)


def test_a_collective_without_known_steps_is_placed_once_all_its_ranks_are_known() -> None:
    control = Controlled(SIXTEEN, seed=1)
    hosts = list(SIXTEEN.compute_hosts)
    control.start("0/a", hosts)
    control.declare("0/a", 16)
    doubling = {rank: tuple((rank ^ 1 << bit, 1 << 20) for bit in range(4)) for rank in range(16)}
    control.start("0/b", hosts)
    control.declare("0/b", 16, algorithm="observed")
    program = control.state.mpi.programs["0/b"]
    (key,) = program.collectives
    assert program.awaited(key) and not pairs_of(control, "0/b")
    control.see(CollectiveObserved(app="0/b", agent="n1", key=key, sent=dict(list(doubling.items())[:9])))
    assert program.awaited(key)
    control.see(CollectiveObserved(app="0/b", agent="n1", key=key, sent=dict(list(doubling.items())[9:])))
    assert not program.awaited(key)
    assert pairs_of(control, "0/b") == pairs_of(control, "0/a")


def test_ranks_of_a_learned_collective_go_on_when_the_last_host_has_told() -> None:
    control = Controlled(EIGHT)
    published: list[Event] = []
    placements = CollectivePlacements(published.append)

    def see(event: Event) -> None:
        control.see(event)
        control.state.in_force = control.state.requested
        placements.seen(Envelope(event=event, event_id="e", time_ns=1), control.state)

    control.start("0/a", list(EIGHT.compute_hosts))
    see(
        CollectiveDeclared(
            app="0/a", agent="n1", key="k", primitive="scan", algorithm="observed", bytes=9, ranks=(0, 1, 2)
        )
    )
    see(CollectiveObserved(app="0/a", agent="n1", key="k", sent={0: ((1, 9),), 1: ((2, 9),)}))
    assert not published
    see(CollectiveObserved(app="0/a", agent="n1", key="k", sent={2: ()}))
    assert [getattr(event, "key", "") for event in published] == ["k"]


def test_what_is_observed_is_bounded_and_the_newest_is_kept() -> None:
    control = Controlled(EIGHT)
    control.start("0/a", list(EIGHT.compute_hosts))
    row = tuple((to, 1) for to in range(1000))
    for number in range(200):
        sent = dict.fromkeys(range(4), row)
        control.see(CollectiveObserved(app="0/a", agent="n1", key=f"k{number}", sent=sent))
    observed = control.state.mpi.programs["0/a"].observed
    assert (
        "k199" in observed and sum(len(to) for sent in observed.values() for to in sent.values()) <= 1 << 16
    )
    control.see(CollectiveObserved(app="0/a", agent="n1", key="k", sent=dict.fromkeys(range(99), row)))
    assert "k" not in control.state.mpi.programs["0/a"].observed
    for number in range(200):
        control.see(CollectiveObserved(app="0/a", agent="n1", key=f"e{number}", sent={0: ()}))
    assert len(control.state.mpi.programs["0/a"].observed) <= 64


def test_what_another_agent_says_of_a_program_has_no_effect() -> None:
    control = Controlled(SIXTEEN, seed=1)
    control.start("0/a", list(SIXTEEN.compute_hosts))
    forged = CollectiveDeclared(
        app="0/a", agent="n9", key="k", primitive="allreduce", algorithm="ring", bytes=1, ranks=(0, 1)
    )
    control.see(forged, CollectiveObserved(app="0/a", agent="n9", key="k", sent={0: ((1, 1),)}))
    assert not control.state.mpi.programs["0/a"].collectives
    assert not control.state.mpi.programs["0/a"].observed


def test_the_published_algorithm_spreads_flows_too() -> None:
    control = Controlled(EIGHT, seed=0, method="dijkstra")
    control.start("0/a", list(EIGHT.compute_hosts))
    control.declare("0/a", 8)
    assert control.seconds("0/a", control.plan) < control.seconds("0/a", PathPlan(seed=0))


@pytest.mark.parametrize("options", [{"base": "io-fcfs"}, {"method": "best"}, {"style": "per-pair"}])
def test_options_that_make_no_sense_are_named(options: dict[str, Any]) -> None:
    with pytest.raises(PolicyError, match="collective-paths"):
        load_policy("collective-paths", **options)


@given(
    algorithm=st.sampled_from(sorted(mpi_steps._ALGORITHMS)), size=st.integers(2, 40), root=st.integers(0, 39)
)
def test_after_all_steps_every_rank_has_what_the_collective_promises(
    algorithm: tuple[str, str], size: int, root: int
) -> None:
    root %= size
    has = {rank: {rank} for rank in range(size)}
    steps = mpi_steps.steps_of(*algorithm, size, 1 << 20, root)
    assert steps
    # Steps of a ring with equal pairs are one.
    merged = any(word in algorithm[1] for word in ("ring", "pipeline", "neighbor"))
    for step in steps * (size if merged else 1):
        assert all(0 <= a < size and 0 <= b < size and a != b for a, b in step.pairs) and step.bytes > 0
        before = {rank: set(known) for rank, known in has.items()}
        for a, b in step.pairs:
            has[b] |= before[a]
    if algorithm[0] in ("allreduce", "allgather", "alltoall"):
        assert all(len(known) == size for known in has.values())
    elif algorithm[0] in ("bcast", "scatter"):
        assert all(root in known for known in has.values())
    else:
        assert len(has[root]) == size
