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


def test_a_flow_that_falls_silent_is_forgotten() -> None:
    minute = 61 * 10**9
    state = folded((flow_started("a"), 1), (flow_started("b"), 1), (use("b"), minute))
    assert list(state.flows) == ["b"]


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
