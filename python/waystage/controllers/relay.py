"""The relay of the lower tiers: spools events on disk while the tier above is down.

Arrives: events of the processes below (`node`: on one node; `application`: of one job's node controllers); events from
above for them.
Leaves: control events upwards, each kept until the tier above has journalled it; telemetry
upwards, only the newest of each source in an interval; chosen types downwards.
Must not know: policies, states, actuators.

The two sides are separate Zenoh sessions instead of one router: a router would forward every event of the system to
every node, and would not spool. Events keep their ids, so that one sent twice, after a kill of this process, is
journalled once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from itertools import islice
from pathlib import Path

import msgspec

from waystage.backplane import (
    Backplane,
    BackplaneConfig,
    BackplaneError,
    Missed,
    NotConfirmed,
    Subscription,
    keys,
)
from waystage.controllers.intake import Intake
from waystage.controllers.journal import Entry, Journal, JournalError
from waystage.events import Envelope, Event, FlowAdjusted, IoAdjusted

log = logging.getLogger(__name__)

RECONNECT_S = 1.0
"""How long to wait before the tier above is tried again for the first time."""

CHECKPOINT_S = 1.0
"""How often what the tier above has journalled is confirmed and noted on disk."""

SPOOL_MAX = 200_000
"""Events that may wait for the tier above, about 200 MB of memory; then publishers are slowed down."""

BATCH = 256
"""Events sent upwards before looking again at what else there is."""

AGENTS_MAX = 20_000
"""Flow agents below whose settings are fetched; a site has 10,000 nodes."""

DOWN_IDS = 65_536
"""Ids of events passed up or down of late, so that none goes round in a circle."""


CONTROLLERS_OWN = (
    "CablingError",
    "Decided",
    "FlowAdjusted",
    "FlowRefused",
    "HostSeen",
    "IoAdjusted",
    "LinkDown",
    "LinkUp",
    "PathsChanged",
    "PathsRefused",
    "PolicyFailed",
    "SwitchDown",
    "SwitchUp",
    "TopologyChanged",
)
"""What only the global controller can know: it goes up where `up` names it, and not for `*`."""


SETTINGS = (FlowAdjusted, IoAdjusted)
"""What goes down to one agent."""


class RelayConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`up`, `down`: event types, `*` for all; upwards, those in CONTROLLERS_OWN must be named.

    `telemetry_interval_s`: of each source and type, only the newest in this time goes up; 0 sends all.
    """

    up: tuple[str, ...] = ("*",)
    down: tuple[str, ...] = ("Decided", "PathsChanged", "PathsRefused", "TopologyChanged")
    telemetry_interval_s: float = 1.0


class RelayStats(msgspec.Struct, kw_only=True):
    """Counts since the start; `waiting` is what the tier above has not confirmed."""

    up: int = 0
    down: int = 0
    telemetry_up: int = 0
    telemetry_merged: int = 0
    waiting: int = 0
    connected: bool = False


