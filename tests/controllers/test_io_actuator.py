"""Settings reach every node process of an application although messages are lost; processes that are silent end."""

from __future__ import annotations

from waystage.controllers.flow_actuator import AGAIN_S, RENEW_S, SILENCE_S
from waystage.controllers.io_actuator import IoActuator
from waystage.events import (
    Action,
    AggregatorReport,
    Envelope,
    Event,
    GrantIo,
    IoAdjusted,
    IoApplicationFinished,
    IoApplicationStarted,
    IoCompleted,
    IoSettings,
    IoUse,
    SetServerMap,
)
from waystage.state import State

A = "1000/a"


class Loop:
    """The actuator in a controller's loop, with a clock that the test sets."""

    def __init__(self) -> None:
        self.now = 100.0
        self.said: list[Event] = []
        self.state = State()
        self.actuator = IoActuator(self.said.append, lambda: self.now)
        for host in ("c1", "c2"):
            self.handle(IoApplicationStarted(app=A, agent=host, host=host, ranks=1))

    def handle(self, event: Event, *actions: Action) -> list[Event]:
        item = Envelope(event=event, event_id="e", time_ns=round(self.now * 1e9))
        self.state.apply(item)
        for action in actions:
            assert self.actuator.accepts(action)
            self.state.record_io(action)  # type: ignore[arg-type]
            self.actuator.apply(action, item)
        self.said.clear()
        self.actuator.seen(item, self.state)
        return list(self.said)

    def tick(self, after_s: float) -> list[Event]:
        self.now += after_s
        self.said.clear()
        self.actuator.tick(self.state)
        return list(self.said)


def report(host: str = "c1", version: int = 0) -> AggregatorReport:
    return AggregatorReport(agent=host, processes=(IoUse(app=A, host=host, version=version),))


def asked(version: int, *agents: str, **settings: object) -> list[IoAdjusted]:
    wanted = IoSettings(version=version, **settings)  # type: ignore[arg-type]
    return [IoAdjusted(app=A, agent=agent, settings=wanted) for agent in agents]


def test_all_actions_on_an_application_are_one_message_to_each_node_and_again_until_it_keeps_to_them() -> (
    None
):
    loop = Loop()
    actions = (SetServerMap(app=A, aggregators=("c1",)), GrantIo(app=A, weight=2.0, until_ns=5))
    wanted = {"aggregators": ("c1",), "weight": 2.0, "until_ns": 5}
    assert loop.handle(report(), *actions) == asked(2, "c1", "c2", **wanted)
    loop.now += AGAIN_S
    assert loop.handle(report("c2", version=1)) == asked(2, "c2", **wanted)
    assert loop.handle(report("c2", version=1)) == [], "not again within half a second"
    loop.now += AGAIN_S
    assert loop.handle(report("c2", version=2)) == []


def test_a_grant_ends_with_its_operation() -> None:
    loop = Loop()
    until = round((loop.now + 30) * 1e9)
    loop.handle(report(), GrantIo(app=A, weight=1.0, until_ns=until))
    said = loop.handle(IoCompleted(app=A, agent="c1", op=1))
    assert said == asked(2, "c1", "c2", weight=0.0, until_ns=until)


def test_a_process_that_comes_later_gets_what_is_asked_for() -> None:
    loop = Loop()
    loop.handle(report(), SetServerMap(app=A, aggregators=("c1",)))
    said = loop.handle(IoApplicationStarted(app=A, agent="c3", host="c3"))
    assert said == asked(1, "c1", "c2", "c3", aggregators=("c1",))


def test_settings_are_renewed_and_silent_processes_are_lost() -> None:
    loop = Loop()
    loop.handle(report(), SetServerMap(app=A, aggregators=("c1",)))
    assert loop.tick(RENEW_S + 1) == asked(1, "c1", "c2", aggregators=("c1",))
    loop.handle(report("c2", version=1))
    lost = [e for e in loop.tick(SILENCE_S - RENEW_S) if isinstance(e, IoApplicationFinished)]
    assert [(e.host, e.outcome) for e in lost] == [("c1", "lost")]
