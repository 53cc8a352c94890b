"""Slots placed by what jobs are known to send: the busiest link carries less, and no class leaves its core switches."""

from __future__ import annotations

import itertools
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from waystage.events import (
    CLASSES,
    AssignPaths,
    Envelope,
    Event,
    JobFinished,
    JobStarted,
    LinkDown,
    PathPlan,
    StagingStarted,
    TopologyChanged,
)
from waystage.interconnect.generate import fat_tree, leaf_spine
from waystage.interconnect.labelled import Paths, desired
from waystage.interconnect.marks import DEFAULT_MARKS
from waystage.policies.base import load_policy
from waystage.state import State
from waystage.topology import Topology

SIXTEEN = leaf_spine(4, 4, 4, storage_hosts=2, uplink_bps=50_000_000)


class Controlled:
    """A policy with the state it is asked about; `plan` is what it asked for last."""

    def __init__(self, topology: Topology, seed: int = 0) -> None:
        self.policy = load_policy("demand-separation", seed=seed)
        self.state, self.asked, self.topology = State(), 0, topology
        self.see(TopologyChanged(topology=topology))

    def see(self, *events: Event) -> None:
        for event in events:
            self.state.apply(
                Envelope(event=event, event_id=f"e{self.state.time_ns}", time_ns=self.state.time_ns + 1)
            )
            for action in self.policy(event, self.state):
                assert isinstance(action, AssignPaths)
                self.asked += 1
                self.state.record_request(action)

    @property
    def plan(self) -> PathPlan:
        assert self.state.requested is not None
        return self.state.requested


def busiest(topology: Topology, plan: PathPlan, jobs: list[tuple[str, ...]]) -> int:
    """Pairs of the jobs' nodes over the link between switches that most of them cross."""
    held: Counter[tuple[str, str]] = Counter()
    for nodes in jobs:
        for src, dst in itertools.permutations(nodes, 2):
            held.update(itertools.pairwise(Paths(topology, topology, plan).path(src, dst, "mpi")[1:-1]))
    return max(held.values(), default=0)


def jobs_of(picks: list[int]) -> list[tuple[str, ...]]:
    """Three jobs of four nodes each, every node once."""
    hosts = [SIXTEEN.compute_hosts[pick] for pick in picks]
    return [tuple(hosts[start : start + 4]) for start in (0, 4, 8)]


some_jobs = st.permutations(range(len(SIXTEEN.compute_hosts))).map(lambda picks: jobs_of(picks[:12]))


@settings(max_examples=25, deadline=None)
@given(some_jobs, st.integers(0, 999))
def test_the_busiest_link_never_carries_more_than_under_the_hash_alone(
    jobs: list[tuple[str, ...]], seed: int
) -> None:
    control = Controlled(SIXTEEN, seed)
    control.see(*(JobStarted(job_id=str(number), nodes=nodes) for number, nodes in enumerate(jobs)))
    placed = busiest(SIXTEEN, control.plan, jobs)
    assert placed <= busiest(SIXTEEN, PathPlan(seed=seed), jobs)


def test_on_the_mean_the_busiest_link_carries_a_quarter_less_than_under_the_hash() -> None:
    jobs = jobs_of(list(range(12)))
    jobs = [tuple(job[at] for job in (*jobs, jobs[0])) for at in range(3)]
    ours = hashed = 0
    for seed in range(20):
        control = Controlled(SIXTEEN, seed)
        control.see(*(JobStarted(job_id=str(number), nodes=nodes) for number, nodes in enumerate(jobs)))
        ours += busiest(SIXTEEN, control.plan, jobs)
        hashed += busiest(SIXTEEN, PathPlan(seed=seed), jobs)
    assert ours <= 0.75 * hashed


