"""The flow agent of a node: engines report their flows to it, and it passes on what they are asked to keep to.

Arrives: lines of local engines that may be hostile; `FlowAdjusted` from the controller.
Leaves: FlowStarted, FlowFinished, FlowsListed and FlowRequested; FlowProgress of all flows, once a second; settings to
the engines.
Must not know: the backplane, policies, how an engine moves data.

A flow's id is the agent's name and a random part, and one connection speaks for one flow: no process can speak for
another's. The user is the kernel's word. A connection that ends without a finish is a lost flow. Settings that the
controller does not repeat for LEASE_S are lifted, so that no flow stays paused because a controller is gone.
"""

from __future__ import annotations

import logging
import os
import pwd
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from waystage.events import (
    CollectivePlaced,
    Event,
    FlowAction,
    FlowAdjusted,
    FlowFinished,
    FlowProgress,
    FlowRequested,
    FlowSettings,
    FlowsListed,
    FlowStarted,
    FlowUse,
    IoAdjusted,
    Outcome,
    Pause,
    Resume,
    SetLoaders,
    SetMode,
    SetRate,
    agent_of,
    encode_action,
)
from waystage.flows import wire
from waystage.flows.allowance import Allowance, AllowanceOfUsers
from waystage.flows.io_processes import IoProcesses
from waystage.flows.mpi_programs import MpiPrograms
from waystage.flows.mpi_wire import MpiMessage
from waystage.local_rpc import Bounds, Connection, LocalServer

log = logging.getLogger(__name__)

REPORT_S = 1.0
"""Between two FlowProgress."""

LEASE_S = 60.0
"""The controller repeats settings three times as often; see `controllers/flow_actuator.py`."""

LINES_PER_S, LINES_BURST = 20.0, 100.0
"""A client that sends more is disconnected: an engine sends one line a second, and one for each change. The process of
collective I/O sends three an operation, and joins short ones."""

STARTS_PER_S, STARTS_BURST = 50.0, 2000.0
"""Flows that one user may begin, and changes to ask for: each is an event or two in the controller's journal."""

CONNECTIONS, UNREAD_BYTES = 20_000, 1 << 20

Publish = Callable[[Event], object]


class AgentLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Root and the agent's own user are held to `flows` alone."""

    flows: int = 10_000
    flows_per_user: int = 512


class _Flow:
    """A flow of one connection."""

    __slots__ = (
        "asked_again_at",
        "at",
        "bytes",
        "bytes_done",
        "connection",
        "flow_id",
        "lease_until",
        "limited_by",
        "rate_bps",
        "settings",
        "start",
        "version",
    )

    def __init__(self, flow_id: str, start: wire.Start, connection: Connection, now: float) -> None:
        self.flow_id, self.start, self.connection = flow_id, start, connection
        self.at = now
        self.bytes_done, self.bytes, self.rate_bps, self.limited_by = 0, start.bytes, 0, ""
        self.version = 0
        self.settings = FlowSettings()
        self.lease_until = self.asked_again_at = 0.0

    def report(self, message: wire.Progress, now: float) -> None:
        moved, passed = message.bytes_done - self.bytes_done, now - self.at
        if passed > 0.05:  # what follows a change of settings at once gives no rate
            self.rate_bps = min(max(0, round(moved * 8 / passed)), 2**63 - 1)
            self.at, self.bytes_done = now, message.bytes_done
        self.bytes = message.bytes or self.bytes
        self.limited_by, self.version = message.limited_by, message.version

    def use(self) -> FlowUse:
        return FlowUse(
            flow_id=self.flow_id,
            bytes_done=self.bytes_done,
            bytes=self.bytes,
            rate_bps=self.rate_bps,
            limited_by=self.limited_by,
            version=self.version,
        )


