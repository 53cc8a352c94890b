"""The part of the flow agent that hears the I/O processes of its node.

Arrives: messages of local processes, with the kernel's word on their user; `IoAdjusted` from the controller.
Leaves: events of collective I/O; settings to the processes.
Must not know: the backplane, policies, MPI, how a process carries out its settings.

The id of an application begins with the user id of the connected process: what one user says can only be about their
own applications, also of another node's ranks. A connection that ends without a finish is a lost process, with its
aggregators. Settings that no controller repeats for a lease are lifted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from waystage.events import (
    AggregatorLost,
    AggregatorReport,
    AggregatorStarted,
    AggregatorUse,
    Event,
    IoAdjusted,
    IoApplicationFinished,
    IoApplicationStarted,
    IoCompleted,
    IoRequested,
    IoSettings,
    IoUse,
    ServerMapAdopted,
)
from waystage.flows import io_wire
from waystage.local_rpc import Connection

log = logging.getLogger(__name__)

MOST_LEASE_NS = 60 * 10**9
"""Longest grant, and longest waiting: clocks of nodes may differ, and an application must not wait for ever."""

Say = Callable[[Callable[[], Event]], None]


class _Process:
    """The node process of one application."""

    __slots__ = ("app", "connection", "lease_until", "report", "settings", "start")

    def __init__(self, app: str, start: io_wire.IoStart, connection: Connection) -> None:
        self.app, self.start, self.connection = app, start, connection
        self.report = io_wire.IoReport()
        self.settings = IoSettings()
        self.lease_until = 0.0


class IoProcesses:
    """`say` publishes, later; `user_of` names a user, in the publisher's thread."""

    def __init__(
        self,
        agent: str,
        say: Say,
        user_of: Callable[[int], str],
        *,
        lease_s: float,
        most: int,
        most_per_user: int,
    ) -> None:
        self._agent, self._say, self._user_of = agent, say, user_of
        self._lease_s, self._most, self._most_per_user = lease_s, most, most_per_user
        self._processes: dict[Connection, _Process] = {}
        self._changed = False

    def line(self, connection: Connection, message: io_wire.IoMessage) -> str:
        """Act on a message; why it is refused, or nothing."""
        if isinstance(message, io_wire.IoStart):
            return self._start(connection, message)
        process = self._processes.get(connection)
        if process is None:
            return "a message of an application before its start"
        app, agent = process.app, self._agent
        match message:
            case io_wire.IoReport():
                if {use.aggregator for use in message.servers} - set(process.start.aggregators):
                    return "a report of an aggregator that this process does not offer"
                process.report, self._changed = message, True
            case io_wire.IoRequest():
                op, size, storage = message.op, message.bytes, message.storage
                self._say(lambda: IoRequested(app=app, agent=agent, op=op, bytes=size, storage=storage))
            case io_wire.IoComplete():
                done = message
                self.report()  # what the aggregators did comes before what the policy decides on it
                self._say(
                    lambda: IoCompleted(
                        app=app,
                        agent=agent,
                        op=done.op,
                        bytes=done.bytes,
                        waited_ns=done.waited_ns,
                        took_ns=done.took_ns,
                        operations=done.operations,
                    )
                )
            case io_wire.IoAdopted():
                epoch, servers = message.epoch, message.aggregators
                self._say(lambda: ServerMapAdopted(app=app, agent=agent, epoch=epoch, aggregators=servers))
            case io_wire.IoServerState():
                name, reason = message.aggregator, message.reason
                if message.lost:
                    self._say(lambda: AggregatorLost(app=app, agent=agent, aggregator=name, reason=reason))
                elif name in process.start.aggregators:
                    self._tell_aggregator(process, name)
            case io_wire.IoFinish():
                self._end(process, lost=False)
        return ""

    def closed(self, connection: Connection) -> None:
        process = self._processes.get(connection)
        if process is not None:
            self._end(process, lost=True)

    def adjusted(self, event: IoAdjusted) -> None:
        """The controller asks the processes of one application for settings."""
        now = time.monotonic()
        for process in self._processes.values():
            if process.app == event.app:
                process.lease_until = now + self._lease_s
                self._adjust(process, event.settings)

    def tick(self) -> None:
        """Once a second: leases, and a report of all processes."""
        now = time.monotonic()
        for process in self._processes.values():
            if process.settings.version and now > process.lease_until:
                log.warning("no controller repeats the settings of application %s: lifted", process.app)
                self._adjust(process, IoSettings())
        if self._processes:
            self._changed = True
            self.report()

    def report(self) -> None:
        """Publish what all processes reported last, if any has since."""
        if not self._changed:
            return
        self._changed = False
        servers = tuple(
            AggregatorUse(
                app=process.app,
                aggregator=use.aggregator,
                epoch=use.epoch,
                bytes=use.bytes,
                busy_ns=use.busy_ns,
                writes=use.writes,
                queue_bytes=use.queue_bytes,
            )
            for process in self._processes.values()
            for use in process.report.servers
        )
        processes = tuple(
            IoUse(
                app=process.app,
                host=process.start.host,
                version=process.report.version,
                waiting=process.report.waiting,
                bytes=process.report.bytes,
            )
            for process in self._processes.values()
        )
        self._say(lambda: AggregatorReport(agent=self._agent, servers=servers, processes=processes))

    # -- inside --------------------------------------------------------------------------------------------

    def _start(self, connection: Connection, message: io_wire.IoStart) -> str:
        uid = connection.peer.uid
        app = f"{uid}/{message.app}"
        if connection in self._processes:
            return "this connection speaks for an application already: open another"
        mine = [p for p in self._processes.values() if p.connection.peer.uid == uid]
        if len(self._processes) >= self._most or len(mine) >= self._most_per_user:
            return "this node has as many applications with collective I/O as its agent takes"
        if any(p.app == app and p.start.host == message.host for p in mine):
            return f"application {message.app} is reported for {message.host} by another process already"
        process = _Process(app, message, connection)
        self._processes[connection] = process
        self._say(
            lambda: IoApplicationStarted(
                app=app,
                agent=self._agent,
                host=message.host,
                ranks=message.ranks,
                job_id=message.job_id or None,
                user=self._user_of(uid),
            )
        )
        for name in dict.fromkeys(message.aggregators):
            self._tell_aggregator(process, name)
        return ""

    def _tell_aggregator(self, process: _Process, name: str) -> None:
        app, host = process.app, process.start.host
        self._say(lambda: AggregatorStarted(app=app, agent=self._agent, aggregator=name, host=host))

    def _end(self, process: _Process, *, lost: bool) -> None:
        self.report()
        del self._processes[process.connection]
        app, host = process.app, process.start.host
        self._say(
            lambda: IoApplicationFinished(
                app=app, agent=self._agent, host=host, outcome="lost" if lost else "done"
            )
        )

    def _adjust(self, process: _Process, wanted: IoSettings) -> None:
        process.settings = wanted
        left = min(max(0, wanted.until_ns - time.time_ns()), MOST_LEASE_NS) if wanted.until_ns else 0
        process.connection.send(io_wire.settings(wanted, left))
