"""Applications that do collective I/O, as far as the control plane knows them: a part of the state.

Arrives: events of collective I/O, and actions of policies on it, in the order of folding.
Leaves: what policies read: server maps and epochs, measured service of aggregators, phases of I/O, paces.
Must not know: policies, agents, MPI.

Repeated, late and inconsistent events are defined below and never raise. Sums and short windows of samples only: the
state does not grow with the length of a run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from waystage.events import (
    AggregatorLost,
    AggregatorReport,
    AggregatorStarted,
    AggregatorUse,
    Event,
    IoAction,
    IoApplicationFinished,
    IoApplicationStarted,
    IoCompleted,
    IoRequested,
    IoSettings,
    ServerMapAdopted,
    SetServerMap,
)

SAMPLES = 8
"""Reports kept of each aggregator: enough to tell a burst from a load, and forgotten in some seconds."""

SAME_PHASE = 0.1
"""An operation that follows the one before within this share of its time belongs to the same phase of I/O."""

APPLICATIONS, SERVERS = 10_000, 4096
"""Most applications, and aggregators of one: what is more is not known here, and goes on as it likes."""


class ServiceSample(msgspec.Struct, frozen=True, kw_only=True):
    """Service of one aggregator between two reports."""

    at_ns: int
    epoch: int
    bytes: int
    busy_ns: int
    writes: int


class IoServer(msgspec.Struct, kw_only=True):
    """An aggregator of an application. `outs` counts how often a decision left it out, last at `out_ns` and
    before operation `out_op`; `back_ns` is when it was last taken in again. `lost` is its own state."""

    aggregator: str
    host: str = ""
    agent: str = ""
    lost: bool = False
    bytes: int = 0
    busy_ns: int = 0
    writes: int = 0
    queue_bytes: int = 0
    samples: list[ServiceSample] = []
    outs: int = 0
    out_ns: int = 0
    out_op: int = 0
    back_ns: int = 0


class Pace(msgspec.Struct, kw_only=True):
    """Sums over operations."""

    operations: int = 0
    bytes: int = 0
    took_ns: int = 0

    @property
    def ns_per_byte(self) -> float:
        """0 where nothing was measured."""
        return self.took_ns / self.bytes if self.bytes else 0.0


class IoApplication(msgspec.Struct, kw_only=True):
    """The known facts of an application.

    `hosts` has the ranks of each node, `agents` the agent of each. `map` and `epoch` are what its ranks have adopted,
    `wanted` what policies asked for, `kept` the version that each node process reports. `requested_ns` is when the
    operation `op` came to its control point, 0 between operations; `granted_ns`, when it was let go on. `done_op` is
    the last that has ended. `alone` sums operations during which no other application of the same storage was in one,
    `shared` all others. `phases` counts phases of I/O, from `first_phase_ns` to `last_phase_ns`, their starts.
    """

    app: str
    user: str = ""
    job_id: str | None = None
    started_ns: int = 0
    hosts: dict[str, int] = {}
    agents: dict[str, str] = {}
    servers: dict[str, IoServer] = {}
    epoch: int = 0
    map: tuple[str, ...] = ()
    wanted: IoSettings = IoSettings()
    kept: dict[str, int] = {}
    storage: str = ""
    op: int = 0
    op_bytes: int = 0
    requested_ns: int = 0
    granted_ns: int = 0
    overlapped: bool = False
    done_op: int = 0
    done_ns: int = 0
    took_ns: int = 0
    waited_ns: int = 0
    alone: Pace = msgspec.field(default_factory=Pace)
    shared: Pace = msgspec.field(default_factory=Pace)
    phases: int = 0
    first_phase_ns: int = 0
    last_phase_ns: int = 0

    @property
    def ranks(self) -> int:
        return sum(self.hosts.values())

    @property
    def in_io(self) -> bool:
        """Whether an operation has begun and not ended, waiting for its grant or going on."""
        return self.requested_ns > 0

    @property
    def going_on(self) -> bool:
        return self.granted_ns > 0

    @property
    def offered(self) -> tuple[str, ...]:
        """Aggregators that can serve it, in the order of their start."""
        return tuple(name for name, server in self.servers.items() if not server.lost)

    @property
    def serving(self) -> tuple[str, ...]:
        """The server map that it was asked for last, as far as it can serve; all where none was asked for."""
        offered = self.offered
        asked = tuple(name for name in self.wanted.aggregators if name in set(offered))
        return asked or offered

    @property
    def period_ns(self) -> float:
        """Mean time between the starts of successive phases of I/O (w of IO-Sets); 0 before the second."""
        return (self.last_phase_ns - self.first_phase_ns) / (self.phases - 1) if self.phases > 1 else 0.0

    def alone_ns(self, size: int) -> float:
        """How long an operation of that size takes without others, as far as is known; 0: unknown."""
        pace = self.alone if self.alone.bytes else self.shared
        return pace.ns_per_byte * size


class IoState(msgspec.Struct, kw_only=True):
    """`applications` by their ids. `ended` remembers the latest, so that a late start revives none."""

    applications: dict[str, IoApplication] = {}
    ended: dict[str, int] = {}

    def beside(self, app: IoApplication) -> list[IoApplication]:
        """The other applications on its storage."""
        return [
            other
            for other in self.applications.values()
            if other is not app and (other.storage == app.storage or not other.storage or not app.storage)
        ]

    # -- folding ---------------------------------------------------------------------------------------

    def apply(self, event: Event, time_ns: int) -> None:
        """Fold one event; one of another kind has no effect."""
        handler = _handlers.get(type(event))
        if handler is not None:
            handler(self, event, time_ns)

    def record(self, action: IoAction, time_ns: int) -> None:
        """Fold one action; one on an unknown application has no effect."""
        app = self.applications.get(action.app)
        if app is None:
            return
        before = app.wanted
        if isinstance(action, SetServerMap):
            wanted = msgspec.structs.replace(before, aggregators=action.aggregators)
        else:
            wanted = msgspec.structs.replace(before, weight=action.weight, until_ns=action.until_ns)
        if wanted == before:
            return
        if isinstance(action, SetServerMap):
            self._note_map(app, action.aggregators, time_ns)
        app.wanted = msgspec.structs.replace(wanted, version=before.version + 1)
        self._let_go_on(app, time_ns)

    # -- one method an event ------------------------------------------------------------------------------

    def _started(self, event: IoApplicationStarted, time_ns: int) -> None:
        key = f"{event.app} {event.host}"
        if time_ns <= self.ended.get(key, -1):
            return
        self.ended.pop(key, None)
        app = self.applications.get(event.app)
        if app is None:
            if len(self.applications) >= APPLICATIONS:
                return
            app = self.applications[event.app] = IoApplication(app=event.app, started_ns=time_ns)
        app.user = app.user or event.user
        app.job_id = app.job_id if app.job_id is not None else event.job_id
        app.hosts[event.host] = max(0, event.ranks)
        app.agents[event.host] = event.agent

    def _finished(self, event: IoApplicationFinished, time_ns: int) -> None:
        _remember(self.ended, f"{event.app} {event.host}", time_ns)
        app = self.applications.get(event.app)
        if app is None or app.agents.get(event.host) != event.agent:
            return
        del app.hosts[event.host], app.agents[event.host]
        app.kept.pop(event.host, None)
        for server in app.servers.values():
            if server.host == event.host and server.agent == event.agent:
                server.lost = True
        if not app.hosts:
            del self.applications[event.app]

    def _aggregator_started(self, event: AggregatorStarted, time_ns: int) -> None:
        app = self.applications.get(event.app)
        if app is None or (event.aggregator not in app.servers and len(app.servers) >= SERVERS):
            return
        server = app.servers.setdefault(event.aggregator, IoServer(aggregator=event.aggregator))
        server.host, server.agent, server.lost = event.host, event.agent, False

    def _aggregator_lost(self, event: AggregatorLost, time_ns: int) -> None:
        app = self.applications.get(event.app)
        if app is not None and event.aggregator in app.servers:
            app.servers[event.aggregator].lost = True

    def _report(self, event: AggregatorReport, time_ns: int) -> None:
        for use in event.servers:
            app = self.applications.get(use.app)
            server = app.servers.get(use.aggregator) if app is not None else None
            if server is not None and server.agent == event.agent:
                _measure(server, use, time_ns)
        for process in event.processes:
            app = self.applications.get(process.app)
            if app is None or app.agents.get(process.host) != event.agent:
                continue
            app.kept[process.host] = process.version
            if process.version > app.wanted.version:  # of a controller before this one
                app.wanted = msgspec.structs.replace(app.wanted, version=process.version + 1)
            if process.waiting:
                self._request(app, process.waiting, process.bytes, time_ns)

    def _requested(self, event: IoRequested, time_ns: int) -> None:
        app = self.applications.get(event.app)
        if app is not None:
            app.storage = event.storage or app.storage
            self._request(app, event.op, event.bytes, time_ns)

    def _request(self, app: IoApplication, op: int, size: int, time_ns: int) -> None:
        if op <= app.done_op or (app.in_io and op <= app.op):
            return
        app.op, app.op_bytes, app.requested_ns, app.granted_ns = op, max(0, size), time_ns, 0
        if not app.phases or time_ns - app.done_ns > SAME_PHASE * app.took_ns:
            app.phases += 1
            app.first_phase_ns = app.first_phase_ns or time_ns
            app.last_phase_ns = time_ns
        app.overlapped = False
        self._let_go_on(app, time_ns)

    def _completed(self, event: IoCompleted, time_ns: int) -> None:
        app = self.applications.get(event.app)
        if app is None or event.op <= app.done_op:
            return
        pace = app.shared if app.overlapped else app.alone
        pace.operations += max(1, event.operations)
        pace.bytes += max(0, event.bytes)
        pace.took_ns += max(0, event.took_ns)
        app.took_ns = max(0, event.took_ns)
        app.waited_ns += max(0, event.waited_ns)
        app.done_op, app.done_ns = event.op, time_ns
        app.op = max(app.op, event.op)
        app.requested_ns = app.granted_ns = 0
        app.overlapped = False
        if app.wanted.until_ns and app.wanted.weight > 0:  # a grant is for one operation
            app.wanted = msgspec.structs.replace(app.wanted, weight=0.0, version=app.wanted.version + 1)

    def _adopted(self, event: ServerMapAdopted, time_ns: int) -> None:
        app = self.applications.get(event.app)
        if app is not None and event.epoch >= app.epoch:
            app.epoch, app.map = event.epoch, event.aggregators

    # -- inside -----------------------------------------------------------------------------------------

    def _let_go_on(self, app: IoApplication, time_ns: int) -> None:
        """Note when an operation that waits goes on, and which others are in one at that time."""
        wanted = app.wanted
        if not app.in_io or app.going_on or (wanted.until_ns > time_ns and wanted.weight <= 0):
            return
        app.granted_ns = time_ns
        for other in self.beside(app):
            if other.going_on:
                app.overlapped = other.overlapped = True

    def _note_map(self, app: IoApplication, aggregators: tuple[str, ...], time_ns: int) -> None:
        before, after = set(app.serving), set(aggregators) or set(app.offered)
        for name, server in app.servers.items():
            if name in before - after:
                server.outs += 1
                server.out_ns, server.out_op = time_ns, app.op
            elif name in after - before:
                server.back_ns = time_ns


def _measure(server: IoServer, use: AggregatorUse, time_ns: int) -> None:
    size, busy, writes = (
        use.bytes - server.bytes,
        use.busy_ns - server.busy_ns,
        use.writes - server.writes,
    )
    if size < 0 or busy < 0 or writes < 0:  # it has started anew
        size, busy, writes = use.bytes, use.busy_ns, use.writes
    server.bytes, server.busy_ns, server.writes = use.bytes, use.busy_ns, use.writes
    server.queue_bytes = use.queue_bytes
    if writes > 0 and size > 0:
        server.samples.append(
            ServiceSample(at_ns=time_ns, epoch=use.epoch, bytes=size, busy_ns=busy, writes=writes)
        )
        del server.samples[:-SAMPLES]


def _remember(kept: dict[str, int], key: str, time_ns: int) -> None:
    kept.pop(key, None)
    kept[key] = time_ns
    while len(kept) > APPLICATIONS:
        del kept[next(iter(kept))]


_handlers: dict[type[Event], Callable[[IoState, Any, int], None]] = {
    IoApplicationStarted: IoState._started,
    IoApplicationFinished: IoState._finished,
    AggregatorStarted: IoState._aggregator_started,
    AggregatorLost: IoState._aggregator_lost,
    AggregatorReport: IoState._report,
    IoRequested: IoState._requested,
    IoCompleted: IoState._completed,
    ServerMapAdopted: IoState._adopted,
}

IO_EVENTS = tuple(_handlers)
"""What changes this part of the state."""
