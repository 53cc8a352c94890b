"""Settings reach an engine whatever is lost; flows of a silent agent end; unsupported settings are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from harness import WAIT_S, wait_until
from waystage.backplane import Backplane
from waystage.controllers import GlobalController, Journal
from waystage.controllers.flow_actuator import AGAIN_S, RENEW_S, SILENCE_S, FlowActuator
from waystage.events import (
    Action,
    Envelope,
    Event,
    FlowAdjusted,
    FlowFinished,
    FlowProgress,
    FlowRefused,
    FlowSettings,
    FlowStarted,
    FlowUse,
    Pause,
    SetMode,
    SetRate,
)
from waystage.state import State


class Loop:
    """The actuator in a controller's loop, with a clock that the test sets."""

    def __init__(self) -> None:
        self.now = 100.0
        self.said: list[Event] = []
        self.state = State()
        self.actuator = FlowActuator(self.said.append, lambda: self.now)

    def handle(self, event: Event, *actions: Action) -> list[Event]:
        """What the actuator publishes upon an event that a policy answers with these actions."""
        item = Envelope(event=event, event_id="e", time_ns=round(self.now * 1e9))
        self.state.apply(item)
        for action in actions:
            assert self.actuator.accepts(action)
            self.state.record_flow(action)  # type: ignore[arg-type]
            self.actuator.apply(action, item)
        return self.taken(lambda: self.actuator.seen(item, self.state))

    def tick(self, after_s: float) -> list[Event]:
        self.now += after_s
        return self.taken(lambda: self.actuator.tick(self.state))

    def taken(self, call: Callable[[], None]) -> list[Event]:
        self.said.clear()
        call()
        return list(self.said)


def started(flow_id: str = "n1:a") -> FlowStarted:
    return FlowStarted(flow_id=flow_id, traffic="wan", engine="copy", controls=("rate", "pause"))


def progress(version: int = 0, flow_id: str = "n1:a") -> FlowProgress:
    return FlowProgress(agent=flow_id[:2], flows=(FlowUse(flow_id=flow_id, version=version),))


PAUSED = FlowAdjusted(flow_id="n1:a", settings=FlowSettings(version=1, paused=True))


def test_settings_are_sent_at_once_and_until_progress_reports_them() -> None:
    loop = Loop()
    assert loop.handle(started(), Pause(flow_id="n1:a")) == [PAUSED]
    assert loop.handle(progress()) == [], "not again within half a second"
    loop.now += AGAIN_S
    assert loop.handle(progress()) == [PAUSED]
    loop.now += AGAIN_S
    assert loop.handle(progress(version=1)) == []


def test_several_actions_on_a_flow_are_one_message() -> None:
    loop = Loop()
    said = loop.handle(started(), Pause(flow_id="n1:a"), SetRate(flow_id="n1:a", rate_bps=80))
    assert said == [FlowAdjusted(flow_id="n1:a", settings=FlowSettings(version=2, rate_bps=80, paused=True))]
    assert loop.handle(progress(), Pause(flow_id="n1:gone")) == [], "an action on a flow that has ended"


def test_a_setting_that_the_engine_does_not_obey_is_refused_once() -> None:
    loop = Loop()
    (refused, _) = loop.handle(started(), SetMode(flow_id="n1:a", mode="modest"))
    assert isinstance(refused, FlowRefused) and refused.control == "mode"
    assert "copy does not obey mode but rate, pause" in refused.reason
    again = loop.handle(progress(), SetMode(flow_id="n1:a", mode="fair"))
    assert not any(isinstance(event, FlowRefused) for event in again)


def test_settings_are_renewed_while_they_ask_for_something() -> None:
    loop = Loop()
    loop.handle(started(), Pause(flow_id="n1:a"))
    loop.handle(started("n1:b"))
    loop.handle(progress(version=1))
    assert loop.tick(RENEW_S) == [PAUSED]
    assert loop.tick(1.0) == []


def test_flows_of_a_silent_agent_are_lost_and_those_of_others_are_not() -> None:
    loop = Loop()
    loop.handle(started())
    loop.handle(started("n2:b"))
    for _ in range(int(SILENCE_S) + 1):
        loop.handle(progress(flow_id="n2:b"))
        lost = loop.tick(1.0)
    assert lost == [FlowFinished(flow_id="n1:a", outcome="lost")]
    loop.handle(lost[0])
    assert loop.tick(1.0) == [] and list(loop.state.flows) == ["n2:b"]


def test_an_agent_is_asked_for_a_flow_that_is_unknown() -> None:
    loop = Loop()
    assert loop.handle(progress(flow_id="n1:x")) == [FlowAdjusted(flow_id="n1:x", settings=FlowSettings())]
    assert loop.handle(progress(flow_id="n1:x")) == []


class SlowsDown:
    """Decides on progress, which is not journalled by itself."""

    name = "slows-down"

    def __call__(self, event: Event, state: State) -> list[Action]:
        fast = isinstance(event, FlowProgress) and event.flows[0].rate_bps > 100
        return [SetRate(flow_id="n1:a", rate_bps=100)] if fast else []


def test_progress_is_journalled_only_with_a_decision_and_that_survives_a_restart(tmp_path: Path) -> None:
    with Backplane.open() as backplane:
        with GlobalController(SlowsDown(), [], backplane, tmp_path) as controller:
            backplane.publish(started(), confirm=True, timeout=WAIT_S)
            for rate in (1, 2, 3, 1000, 4, 5):
                use = FlowUse(flow_id="n1:a", rate_bps=rate)
                backplane.publish(FlowProgress(agent="n1", flows=(use,)))
            wait_until(lambda: controller.snapshot().flows["n1:a"].rate_bps == 5)
            wanted = controller.snapshot().flows["n1:a"].wanted
            controller._journal.compact_after = 10**9
    journal = Journal(tmp_path / "journal.db")
    kept = [item.event for item in journal.events() if isinstance(item.event, FlowProgress)]
    journal.close()
    assert [event.flows[0].rate_bps for event in kept] == [1000]
    with Backplane.open() as backplane, GlobalController(SlowsDown(), [], backplane, tmp_path) as controller:
        assert controller.snapshot().flows["n1:a"].wanted == wanted == FlowSettings(version=1, rate_bps=100)


def test_decisions_on_progress_are_replayed_without_a_snapshot(tmp_path: Path) -> None:
    with Backplane.open() as backplane:
        controller = GlobalController(SlowsDown(), [], backplane, tmp_path)
        controller.start()
        backplane.publish(started(), confirm=True, timeout=WAIT_S)
        backplane.publish(FlowProgress(agent="n1", flows=(FlowUse(flow_id="n1:a", rate_bps=1000),)))
        wait_until(lambda: controller.snapshot().flows["n1:a"].wanted.version == 1)
        backplane.publish(started("n1:b"), confirm=True, timeout=WAIT_S)
        controller.snapshot()
        controller._intake.stop()
        controller._journal.close()  # as after a kill: no last snapshot of the state
        again = GlobalController(SlowsDown(), [], backplane, tmp_path)
        assert again._engine.state.flows["n1:a"].wanted == FlowSettings(version=1, rate_bps=100)
        assert list(again._engine.state.flows) == ["n1:a", "n1:b"]
        again._journal.close()
