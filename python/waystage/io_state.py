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
    before operation `out_op`; `back_ns` is when it was last taken in again. `losses` counts how often it was lost, and
    it has been up since `up_ns`."""

    aggregator: str
    host: str = ""
    agent: str = ""
    lost: bool = False
    losses: int = 0
    up_ns: int = 0
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
    """Sums over operations. `share_ns` is the time that they have had of the storage if it is divided among the operations
    in progress by their weights, and nothing is lost by that: the integral of the share."""

    operations: int = 0
    bytes: int = 0
    took_ns: int = 0
    share_ns: int = 0

    @property
    def ns_per_byte(self) -> float:
        """0 where nothing was measured."""
        return self.took_ns / self.bytes if self.bytes else 0.0


class IoApplication(msgspec.Struct, kw_only=True):
    """The known facts of an application.

    `hosts` has the ranks of each node, `agents` the agent of each. `map` and `epoch` are what its ranks have
    adopted, `wanted` what policies asked for, `kept` the version that each node process reports. `requested_ns` is
    when the operation `op` came to its control point, 0 between operations; `granted_ns`, when it was let go on,
    and `begun_ns` that of the last one; `moved_ns`, when an aggregator last wrote for it; `share_ns`, its even
    share of the time from then to `share_at_ns` (see `Pace`). `done_op` is the last that has ended. `alone` sums
    operations during which no other application of the same storage was in one, `shared` all others. `phases`
    counts phases of I/O, from `first_phase_ns` to `last_phase_ns`, their starts.
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
    begun_ns: int = 0
    moved_ns: int = 0
    overlapped: bool = False
    share_ns: int = 0
    share_at_ns: int = 0
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
    def weight(self) -> float:
        """Of an operation that goes on."""
        return self.wanted.weight if self.wanted.weight > 0 else 1.0

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

    @property
    def alone_ns_per_byte(self) -> float:
        """Of its operations without others, else by the share that they had; 0: unknown."""
        return self.alone.ns_per_byte or (
            self.shared.share_ns / self.shared.bytes if self.shared.bytes else 0.0
        )


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

    def alone_ns(self, app: IoApplication, size: int) -> float:
        """How long an operation of `app` of that size takes without others; 0: unknown.

        Of an application that has not written yet as long as one of the others on its storage would take.
        """
        pace = app.alone_ns_per_byte
        if not pace:
            known = [other.alone_ns_per_byte for other in self.beside(app) if other.alone_ns_per_byte]
            pace = sum(known) / len(known) if known else 0.0
        return pace * size

    def going_on(self, storage: str) -> list[IoApplication]:
        """Applications in an operation that was let go on, on this storage; all for an empty one."""
        return [
            app
            for app in self.applications.values()
            if app.going_on and (app.storage == storage or not storage or not app.storage)
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
        if wanted == before and before.version:
            return
        if isinstance(action, SetServerMap):
            self._note_map(app, action.aggregators, time_ns)
        elif app.going_on:
            self._share(app.storage, time_ns)  # with the weights until now
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
            if server.host == event.host and server.agent == event.agent and not server.lost:
                server.lost, server.losses = True, server.losses + (event.outcome == "lost")
        if not app.hosts:
            del self.applications[event.app]

    def _aggregator_started(self, event: AggregatorStarted, time_ns: int) -> None:
        app = self.applications.get(event.app)
        if app is None or (event.aggregator not in app.servers and len(app.servers) >= SERVERS):
            return
        server = app.servers.setdefault(event.aggregator, IoServer(aggregator=event.aggregator))
        server.host, server.agent = event.host, event.agent
        if server.lost or not server.up_ns:
            server.lost, server.up_ns = False, time_ns
            server.samples.clear()

    def _aggregator_lost(self, event: AggregatorLost, time_ns: int) -> None:
        app = self.applications.get(event.app)
        server = app.servers.get(event.aggregator) if app is not None else None
        if server is not None and not server.lost:  # each node process that misses it says so
            server.lost, server.losses = True, server.losses + 1

    def _report(self, event: AggregatorReport, time_ns: int) -> None:
        for use in event.servers:
            app = self.applications.get(use.app)
            server = app.servers.get(use.aggregator) if app is not None else None
            if app is not None and server is not None and server.agent == event.agent:
                if use.bytes != server.bytes:
                    app.moved_ns = time_ns
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
        self._share(app.storage, time_ns)
        if app.in_io and not app.going_on and event.op == app.op:
            pace = Pace()  # it went on by a grant taken back too late: with whom is not known
        else:
            pace = app.shared if app.overlapped else app.alone
        pace.share_ns += app.share_ns
        pace.operations += max(1, event.operations)
        pace.bytes += max(0, event.bytes)
        pace.took_ns += max(0, event.took_ns)
        app.took_ns = max(0, event.took_ns)
        app.waited_ns += max(0, event.waited_ns)
        app.done_op, app.done_ns = event.op, time_ns
        app.op = max(app.op, event.op)
        app.requested_ns = app.granted_ns = 0
        app.overlapped, app.share_ns = False, 0
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
        self._share(app.storage, time_ns)
        for other in self.going_on(app.storage):
            app.overlapped = other.overlapped = True
        app.granted_ns = app.begun_ns = app.share_at_ns = time_ns
        app.share_ns = 0

    def _share(self, storage: str, time_ns: int) -> None:
        """Bring the shares of all operations on this storage up to date."""
        going = self.going_on(storage)
        whole = sum(app.weight for app in going)
        for app in going:
            app.share_ns += round(max(0, time_ns - app.share_at_ns) * app.weight / whole)
            app.share_at_ns = max(time_ns, app.share_at_ns)

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
