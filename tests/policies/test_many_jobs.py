"""What a decision costs and counts where many jobs run."""

from __future__ import annotations

import itertools
import sys

from hypothesis import given, settings
from hypothesis import strategies as st

from waystage import spread
from waystage.controllers import PolicyEngine
from waystage.events import Envelope, Event, JobStarted, StagingFinished, StagingStarted, TopologyChanged
from waystage.interconnect.generate import leaf_spine, paper
from waystage.policies.base import load_policy
from waystage.policies.off_status import off_plan
from waystage.policies.path_search import node_pairs, paths_held
from waystage.state import State


def work_of_a_switch_over(policy: str, jobs: int) -> int:
    """How many Python functions are called from a staging's start to the plan, whatever else the machine does."""
    engine = PolicyEngine(load_policy(policy))
    clock = itertools.count(1)

    def see(event: Event) -> None:
        now = next(clock)
        engine.handle(Envelope(event=event, event_id=str(now), time_ns=now))

    calls = 0

    def count(frame: object, kind: str, argument: object) -> None:
        nonlocal calls
        calls += kind == "call"

    topology = paper()
    see(TopologyChanged(topology=topology))
    mixes = itertools.cycle(itertools.combinations(topology.compute_hosts, 3))
    for job, nodes in zip(range(jobs), mixes, strict=False):
        see(JobStarted(job_id=str(job), nodes=nodes))
    see(StagingStarted(job_id="0"))  # works out what is then kept
    see(StagingFinished(job_id="0"))
    sys.setprofile(count)
    try:
        see(StagingStarted(job_id="1"))
    finally:
        sys.setprofile(None)
    assert engine.state.requested is not None
    assert engine.state.requested.separated
    return calls


def test_a_switch_over_with_100_jobs_is_no_more_work_than_with_2() -> None:
    assert work_of_a_switch_over("link-separation", 100) <= work_of_a_switch_over("link-separation", 2) + 5


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_paths_held_are_those_of_every_pair_of_nodes_across_the_core(data: st.DataObject) -> None:
    topology = data.draw(st.sampled_from([paper(), leaf_spine(4, 3, 5), leaf_spine(9, 2, 13)]))
    spread_by = data.draw(st.sampled_from(["pair", "destination"]))
    state = State()
    state.apply(Envelope(event=TopologyChanged(topology=topology), event_id="t"))
    names = st.sampled_from([*(host.name for host in topology.hosts), "elsewhere"])
    for job in range(data.draw(st.integers(0, 4))):
        nodes = tuple(data.draw(st.lists(names, max_size=12)))
        state.apply(Envelope(event=JobStarted(job_id=f"j{job}", nodes=nodes), event_id=f"{job}", time_ns=job))
    off = off_plan(state, style="labelled", spread_by=spread_by, seed=3)
    assert off is not None
    expected = [
        spread.core_of_pair(topology, src, dst, spread=spread_by, seed=3)
        for job in state.jobs.values()
        for src, dst in node_pairs(topology, job.nodes)
        if topology.attachment[src][0] != topology.attachment[dst][0]
    ]
    held = paths_held(state, off)
    assert {core: held[core] for core in topology.core_switches} == {
        core: expected.count(core) for core in topology.core_switches
    }
