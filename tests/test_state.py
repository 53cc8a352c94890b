"""The state: events in any order, repeated or late, and what a snapshot keeps."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystage.events import (
    AssignPaths,
    DemandDeclared,
    Envelope,
    Event,
    EventError,
    HostSeen,
    IoFinished,
    IoStarted,
    JobFinished,
    JobStarted,
    LinkDown,
    LinkUp,
    LinkUse,
    PathPlan,
    PathsChanged,
    PortUse,
    StagingFinished,
    StagingStarted,
    SwitchDown,
    SwitchUp,
    TopologyChanged,
    UnknownEvent,
)
from waystage.interconnect.generate import leaf_spine, paper
from waystage.state import FINISHED_KEPT, FORGOTTEN, State

JOBS = st.sampled_from(["1", "2"])
NODES = st.lists(st.sampled_from(["c1", "c2", "c4"]), max_size=3).map(tuple)
EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(JobStarted, job_id=JOBS, nodes=NODES),
    st.builds(JobFinished, job_id=JOBS),
    st.builds(
        StagingStarted,
        job_id=JOBS,
        direction=st.sampled_from(["in", "out"]),
        nodes=NODES,
        bytes=st.integers(-5, 9),
    ),
    st.builds(StagingFinished, job_id=JOBS, direction=st.sampled_from(["in", "out"])),
    st.builds(IoStarted, job_id=JOBS),
    st.builds(IoFinished, job_id=JOBS),
    st.builds(
        DemandDeclared, job_id=JOBS, traffic=st.sampled_from(["mpi", "wan"]), rate_bps=st.integers(-1, 5)
    ),
    st.builds(TopologyChanged, topology=st.sampled_from([paper(), leaf_spine(2, 2, 2)])),
    st.builds(
        HostSeen,
        host=st.just("c1"),
        switch=st.just("edge1"),
        port=st.just(1),
        mac=st.just("02:00:00:00:00:01"),
    ),
    st.builds(LinkDown, link=st.sampled_from(["edge1:5-core1:1", "no such link"])),
    st.builds(LinkUp, link=st.sampled_from(["edge1:5-core1:1", "no such link"])),
    st.builds(SwitchDown, switch=st.sampled_from(["core1", "nobody"])),
    st.builds(SwitchUp, switch=st.sampled_from(["core1", "nobody"])),
    st.builds(PathsChanged, plan=st.builds(PathPlan, seed=st.integers(0, 3)), cause_id=st.just("x")),
    st.builds(UnknownEvent, type=st.just("Later"), body=st.just({})),
)
STORIES = st.lists(st.tuples(EVENTS, st.integers(0, 50)), max_size=30)


def folded(*story: tuple[Event, int]) -> State:
    state = State()
    for event, time_ns in story:
        state.apply(Envelope(event=event, event_id="e", time_ns=time_ns))
    return state


@given(STORIES)
def test_whatever_arrives_is_folded_and_a_snapshot_gives_an_equal_state(
    story: list[tuple[Event, int]],
) -> None:
    state = folded(*story)
    assert state.events == len(story)
    assert state.time_ns == max((t for _, t in story), default=0)
    restored = State.restore(state.snapshot())
    assert restored == state
    assert restored.difference(state) == []


@given(STORIES, STORIES)
def test_a_snapshot_and_the_events_after_it_are_as_good_as_all_events(
    first: list[tuple[Event, int]], then: list[tuple[Event, int]]
) -> None:
    state = State.restore(folded(*first).snapshot())
    for event, time_ns in then:
        state.apply(Envelope(event=event, event_id="e", time_ns=time_ns))
    assert state == folded(*first, *then)


@given(STORIES)
def test_an_event_that_is_repeated_at_once_changes_nothing_more(story: list[tuple[Event, int]]) -> None:
    twice = folded(*itertools.chain.from_iterable((item, item) for item in story))
    assert set(twice.difference(folded(*story))) <= {"events"}


def test_a_job_comes_and_goes() -> None:
    state = folded((JobStarted(job_id="1", nodes=("c1",)), 1), (StagingStarted(job_id="1", bytes=7), 2))
    assert state.running_jobs == state.staging_jobs == ["1"]
    assert state.jobs["1"].staging == {"in": 7}
    state = folded(
        (JobStarted(job_id="1", nodes=("c1",)), 1),
        (StagingStarted(job_id="1"), 2),
        (StagingFinished(job_id="1"), 3),
        (JobFinished(job_id="1"), 4),
    )
    assert state.jobs == {}


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))), ids=str)
def test_the_four_notifications_of_a_job_end_the_same_in_every_order(order: tuple[int, ...]) -> None:
    story: list[tuple[Event, int]] = [
        (JobStarted(job_id="1", nodes=("c1",)), 1),
        (StagingStarted(job_id="1", direction="out"), 2),
        (StagingFinished(job_id="1", direction="out"), 3),
        (JobFinished(job_id="1"), 4),
    ]
    state = folded(*(story[index] for index in order))
    assert state.running_jobs == [] and state.staging_jobs == []


def test_an_end_before_its_start_wins_by_its_time() -> None:
    assert folded((JobFinished(job_id="1"), 5), (JobStarted(job_id="1", nodes=("c1",)), 4)).running_jobs == []
    assert folded((StagingFinished(job_id="1"), 5), (StagingStarted(job_id="1"), 4)).staging_jobs == []


def test_a_job_that_is_requeued_under_its_id_runs_again() -> None:
    story = (
        (JobStarted(job_id="1", nodes=("c1",)), 1),
        (JobFinished(job_id="1"), 2),
        (JobStarted(job_id="1", nodes=("c2",)), 3),
    )
    assert folded(*story).jobs["1"].nodes == ("c2",)
    late = folded(*story, (JobFinished(job_id="1"), 2))
    assert late.running_jobs == ["1"], "a late copy of the first run's end must not end the second"


def test_stage_out_goes_on_after_the_job_and_the_last_end_removes_it() -> None:
    story = [
        (JobStarted(job_id="1", nodes=("c1",)), 1),
        (StagingStarted(job_id="1", direction="out"), 2),
        (JobFinished(job_id="1"), 3),
    ]
    state = folded(*story)
    assert state.staging_jobs == ["1"] and state.running_jobs == [] and state.jobs["1"].nodes == ("c1",)
    assert folded(*story, (StagingFinished(job_id="1", direction="out"), 4)).jobs == {}


def test_an_unknown_job_that_ends_leaves_nothing() -> None:
    for event in (JobFinished(job_id="?"), StagingFinished(job_id="?"), IoFinished(job_id="?")):
        assert folded((event, 1)).jobs == {}


def test_finished_jobs_are_not_remembered_for_ever() -> None:
    state = State()
    for i in range(2 * FINISHED_KEPT):
        state.apply(Envelope(event=JobFinished(job_id=str(i)), event_id="e", time_ns=i))
        assert len(state.finished) <= FINISHED_KEPT
    newest = range(FINISHED_KEPT + FORGOTTEN, 2 * FINISHED_KEPT)
    assert [str(i) for i in newest] == list(state.finished)[-len(newest) :]


def test_live_topology_leaves_out_what_is_down_and_only_that() -> None:
    assert State().live_topology is None
    state = folded((TopologyChanged(topology=paper()), 1), (SwitchDown(switch="core1"), 2))
    assert state.topology == paper()
    live = state.live_topology
    assert live is not None and not live.adjacency["core1"] and live.adjacency["core2"]
    state.apply(Envelope(event=SwitchUp(switch="core1"), event_id="e", time_ns=3))
    assert state.live_topology == paper()


def test_a_new_topology_forgets_failures_of_what_it_does_not_have() -> None:
    state = folded(
        (TopologyChanged(topology=leaf_spine(2, 2, 3)), 1),
        (SwitchDown(switch="core3"), 2),
        (SwitchDown(switch="core1"), 2),
        (TopologyChanged(topology=paper()), 3),
    )
    assert set(state.down_switches) == {"core1"}


def test_class_rates_count_what_leaves_edge_switches_towards_the_core() -> None:
    topology = paper()
    uplink = topology.link_between("edge1", "core1")
    use = LinkUse(
        interval_ns=2_000_000_000,
        ports=(
            PortUse(node="edge1", port=uplink.port_at("edge1"), bytes=250, by_class={"mpi": 250}),
            PortUse(node="core1", port=uplink.port_at("core1"), bytes=999, by_class={"mpi": 999}),
            PortUse(node="edge1", port=1, bytes=999, by_class={"staging": 999}),
        ),
    )
    assert folded((TopologyChanged(topology=topology), 1), (use, 2)).class_rate_bps == {"mpi": 1000.0}
    assert folded((use, 1)).class_rate_bps == {}


def test_what_a_policy_asked_for_is_part_of_the_state() -> None:
    state = folded((JobStarted(job_id="1", nodes=("c1",)), 9))
    plan = PathPlan(seed=4, separated=True, cores={"mpi": ("core1",)})
    state.record_request(AssignPaths(plan=plan))
    restored = State.restore(state.snapshot())
    assert restored.requested == plan and restored.requested_ns == 9
    assert restored.difference(folded((JobStarted(job_id="1", nodes=("c1",)), 9))) == [
        "requested",
        "requested_ns",
    ]


@given(st.binary(max_size=60))
def test_bytes_that_are_no_snapshot_are_refused_and_nothing_else_is_raised(data: bytes) -> None:
    try:
        State.restore(data)
    except EventError as error:
        assert "not a state snapshot" in str(error)
