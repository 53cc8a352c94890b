"""Carries out actions on collective I/O: sends node processes their settings until all of an application keep to them.

Arrives: SetServerMap and GrantIo; events of collective I/O, and the state after them.
Leaves: IoAdjusted to every agent of an application; IoApplicationFinished of processes of which nothing is heard.
Must not know: policies, the backplane, agents.

Level-triggered, as `flow_actuator`: what counts is the difference between the settings wanted and the versions that
reports name. Settings are repeated while they are not the default, and an agent lifts what is not repeated.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from waystage.controllers.flow_actuator import AGAIN_S, RENEW_S, SILENCE_S
from waystage.events import (
    Action,
    AggregatorReport,
    Envelope,
    Event,
    IoAction,
    IoAdjusted,
    IoApplicationFinished,
    IoApplicationStarted,
    IoCompleted,
    IoSettings,
)
from waystage.io_state import IoApplication
from waystage.state import State

log = logging.getLogger(__name__)


class IoActuator:
    """An actuator and an observer; `clock` in s, monotonic."""

    def __init__(self, publish: Callable[[Event], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._publish, self._clock = publish, clock
        self._touched: dict[str, None] = {}
        self._sent: dict[tuple[str, str], tuple[int, float]] = {}
        self._heard: dict[tuple[str, str], float] = {}
        self._renew_at = clock() + RENEW_S

    # -- Actuator ------------------------------------------------------------------------------------

    def accepts(self, action: Action) -> bool:
        return isinstance(action, IoAction)

    def apply(self, action: Action, cause: Envelope) -> None:
        """Noted; settings are sent in `seen`, once for all actions on an application."""
        if isinstance(action, IoAction):
            self._touched[action.app] = None

    # -- Observer ------------------------------------------------------------------------------------

    def seen(self, item: Envelope, state: State) -> None:
        event = item.event
        if isinstance(event, AggregatorReport):
            self._report(event, state)
        elif isinstance(event, IoApplicationStarted):
            self._heard[event.app, event.host] = self._clock()
            app = state.io.applications.get(event.app)
            if app is not None and app.wanted.version:
                self._send(app)  # a process that came later, or again
        elif isinstance(event, IoApplicationFinished):
            self._heard.pop((event.app, event.host), None)
        elif isinstance(event, IoCompleted):
            self._touched.setdefault(event.app, None)  # its grant has ended
        if self._touched:
            touched, self._touched = self._touched, {}
            for name in touched:
                app = state.io.applications.get(name)
                if app is not None:
                    self._send(app, only_new=True)

    def tick(self, state: State) -> None:
        now = self._clock()
        applications = state.io.applications
        running = {
            (app.app, host): agent for app in applications.values() for host, agent in app.agents.items()
        }
        for (name, host), agent in running.items():
            if now - self._heard.setdefault((name, host), now) > SILENCE_S:
                log.warning("nothing is heard of the I/O process of %s on %s: it is lost", name, host)
                self._heard[name, host] = now  # said once
                self._publish(IoApplicationFinished(app=name, agent=agent, host=host, outcome="lost"))
        if now >= self._renew_at:
            self._renew_at = now + RENEW_S
            self._heard = {key: at for key, at in self._heard.items() if key in running}
            self._sent = {key: sent for key, sent in self._sent.items() if key[0] in applications}
            for app in applications.values():
                if app.wanted != IoSettings(version=app.wanted.version):
                    self._send(app)

    # -- inside --------------------------------------------------------------------------------------

    def _report(self, event: AggregatorReport, state: State) -> None:
        now = self._clock()
        for process in event.processes:
            self._heard[process.app, process.host] = now
            app = state.io.applications.get(process.app)
            if app is None or app.wanted.version == process.version:
                continue
            version, at = self._sent.get((process.app, event.agent), (0, float("-inf")))
            if version != app.wanted.version or now - at >= AGAIN_S:
                self._say(app, event.agent)

    def _send(self, app: IoApplication, *, only_new: bool = False) -> None:
        for agent in dict.fromkeys(app.agents.values()):
            if not only_new or self._sent.get((app.app, agent), (0, 0.0))[0] != app.wanted.version:
                self._say(app, agent)

    def _say(self, app: IoApplication, agent: str) -> None:
        self._sent[app.app, agent] = app.wanted.version, self._clock()
        self._publish(IoAdjusted(app=app.app, agent=agent, settings=app.wanted))