@settings(max_examples=25, deadline=None)
@given(some_jobs, st.sets(st.integers(0, 2), min_size=1))
def test_a_class_stays_on_its_own_core_switches(jobs: list[tuple[str, ...]], staging: set[int]) -> None:
    control = Controlled(SIXTEEN)
    control.see(*(JobStarted(job_id=str(number), nodes=nodes) for number, nodes in enumerate(jobs)))
    control.see(*(StagingStarted(job_id=str(number), direction="in") for number in sorted(staging)))
    plan = control.plan
    for traffic, rows in plan.placed.items():
        mine = set(plan.cores.get(traffic, SIXTEEN.core_switches))
        assert {core for row in rows.values() for core in row} <= mine
    storage = SIXTEEN.storage_hosts[0]
    for node in jobs[0]:
        way = Paths(SIXTEEN, SIXTEEN, plan).path(storage, node, "staging")
        allowed = set(plan.cores.get("staging", SIXTEEN.core_switches))
        assert set(way) & set(SIXTEEN.core_switches) <= allowed


def test_nothing_moves_for_little_and_nothing_is_asked_twice() -> None:
    control = Controlled(SIXTEEN)
    control.see(
        *(
            JobStarted(job_id=str(number), nodes=nodes)
            for number, nodes in enumerate(jobs_of(list(range(12))))
        )
    )
    asked, plan = control.asked, control.plan
    control.see(JobStarted(job_id="2", nodes=jobs_of(list(range(12)))[2]))
    assert (control.asked, control.plan) == (asked, plan)
    control.see(JobStarted(job_id="lone", nodes=SIXTEEN.compute_hosts[12:13]))
    assert control.plan == plan, "a job of one node sends nothing through the core"


def test_a_job_that_ends_leaves_the_others_where_they_are() -> None:
    control = Controlled(SIXTEEN)
    jobs = jobs_of(list(range(12)))
    control.see(*(JobStarted(job_id=str(number), nodes=nodes) for number, nodes in enumerate(jobs)))
    before = control.plan
    control.see(JobFinished(job_id="2"))
    for src, dst in itertools.permutations(jobs[0], 2):
        ways = [Paths(SIXTEEN, SIXTEEN, plan).path(src, dst, "mpi") for plan in (before, control.plan)]
        assert ways[0] == ways[1]


def test_slots_are_dealt_where_a_core_switch_is_not_in_reach_of_every_edge_switch() -> None:
    tree = fat_tree(4)
    jobs = [tree.compute_hosts[:8]]
    control = Controlled(tree)
    control.see(JobStarted(job_id="1", nodes=jobs[0]))
    assert control.plan.placed == {}

    damaged = Controlled(SIXTEEN)
    cable = next(link.name for link in SIXTEEN.switch_links)
    damaged.see(LinkDown(link=cable), JobStarted(job_id="1", nodes=jobs_of(list(range(12)))[0]))
    assert damaged.plan.placed == {}


def test_a_placement_costs_no_rule_and_no_group_and_a_core_switch_that_is_not_there_is_passed_over() -> None:
    macs = {host.name: number for number, host in enumerate(SIXTEEN.hosts, 1)}
    jobs = jobs_of(list(range(12)))
    control = Controlled(SIXTEEN)
    control.see(*(JobStarted(job_id=str(number), nodes=nodes) for number, nodes in enumerate(jobs)))
    assert control.plan.placed

    def size(plan: PathPlan) -> dict[str, tuple[int, int]]:
        held = desired(SIXTEEN, SIXTEEN, macs, plan, DEFAULT_MARKS, True)
        return {switch: (len(rules.rules), len(rules.groups)) for switch, rules in held.items()}

    assert size(control.plan) == size(PathPlan())
    strange = PathPlan(
        placed={traffic: {SIXTEEN.edge_switches[0]: ("nowhere",) * 99, "none": ()} for traffic in CLASSES}
    )
    for src, dst in itertools.permutations(SIXTEEN.compute_hosts[:6], 2):
        assert Paths(SIXTEEN, SIXTEEN, strange).path(src, dst, "mpi") == Paths(
            SIXTEEN, SIXTEEN, PathPlan()
        ).path(src, dst, "mpi")
