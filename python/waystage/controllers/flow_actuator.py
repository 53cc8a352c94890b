"""Carries out actions on flows: sends the agent of a flow its settings until the engine keeps to them.

Arrives: SetRate, SetMode, SetLoaders, Pause and Resume; events of flows, and the state after them.
Leaves: FlowAdjusted to the agent of a flow; FlowFinished of flows whose agent is silent; FlowRefused.
Must not know: policies, the backplane, agents.

Level-triggered: what counts is the difference between the settings wanted and the version that progress reports, so
that a message lost, repeated or out of order does no harm.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from waystage.events import (
    Action,
    Control,
    Envelope,
    Event,
    FlowAction,
    FlowAdjusted,
    FlowFinished,
    FlowProgress,
    FlowRefused,
    FlowRequested,
    FlowSettings,
    FlowStarted,
    Pause,
    Resume,
    SetLoaders,
    SetMode,
    SetRate,
    agent_of,
)
from waystage.state import FlowInfo, State

log = logging.getLogger(__name__)

AGAIN_S = 0.5
"""Before settings are sent again."""

RENEW_S = 20.0
"""How often settings are repeated; an agent lifts them after three times as long (`flows/agent.py`)."""

SILENCE_S = 60.0
"""Flows of an agent of which nothing is heard for this long are lost: it reports every second."""

_CONTROL: dict[type[Action], Control] = {
    SetRate: "rate",
    SetMode: "mode",
    SetLoaders: "loaders",
    Pause: "pause",
    Resume: "pause",
}


class FlowActuator:
    """An actuator and an observer; `clock` in s, monotonic."""

    def __init__(self, publish: Callable[[Event], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._publish, self._clock = publish, clock
        self._touched: dict[str, set[Control]] = {}
        self._sent: dict[str, float] = {}
        self._heard: dict[str, float] = {}
        self._told: dict[str, set[Control]] = {}
        self._renew_at = clock() + RENEW_S

    # -- Actuator ------------------------------------------------------------------------------------

    def accepts(self, action: Action) -> bool:
        return isinstance(action, FlowAction)

    def apply(self, action: Action, cause: Envelope) -> None:
        """Noted; the settings of the flow are sent in `seen`, once for all actions on it."""
        if isinstance(action, FlowAction):
            self._touched.setdefault(action.flow_id, set()).add(_CONTROL[type(action)])

    # -- Observer ------------------------------------------------------------------------------------

    def seen(self, item: Envelope, state: State) -> None:
        event = item.event
        if isinstance(event, FlowProgress):
            self._progress(event, state)
        elif isinstance(event, FlowStarted):
            self._heard.setdefault(agent_of(event.flow_id), self._clock())
        elif isinstance(event, FlowFinished):
            self._sent.pop(event.flow_id, None)
            self._told.pop(event.flow_id, None)
        elif isinstance(event, FlowRequested):
            self._touched.setdefault(event.flow_id, set())
        if self._touched:
            touched, self._touched = self._touched, {}
            for flow_id, controls in touched.items():
                flow = state.flows.get(flow_id)
                if flow is not None:
                    self._refuse(flow, controls)
                    self._send(flow)

    def tick(self, state: State) -> None:
        now = self._clock()
        lost = set()
        for agent in {agent_of(flow_id) for flow_id in state.flows}:
            if agent and now - self._heard.setdefault(agent, now) > SILENCE_S:
                lost.add(agent)
        if lost:
            log.warning(
                "nothing is heard of the flow agents %s: their flows are lost", ", ".join(sorted(lost)[:10])
            )
        for flow in [f for f in state.flows.values() if agent_of(f.flow_id) in lost]:
            self._publish(FlowFinished(flow_id=flow.flow_id, bytes_done=flow.bytes_done, outcome="lost"))
        for agent in lost:
            self._heard[agent] = now  # said once
        if now >= self._renew_at:
            self._renew_at = now + RENEW_S
            agents = {agent_of(flow_id) for flow_id in state.flows}
            self._heard = {agent: at for agent, at in self._heard.items() if agent in agents}
            self._sent = {flow_id: at for flow_id, at in self._sent.items() if flow_id in state.flows}
            for flow in state.flows.values():
                if flow.wanted.version and _asks_for_something(flow.settings):
                    self._send(flow)

    # -- inside --------------------------------------------------------------------------------------

    def _progress(self, event: FlowProgress, state: State) -> None:
        self._heard[event.agent] = self._clock()
        flows = state.flows
        for use in event.flows:
            flow = flows.get(use.flow_id)
            if flow is None:
                self._again(use.flow_id, FlowSettings())  # of version 0: asks for its FlowStarted
            elif use.version != flow.wanted.version:
                self._again(use.flow_id, flow.settings)

    def _again(self, flow_id: str, settings: FlowSettings) -> None:
        now = self._clock()
        if now - self._sent.get(flow_id, float("-inf")) >= AGAIN_S:
            self._sent[flow_id] = now
            self._publish(FlowAdjusted(flow_id=flow_id, settings=settings))

    def _send(self, flow: FlowInfo) -> None:
        self._sent[flow.flow_id] = self._clock()
        self._publish(FlowAdjusted(flow_id=flow.flow_id, settings=flow.settings))

    def _refuse(self, flow: FlowInfo, controls: set[Control]) -> None:
        """Once for each control of a flow: a policy may ask at every event."""
        told = self._told.setdefault(flow.flow_id, set())
        for control in sorted(controls - set(flow.controls) - told):
            told.add(control)
            obeyed = ", ".join(flow.controls) or "nothing"
            self._publish(
                FlowRefused(
                    flow_id=flow.flow_id,
                    control=control,
                    reason=f"{flow.engine} does not obey {control} but {obeyed}: choose flows by their controls",
                )
            )


def _asks_for_something(settings: FlowSettings) -> bool:
    return settings != FlowSettings(version=settings.version)