class FlowAgent:
    """Serves between `start` and `stop`. `adjusted` may be called from any thread.

    `publish` may block and is called in one thread of the agent. `anywhere`: root may also change flows of other
    agents here, as on the machine of the global controller. Raises LocalRpcError from `start`.
    """

    def __init__(
        self,
        name: str,
        path: Path,
        publish: Publish,
        *,
        host: str = "",
        anywhere: bool = False,
        limits: AgentLimits | None = None,
        lease_s: float = LEASE_S,
    ) -> None:
        self.name, self.path = name, path
        self._host = host or name
        self._publish_event = publish
        self._anywhere, self._limits, self._lease_s = anywhere, limits or AgentLimits(), lease_s
        self._flows: dict[str, _Flow] = {}
        self._of: dict[Connection, _Flow] = {}
        self._per_user: dict[int, int] = {}
        self._lines: dict[Connection, Allowance] = {}
        self._starts = AllowanceOfUsers(STARTS_PER_S, STARTS_BURST)
        self._names: dict[int, str] = {}
        self._stopped = False
        self._io = IoProcesses(
            name,
            self._say,
            self._user,
            lease_s=lease_s,
            most=self._limits.flows,
            most_per_user=self._limits.flows_per_user,
        )
        self._mpi = MpiPrograms(
            name, self._say, self._user, lambda s, work: self._server.later(s, work), most=self._limits.flows
        )
        self._outgoing: queue.SimpleQueue[Callable[[], Event] | None] = queue.SimpleQueue()
        self._publisher = threading.Thread(target=self._run_publisher, name="waystage-flows", daemon=True)
        bounds = Bounds(line_bytes=wire.LINE_BYTES, connections=CONNECTIONS, unread_bytes=UNREAD_BYTES)
        self._server = LocalServer(path, self, bounds=bounds)

    def start(self) -> None:
        self._server.start()
        self._publisher.start()
        self._say(lambda: FlowsListed(agent=self.name))
        self._server.later(REPORT_S, self._report)

    def stop(self) -> None:
        """Engines go on, and report to the next agent."""
        self._stopped = True
        self._server.stop()
        self._outgoing.put(None)
        if self._publisher.ident is not None:
            self._publisher.join(timeout=10.0)

    def __enter__(self) -> FlowAgent:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def adjusted(self, event: FlowAdjusted | IoAdjusted | CollectivePlaced) -> None:
        """The controller asks one of these flows for settings; those of version 0 ask for its FlowStarted again.

        Or it asks the processes of an application that does collective I/O, or has placed a collective.
        """
        if isinstance(event, IoAdjusted):
            self._server.call(lambda: self._io.adjusted(event))
        elif isinstance(event, CollectivePlaced):
            self._server.call(lambda: self._mpi.placed(event))
        else:
            self._server.call(lambda: self._adjust(event))

    # -- Handler, in the server's thread -------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        self._lines[connection] = Allowance(LINES_PER_S, LINES_BURST)

    def line(self, connection: Connection, data: bytes) -> None:
        now = time.monotonic()
        if connection not in self._lines:
            return
        if not self._lines[connection].take(now):
            self._refuse(connection, "too many lines: an engine reports once a second", close=True)
            return
        try:
            message = wire.decode(data)
        except wire.WireError as error:
            self._refuse(connection, str(error), close=True)
            return
        match message:
            case wire.Start():
                self._start(connection, message, now)
            case wire.Progress():
                flow = self._of.get(connection)
                if flow is None:
                    self._refuse(connection, "progress before its start", close=True)
                else:
                    flow.report(message, now)
            case wire.Finish():
                flow = self._of.get(connection)
                if flow is not None:
                    flow.bytes_done = message.bytes_done
                    self._finish(flow, message.outcome)
            case wire.Show():
                connection.send(
                    wire.shown([self._shown(f) for f in self._flows.values() if self._may(connection, f)])
                )
            case wire.Change():
                self._change(connection, message)
            case _:
                if isinstance(message, MpiMessage):
                    why = self._mpi.line(connection, message, now)
                else:
                    why = self._io.line(connection, message)
                if why:
                    self._refuse(connection, why, close=True)

    def closed(self, connection: Connection) -> None:
        self._lines.pop(connection, None)
        flow = self._of.get(connection)
        if flow is not None and not self._stopped:
            self._finish(flow, "lost")
        if not self._stopped:
            self._io.closed(connection)
            self._mpi.closed(connection)

    # -- inside ----------------------------------------------------------------------------------------

    def _start(self, connection: Connection, message: wire.Start, now: float) -> None:
        uid = connection.peer.uid
        why = ""
        if connection in self._of:
            why = "this connection reports a flow already: open another"
        elif message.user is not None and not _trusted(uid):
            why = "only root may name another user"
        elif len(self._flows) >= self._limits.flows:
            why = f"this node has {len(self._flows)} flows already: no more are taken"
        elif not _trusted(uid) and self._per_user.get(uid, 0) >= self._limits.flows_per_user:
            why = f"user {uid} has {self._per_user[uid]} flows already: no more are taken"
        elif not _trusted(uid) and not self._starts.take(uid, now):
            why = f"user {uid} begins too many flows: {STARTS_PER_S:.0f} a second are taken"
        if why:
            self._refuse(connection, why)
            return
        flow = _Flow(f"{self.name}:{os.urandom(8).hex()}", message, connection, now)
        self._flows[flow.flow_id] = self._of[connection] = flow
        self._per_user[uid] = self._per_user.get(uid, 0) + 1
        connection.send(wire.accepted(flow.flow_id))
        self._tell_start(flow)

    def _tell_start(self, flow: _Flow) -> None:
        start, uid = flow.start, flow.connection.peer.uid

        def event() -> Event:
            return FlowStarted(
                flow_id=flow.flow_id,
                traffic=start.traffic,
                engine=start.engine or "unknown",
                job_id=start.job_id or None,
                user=start.user or self._user(uid),
                source=wire.endpoint(start.source, self._host),
                destination=wire.endpoint(start.destination, self._host),
                bytes=flow.bytes,
                controls=tuple(dict.fromkeys(start.controls)),
            )

        self._say(event)

    def _finish(self, flow: _Flow, outcome: Outcome) -> None:
        if self._flows.pop(flow.flow_id, None) is None:
            return
        self._of.pop(flow.connection, None)
        uid = flow.connection.peer.uid
        self._per_user[uid] -= 1
        if not self._per_user[uid]:
            del self._per_user[uid]
        done = flow.bytes_done
        self._say(lambda: FlowFinished(flow_id=flow.flow_id, bytes_done=done, outcome=outcome))

    def _adjust(self, event: FlowAdjusted) -> None:
        flow = self._flows.get(event.flow_id)
        if flow is None:
            return
        now, wanted = time.monotonic(), event.settings
        if wanted.version == 0:
            if now >= flow.asked_again_at:
                flow.asked_again_at = now + REPORT_S
                self._tell_start(flow)
            return
        flow.lease_until = now + self._lease_s
        if wanted.version != flow.settings.version or flow.version != wanted.version:
            flow.settings = wanted
            flow.connection.send(wire.settings(wanted))

    def _report(self) -> None:
        if self._stopped:
            return
        self._server.later(REPORT_S, self._report)
        now = time.monotonic()
        for flow in self._flows.values():
            if flow.settings.version and now > flow.lease_until:
                log.warning("no controller repeats the settings of flow %s: lifted", flow.flow_id)
                flow.settings = FlowSettings()
                flow.connection.send(wire.settings(flow.settings))
        self._io.tick()
        if self._flows:
            event = FlowProgress(agent=self.name, flows=tuple(flow.use() for flow in self._flows.values()))
            self._say(lambda: event)

    def _change(self, connection: Connection, message: wire.Change) -> None:
        flow = self._flows.get(message.flow_id)
        uid = connection.peer.uid
        here = agent_of(message.flow_id) == self.name
        if here and (flow is None or not self._may(connection, flow)):
            # The same sentence for both: whether another's flow runs is not a stranger's to know.
            self._refuse(connection, f"no flow {message.flow_id} of yours runs on this node")
            return
        if not here and not (self._anywhere and _trusted(uid)):
            self._refuse(
                connection,
                f"flow {message.flow_id} is not this node's: change it there, or as root where the global controller runs",
            )
            return
        if flow is not None:
            for name, control in _CONTROL_OF.items():
                if getattr(message, name) is not msgspec.UNSET and control not in flow.start.controls:
                    obeyed = ", ".join(flow.start.controls) or "nothing"
                    self._refuse(connection, f"flow {message.flow_id} does not obey {control}, but {obeyed}")
                    return
        if not _trusted(uid) and not self._starts.take(uid, time.monotonic()):
            self._refuse(
                connection, f"user {uid} asks for too many changes: {STARTS_PER_S:.0f} a second are taken"
            )
            return
        actions = tuple(encode_action(action) for action in _actions(message))
        connection.send(wire.changed(message.flow_id))
        self._say(lambda: FlowRequested(flow_id=message.flow_id, user=self._user(uid), actions=actions))

    def _shown(self, flow: _Flow) -> dict[str, Any]:
        start, kept = flow.start, flow.settings
        return {
            "flow_id": flow.flow_id,
            "traffic": start.traffic,
            "job_id": start.job_id,
            "uid": flow.connection.peer.uid,
            "user": start.user,
            "engine": start.engine,
            "source": msgspec.to_builtins(wire.endpoint(start.source, self._host)),
            "destination": msgspec.to_builtins(wire.endpoint(start.destination, self._host)),
            "controls": list(start.controls),
            "bytes": flow.bytes,
            "bytes_done": flow.bytes_done,
            "rate_bps": flow.rate_bps,
            "limited_by": flow.limited_by,
            "settings": msgspec.to_builtins(kept),
        }

    def _may(self, connection: Connection, flow: _Flow) -> bool:
        uid = connection.peer.uid
        return _trusted(uid) or uid == flow.connection.peer.uid

    def _refuse(self, connection: Connection, why: str, *, close: bool = False) -> None:
        connection.send(wire.refused(why))
        if close:
            self._lines.pop(connection, None)
            connection.close()

    def _user(self, uid: int) -> str:
        """In the publisher's thread: a name service may be slow."""
        if uid not in self._names:
            try:
                self._names[uid] = pwd.getpwuid(uid).pw_name
            except (KeyError, OSError):
                self._names[uid] = str(uid)
        return self._names[uid]

    def _say(self, event: Callable[[], Event]) -> None:
        self._outgoing.put(event)

    def _run_publisher(self) -> None:
        while (make := self._outgoing.get()) is not None:
            try:
                self._publish_event(make())
            except Exception as error:
                log.error("cannot publish an event of flows: %s", error)


_CONTROL_OF = {"rate_bps": "rate", "mode": "mode", "loaders": "loaders", "paused": "pause"}


def _trusted(uid: int) -> bool:
    return uid in (0, os.geteuid())


def _actions(message: wire.Change) -> list[FlowAction]:
    flow_id = message.flow_id
    found: list[FlowAction] = []
    if message.rate_bps is not msgspec.UNSET:
        found.append(SetRate(flow_id=flow_id, rate_bps=message.rate_bps))
    if message.mode is not msgspec.UNSET:
        found.append(SetMode(flow_id=flow_id, mode=message.mode))
    if message.loaders is not msgspec.UNSET:
        found.append(SetLoaders(flow_id=flow_id, loaders=message.loaders))
    if message.paused is not msgspec.UNSET:
        found.append(Pause(flow_id=flow_id) if message.paused else Resume(flow_id=flow_id))
    return found
