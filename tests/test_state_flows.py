"""Flows in the state: what is running, how far it is, and what actions asked it to keep to."""

from __future__ import annotations

from waystage import events
from waystage.state import State


def flow_started(flow_id: str = "n1-1", **more: object) -> events.FlowStarted:
    given = {"traffic": "staging", "engine": "copy", "job_id": "17", "user": "ada", "bytes": 1000} | more
    return events.FlowStarted(flow_id=flow_id, **given)  # type: ignore[arg-type]


def folded(*items: tuple[events.Event, int]) -> State:
    state = State()
    for event, time_ns in items:
        state.apply(events.Envelope(event=event, event_id=str(time_ns), time_ns=time_ns))
    return state


def use(flow_id: str = "n1-1", **more: object) -> events.FlowProgress:
    return events.FlowProgress(flows=(events.FlowUse(flow_id=flow_id, **more),))  # type: ignore[arg-type]


def test_a_flow_is_known_from_its_start_to_its_end() -> None:
    state = folded((flow_started(), 1), (use(bytes_done=10, rate_bps=80, limited_by="network"), 2))
    (flow,) = state.flows_of("17")
    assert (flow.bytes_done, flow.bytes, flow.rate_bps, flow.limited_by) == (10, 1000, 80, "network")
    assert state.flows_of("17", "mpi") == [] and state.flows_of("18") == []
    state.apply(
        events.Envelope(event=events.FlowFinished(flow_id="n1-1", outcome="lost"), event_id="e", time_ns=3)
    )
    assert state.flows == {}


def test_late_and_repeated_facts_of_flows_change_nothing() -> None:
    ended_first = folded((events.FlowFinished(flow_id="n1-1"), 5), (flow_started(), 1))
    assert ended_first.flows == {}
    again = folded((flow_started(), 1), (use(bytes_done=10), 2), (flow_started(bytes=7), 3))
    assert again.flows["n1-1"].bytes_done == 10
    assert folded((use("unknown", bytes_done=3), 1)).flows == {}


def test_flows_that_their_agent_no_longer_lists_are_lost_and_those_of_others_are_not() -> None:
    listed = events.FlowsListed(agent="n1", flows=("n1:b",))
    ids = ("n1:a", "n1:b", "n10:a")
    state = folded(*((flow_started(flow_id), 1) for flow_id in ids), (listed, 5), (flow_started("n1:c"), 6))
    assert list(state.flows) == ["n1:b", "n10:a", "n1:c"]
    state.apply(events.Envelope(event=flow_started("n1:a"), event_id="late", time_ns=2))
    assert "n1:a" not in state.flows


def test_what_a_user_asks_for_holds_beside_what_policies_ask_for() -> None:
    def asks(*actions: events.Action) -> events.FlowRequested:
        raw = tuple(events.encode_action(action) for action in actions)
        return events.FlowRequested(flow_id="n1-1", user="ada", actions=raw)

    state = folded((flow_started(), 1))
    state.record_flow(events.SetRate(flow_id="n1-1", rate_bps=800))
    other = events.Pause(flow_id="n1-2")
    path = events.AssignPaths(plan=events.PathPlan())
    slower, pause = events.SetRate(flow_id="n1-1", rate_bps=80), events.Pause(flow_id="n1-1")
    event = asks(slower, pause, other, path)
    state.apply(events.Envelope(event=event, event_id="r", time_ns=2))
    flow = state.flows["n1-1"]
    assert flow.settings == events.FlowSettings(version=2, rate_bps=80, paused=True)
    state.record_flow(events.Resume(flow_id="n1-1"))
    assert flow.settings.paused, "its user's word stands"
    event = asks(events.SetRate(flow_id="n1-1", rate_bps=None), events.Resume(flow_id="n1-1"))
    state.apply(events.Envelope(event=event, event_id="s", time_ns=3))
    assert flow.settings == events.FlowSettings(version=3, rate_bps=800)


def test_an_engine_with_settings_of_a_controller_before_gets_new_ones() -> None:
    state = folded((flow_started(), 1), (use(version=7), 2))
    assert state.flows["n1-1"].settings == events.FlowSettings(version=8)