class RelayController:
    """A node or application controller. `start` and `stop` in pairs."""

    def __init__(
        self, below: Backplane, above: BackplaneConfig, state_dir: Path, config: RelayConfig | None = None
    ) -> None:
        self.stats = RelayStats()
        self.config = config or RelayConfig()
        self._below, self._above_config = below, above
        self._above: Backplane | None = None
        self._above_events: Subscription | None = None
        self._journal = Journal(state_dir / "spool.db", compact_after=20_000, history=0)
        self._changed = threading.Condition()
        restored = self._journal.restore()
        self._to_send = OrderedDict((e.n, e.envelope) for e in restored.entries if e.n > restored.processed)
        self._sent: OrderedDict[int, Envelope] = OrderedDict()
        self._newest: dict[tuple[str, str, str], Event] = {}
        self._recent: OrderedDict[str, None] = OrderedDict()
        self._agents: dict[str, None] = {}
        self._settings: Subscription | None = None
        self._stopping = self._closing = False
        self._intake = Intake(below, self._journal, self._accepted, confirm=self._confirm_above)
        self._threads = [
            threading.Thread(target=self._run_up, name="waystage-relay-up", daemon=True),
            threading.Thread(target=self._run_checkpoint, name="waystage-relay-checkpoint", daemon=True),
            threading.Thread(target=self._run_telemetry, name="waystage-relay-telemetry", daemon=True),
        ]

    def start(self) -> None:
        self._intake.start()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Take in what has arrived, send what can be sent, keep the rest on disk."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._intake.stop()
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(timeout=10.0)
        if self._above is not None:
            self._above.close()
        self._journal.close()

    def __enter__(self) -> RelayController:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- from below ---------------------------------------------------------------------------------

    def _accepted(self, entries: list[Entry]) -> None:
        with self._changed:
            if len(self._sent) + len(self._to_send) >= SPOOL_MAX:
                log.warning("%d events wait for the tier above: publishers must hold what is new", SPOOL_MAX)
                self._changed.wait_for(
                    lambda: self._closing or len(self._sent) + len(self._to_send) < SPOOL_MAX
                )
            for entry in entries:
                event = entry.envelope.event
                self._meet(event)
                if event.telemetry:
                    # Of each flow agent too: a relay below is one source for several.
                    key = (entry.envelope.source, keys.type_name(event), event.belongs_to() or "")
                    self.stats.telemetry_merged += key in self._newest
                    self._newest[key] = event
                elif self._goes("up", event) and not self._known(entry.envelope.event_id):
                    self._to_send[entry.n] = entry.envelope
            self._changed.notify_all()

    def _goes(self, way: str, event: Event) -> bool:
        types = self.config.up if way == "up" else self.config.down
        name = keys.type_name(event)
        if isinstance(event, Missed):
            return False
        return name in types or ("*" in types and (way == "down" or name not in CONTROLLERS_OWN))

    def _known(self, event_id: str) -> bool:
        """Whether this event passed here of late, upwards or downwards; from now on it did."""
        known = event_id in self._recent
        self._recent[event_id] = None
        while len(self._recent) > DOWN_IDS:
            self._recent.popitem(last=False)
        return known

    # -- upwards ------------------------------------------------------------------------------------

    def _run_up(self) -> None:
        while True:
            above = self._connect()
            if above is None:
                with self._changed:
                    if self._changed.wait_for(lambda: self._stopping, RECONNECT_S):
                        return
                continue
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or self._to_send)
                batch = list(islice(self._to_send.items(), BATCH))
                if self._stopping and not batch:
                    return
            for n, item in batch:
                try:
                    above.forward(item.event, item.event_id, item.time_ns)
                except BackplaneError as error:
                    log.warning("cannot send to the tier above: %s", error)
                    with self._changed:
                        self._changed.wait_for(lambda: self._stopping, RECONNECT_S)
                    break
                with self._changed:
                    self._to_send.pop(n, None)
                    self._sent[n] = item
                    self._changed.notify_all()
                self.stats.up += 1

    def _run_checkpoint(self) -> None:
        """Runs in a separate thread, so that no event waits for a query to the tier above."""
        stopping = False
        while not stopping:
            with self._changed:
                stopping = self._changed.wait_for(lambda: self._stopping, CHECKPOINT_S)
            if self._above is not None:
                self._note_journalled(self._above)

    def _note_journalled(self, above: Backplane) -> None:
        """Ask the tier above for the newest event sent: once it has that, it has all before it."""
        with self._changed:
            newest = next(reversed(self._sent), None)
            self.stats.waiting = len(self._sent) + len(self._to_send)
        if newest is None or not above.confirm_published(timeout=CHECKPOINT_S):
            return
        with self._changed:
            for n in [n for n in self._sent if n <= newest]:
                del self._sent[n]
            self.stats.waiting = len(self._sent) + len(self._to_send)
            self._changed.notify_all()
        try:
            self._journal.record(newest, {})
            if self._journal.wants_snapshot:
                self._journal.compact(newest, b"")
        except JournalError as error:
            log.error("%s; tried again with the next events", error)  # sent twice, it is known by its id

    def _confirm_above(self, item: Envelope, timeout: float) -> bool:
        """A publisher below waits for the global controller, not for this one."""
        deadline = time.monotonic() + timeout
        with self._changed:
            newest = next(reversed(self._to_send), 0)  # the item is not after it
            sent = self._changed.wait_for(
                lambda: self._stopping or next(iter(self._to_send), newest + 1) > newest, timeout
            )
        above = self._above
        if not sent or above is None:
            return False
        try:
            return above.confirm_published(timeout=max(0.1, deadline - time.monotonic()))
        except (BackplaneError, NotConfirmed):
            return False

    def _connect(self) -> Backplane | None:
        if self._above is not None:
            return self._above
        try:
            above = Backplane.open(self._above_config)
        except BackplaneError as error:
            if self.stats.waiting == 0:
                log.warning("the tier above is away, events wait on disk: %s", error)
            self.stats.waiting = len(self._to_send)
            return None
        log.info("connected to the tier above")
        self.stats.connected = True
        if self.config.down:
            wanted = None if "*" in self.config.down else self.config.down
            self._above_events = above.subscribe(wanted, callback=self._from_above)
        self._above = above
        with self._changed:
            agents, self._agents = self._agents, {}
            for agent in agents:
                self._follow_agent(agent)
        return above

    def _meet(self, event: Event) -> None:
        """Settings of flows are fetched from above for the agents heard of below, and for no others."""
        agent = event.belongs_to()
        if agent is not None and agent not in self._agents and not isinstance(event, SETTINGS):
            self._follow_agent(agent)

    def _follow_agent(self, agent: str) -> None:
        if len(self._agents) >= AGENTS_MAX:
            return
        self._agents[agent] = None
        above = self._above
        if above is None:
            return  # once it is there
        try:
            if self._settings is None:
                self._settings = above.subscribe(SETTINGS, callback=self._from_above, scope=agent)
            else:
                above.widen(self._settings, agent)
        except BackplaneError as error:
            log.warning("settings of the flows of %s do not come down: %s", agent, error)

    def _run_telemetry(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping, max(self.config.telemetry_interval_s, 0.01))
                if self._stopping:
                    return
                newest, self._newest = self._newest, {}
            above = self._above
            if above is None:
                continue  # old values are worth nothing once the tier above is back
            for event in newest.values():
                if self._goes("up", event):
                    above.publish(event)
                    self.stats.telemetry_up += 1

    # -- downwards ----------------------------------------------------------------------------------

    def _from_above(self, item: Envelope) -> None:
        with self._changed:
            adjusted = isinstance(item.event, SETTINGS)
            if not (adjusted or self._goes("down", item.event)) or self._known(item.event_id):
                return
        self._below.forward(item.event, item.event_id, item.time_ns)
        self.stats.down += 1