def test_actions_on_a_flow_become_complete_numbered_settings() -> None:
    state = folded((flow_started(), 1))
    for action in (
        events.SetRate(flow_id="n1-1", rate_bps=8),
        events.SetRate(flow_id="n1-1", rate_bps=8),
        events.Pause(flow_id="n1-1"),
        events.SetLoaders(flow_id="n1-1", loaders=2),
        events.SetMode(flow_id="unknown", mode="modest"),
    ):
        state.record_flow(action)
    assert state.flows["n1-1"].wanted == events.FlowSettings(version=3, rate_bps=8, paused=True, loaders=2)
    state.record_flow(events.Resume(flow_id="n1-1"))
    state.record_flow(events.SetRate(flow_id="n1-1", rate_bps=None))
    assert state.flows["n1-1"].wanted == events.FlowSettings(version=5, loaders=2)
    assert State.restore(state.snapshot()) == state


def test_only_flows_of_a_jobs_owner_and_of_root_count_as_the_jobs() -> None:
    job = events.JobStarted(job_id="17", nodes=("c1",), user="ada")
    flows = [flow_started("a", user="ada"), flow_started("b", user="bob"), flow_started("r", user="root")]
    for story in ([job, *flows], [*flows, job]):
        state = folded(*((event, number) for number, event in enumerate(story, 1)))
        assert [flow.flow_id for flow in state.flows_of("17")] == ["a", "r"]
        assert state.flows["b"].job_id is None
    staged = events.StagingStarted(job_id="17", user="ada")
    assert [f.flow_id for f in folded((staged, 1), (flows[1], 2)).flows_of("17")] == []


def staged(user: str, direction: events.Direction = "in") -> events.StagingStarted:
    return events.StagingStarted(job_id="17", direction=direction, bytes=8, user=user)


def ended(user: str) -> events.StagingFinished:
    return events.StagingFinished(job_id="17", user=user)


def test_another_users_staging_is_not_the_jobs_and_changes_no_owner() -> None:
    started = events.JobStarted(job_id="17", nodes=("c1",), user="ada")
    state = folded((started, 1), (staged("ada"), 2), (staged("bob", "out"), 3), (staged("root", "out"), 4))
    assert state.jobs["17"].user == "ada" and state.jobs["17"].staging == {"in": 8, "out": 8}
    state = folded((started, 1), (staged("ada"), 2), (staged("bob"), 3), (ended("bob"), 4))
    assert state.jobs["17"].staging == {"in": 8}, "the end of another user's staging"
    state = folded((started, 1), (staged("ada"), 2), (ended("ada"), 4))
    assert not state.jobs["17"].staging


def test_what_was_staged_under_a_jobs_id_before_it_started_counts_only_for_its_owner() -> None:
    started = events.JobStarted(job_id="17", nodes=("c1",), user="ada")
    state = folded((staged("bob"), 1), (started, 2))
    assert state.jobs["17"].user == "ada" and not state.jobs["17"].staging
    state = folded((staged("bob"), 1), (staged("ada"), 2), (ended("bob"), 3), (started, 4))
    assert state.jobs["17"].user == "ada" and state.jobs["17"].staging == {"in": 8}
    # The end of another user's, which is later, does not hide a start that arrives after it.
    state = folded((ended("bob"), 5), (staged("ada"), 2))
    assert state.jobs["17"].staging == {"in": 8}


def test_programs_of_other_users_are_not_the_jobs() -> None:
    started = events.JobStarted(job_id="17", nodes=("c1",), user="ada")
    io = events.IoApplicationStarted(app="1:x", host="c1", agent="c1", user="bob", job_id="17", ranks=1)
    mpi = events.MpiRanksReported(
        app="1:y", host="c1", agent="c1", user="bob", job_id="17", size=1, ranks=(0,)
    )
    for story in ([started, io, mpi], [io, mpi, started]):
        state = folded(*((event, number) for number, event in enumerate(story, 1)))
        assert state.io.applications["1:x"].job_id is None
        assert state.mpi.programs["1:y"].job_id is None


def test_without_a_known_owner_a_flows_word_counts() -> None:
    state = folded((events.JobStarted(job_id="17", nodes=("c1",)), 1), (flow_started("b", user="bob"), 2))
    assert [flow.flow_id for flow in state.flows_of("17")] == ["b"]
