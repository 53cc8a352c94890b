"""OpenFlow server: accepts switches, reads their rules, installs changes.

Arrives: connections from switches; changes by datapath id; packets and counters to ask for.
Leaves: calls on `Callbacks`; per switch, whether its changes are in force.
Must not know: topologies, plans, labels, the purpose of a rule. It only translates.

Each connection has one thread for its handshake and messages. A datapath id belongs to one connection at a time: a
second one is accepted only if the first does not answer.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from waystage.interconnect import openflow_entries
from waystage.interconnect import openflow_wire as wire
from waystage.interconnect.openflow_access import Access, Gate
from waystage.interconnect.openflow_admission import MAX_WAITING, Budget, Told, Waiting
from waystage.interconnect.openflow_channel import PlainChannel, TlsChannel
from waystage.interconnect.openflow_connection import Connection, Disconnected, Refused
from waystage.interconnect.openflow_errors import AccessError, OpenFlowError
from waystage.interconnect.openflow_install import install
from waystage.interconnect.openflow_messages import MAX_PORT, PortState
from waystage.interconnect.outcome import Outcome
from waystage.interconnect.rules import Change, SwitchRules

log = logging.getLogger(__name__)

ANSWER_TIMEOUT_S = 5.0
"""How long a switch may take to answer; hardware takes seconds for thousands of rules (OFLOPS, PAM'12)."""

PROBE_S = 2.0
"""How long a switch may take for an echo when another connection claims its datapath id."""

MAX_SWITCHES = 1024
"""Maximum number of switches without a topology."""


class Callbacks(Protocol):
    """Called in the threads of the switches: return quickly, raise nothing, call no blocking method here."""

    def switch_up(self, dpid: int, ports: dict[int, PortState], held: SwitchRules) -> None: ...

    def switch_down(self, dpid: int) -> None: ...

    def port_changed(self, dpid: int, port: int, state: PortState | None) -> None: ...

    def packet_in(self, dpid: int, port: int, data: bytes) -> None: ...

    def switch_refused(self, dpid: int, address: str, certificate: str, reason: str, times: int) -> None:
        """A connection claimed to be `dpid` and was rejected, `times` times since the last report."""


class OpenFlowServer:
    """`start` and `stop` in pairs.

    `ours` is the (cookie, mask) of Waystage's flow entries; `access` restricts connections; `known` holds the accepted
    datapath ids, None accepts any.
    """

    def __init__(
        self,
        callbacks: Callbacks,
        listen: tuple[str, int] = ("127.0.0.1", 6653),
        *,
        ours: tuple[int, int] = (0, 0),
        access: Access | None = None,
        known: frozenset[int] | None = None,
    ) -> None:
        self._callbacks = callbacks
        self._listen = listen
        self._ours = ours
        self._access = access or Access()
        self._known = known
        self._gate = Gate(Access())
        self._listener: socket.socket | None = None
        self._threads: set[threading.Thread] = set()
        self._open: set[Connection] = set()
        self._waiting: Waiting[Connection] = Waiting()
        self._holders: dict[int, Connection] = {}  # every connection that was believed, by its datapath id
        self._switches: dict[int, Connection] = {}  # those of them whose rules were read
        self._told = Told()
        self._budget = Budget()
        self._lock = threading.Lock()
        self._stopping = False

    # -- life ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Listen. Raises OpenFlowError if the port cannot be opened, AccessError if it would be unsafe."""
        self._gate = Gate(self._access)
        self._listener = _listen(*self._listen, self._gate)
        self._stopping = False
        self._spawn(self._accept, "openflow-accept", self._listener)

    def stop(self) -> None:
        """Close every channel; switches keep the rules they hold. Harmless when not started."""
        if self._listener is None:
            return
        self._stopping = True
        with self._lock:
            threads = set(self._threads)  # one that ends now is no longer listed, and not yet gone
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread, closing alone does not
        self._listener.close()
        self._listener = None
        with self._lock:
            connections = list(self._open)
            threads |= self._threads
        for connection in connections:
            connection.shut()
        for thread in threads:
            thread.join(timeout=ANSWER_TIMEOUT_S)

    @property
    def port(self) -> int:
        """The port listened on, which the system chose where 0 was asked for."""
        if self._listener is None:
            raise OpenFlowError("the OpenFlow server is not started")
        return int(self._listener.getsockname()[1])

    # -- switches -----------------------------------------------------------------------------

    def connected(self) -> dict[int, dict[int, PortState]]:
        """dpid -> ports of every switch whose control channel is open and whose rules were read."""
        with self._lock:
            return {dpid: _real_ports(connection) for dpid, connection in self._switches.items()}

    def install(
        self, changes: Mapping[int, Sequence[Change]], timeout_s: float = ANSWER_TIMEOUT_S
    ) -> dict[int, Outcome]:
        """Bring changes into force on every named switch, or on none as far as that can be known.

        Blocks until the last barrier is answered. A switch that does not answer in time is disconnected, so that its
        state is read again when it returns.
        """
        with self._lock:
            connections = {dpid: self._switches.get(dpid) for dpid in changes}
        return install(connections, changes, timeout_s)

    def read_back(self, dpid: int, timeout_s: float = ANSWER_TIMEOUT_S) -> SwitchRules:
        """Our rules on the switch. Raises OpenFlowError if it is disconnected or does not answer."""
        connection = self._connection(dpid)
        try:
            return _collect(*self._ask_held(connection), timeout_s)
        except (OSError, TimeoutError) as error:
            raise OpenFlowError(f"switch {dpid:#x} did not say what it holds: {error}") from error

    def packet_out(self, dpid: int, port: int, data: bytes) -> bool:
        """Send a frame out of a port. False if the switch is disconnected."""
        with self._lock:
            connection = self._switches.get(dpid)
        return connection is not None and connection.send(wire.packet_out(connection.version, port, data))

    def count(
        self, dpid: int, cookie: int, mask: int, timeout_s: float = ANSWER_TIMEOUT_S
    ) -> tuple[list[wire.FlowCount], list[wire.PortCount]]:
        """Counters of the flow entries whose masked cookie matches, and of every port."""
        connection = self._connection(dpid)
        version = connection.version
        flows = connection.request(wire.flow_counts_request(version, cookie, mask), wire.flow_counts)
        ports = connection.request(
            wire.port_counts_request(version), lambda part: wire.port_counts(version, part)
        )
        deadline = time.monotonic() + timeout_s
        try:
            return (
                flows.result(max(0.0, deadline - time.monotonic())),
                ports.result(max(0.0, deadline - time.monotonic())),
            )
        except (OSError, TimeoutError) as error:
            connection.forget(flows)
            connection.forget(ports)
            raise OpenFlowError(f"switch {dpid:#x} did not give its counters: {error}") from error

    # -- the listener of each connection ------------------------------------------------------

    def admit(self, connection: Connection) -> None:
        """Raise Refused if the peer may not claim this datapath id. Waits for at most one echo."""
        dpid = connection.dpid
        objection = self._gate.objection(connection.names, dpid)
        if objection is None and self._known is not None and dpid not in self._known:
            objection = "the switch is not in the topology"
        while objection is None:
            with self._lock:
                holder = self._holders.get(dpid)
                full = self._known is None and len(self._holders) >= MAX_SWITCHES
                if holder is None and not full:
                    if not self._waiting.leave(connection):
                        raise Refused("")  # it has had to make room
                    self._holders[dpid] = connection
                    return
            if holder is None:
                objection = f"{MAX_SWITCHES} switches are connected already"
            elif holder.is_alive(PROBE_S):
                objection = f"that switch is connected from {holder.address} and answers"
            else:
                self._give_way(holder)
        self._refuse(connection, dpid, objection)

    def connection_ready(self, connection: Connection) -> None:
        flows, groups = self._ask_held(connection)
        # Both are answered in the thread that is now in this call: go on when the later one is.
        groups.add_done_callback(lambda _: self._held_known(connection, flows, groups))

    def connection_lost(self, connection: Connection, why: str) -> None:
        with self._lock:
            self._waiting.leave(connection)
            self._open.discard(connection)
        if self._release(connection):
            self._callbacks.switch_down(connection.dpid)
        if why and not self._stopping:
            self._tell(connection.address, why)

    def port_changed(self, connection: Connection, port: int, state: PortState | None) -> None:
        if port < MAX_PORT and self._is_current(connection):
            self._callbacks.port_changed(connection.dpid, port, state)

    def packet_in(self, connection: Connection, port: int, data: bytes) -> None:
        if port in connection.ports_now and self._is_current(connection):
            self._callbacks.packet_in(connection.dpid, port, data)

    # -- helpers ------------------------------------------------------------------------------

    def _connection(self, dpid: int) -> Connection:
        with self._lock:
            connection = self._switches.get(dpid)
        if connection is None:
            raise OpenFlowError(f"switch {dpid:#x} is not connected")
        return connection

    def _is_current(self, connection: Connection) -> bool:
        with self._lock:
            return self._switches.get(connection.dpid) is connection

    def _release(self, connection: Connection) -> bool:
        """Release the datapath id; returns whether callers knew the switch by this connection."""
        dpid = connection.id
        with self._lock:
            if dpid is None or self._holders.get(dpid) is not connection:
                return False
            del self._holders[dpid]
            return self._switches.pop(dpid, None) is connection

    def _give_way(self, holder: Connection) -> None:
        log.warning("switch %#x connects again, and does not answer from %s", holder.dpid, holder.address)
        if self._release(holder):
            self._callbacks.switch_down(holder.dpid)
        holder.shut()

    def _refuse(self, connection: Connection, dpid: int, reason: str) -> None:
        names = ", ".join(connection.names)
        with self._lock:
            key = (connection.address.rpartition(":")[0], dpid, names, reason)
            times = self._told.times(key, time.monotonic())
        if times:
            text = f"a connection from {connection.address} says it is switch {dpid:#x}: refused, {reason}"
            log.warning("%s%s", text, f" ({times} times)" if times > 1 else "")
            self._callbacks.switch_refused(dpid, connection.address, names, reason, times)
        raise Refused("")

    def _tell(self, address: str, why: str) -> None:
        with self._lock:
            times = self._told.times((address.rpartition(":")[0], why), time.monotonic())
        if times:
            again = f" ({times} times from there)" if times > 1 else ""
            log.warning("the connection from %s is closed: %s%s", address, why, again)

    def _ask_held(self, connection: Connection) -> tuple[Future[list[Any]], Future[list[Any]]]:
        flows, groups = wire.held_requests(connection.version, *self._ours)
        return (
            connection.request(flows, lambda part: openflow_entries.rules(part, self._ours), kept=True),
            connection.request(groups, openflow_entries.groups, kept=True),
        )

    def _held_known(
        self, connection: Connection, flows: Future[list[Any]], groups: Future[list[Any]]
    ) -> None:
        try:
            held = _collect(flows, groups, 0)
        except (OSError, TimeoutError) as error:
            if not isinstance(error, Disconnected):
                why = f"switch {connection.dpid:#x} did not say what it holds: {error}"
                self._tell(connection.address, why)
            connection.shut()
            return
        connection.described()
        with self._lock:
            if self._holders.get(connection.dpid) is not connection:
                return  # it had to give way meanwhile
            self._switches[connection.dpid] = connection
        self._callbacks.switch_up(connection.dpid, _real_ports(connection), held)

    def _accept(self, listener: socket.socket) -> None:
        while not self._stopping:
            try:
                sock, address = listener.accept()
            except OSError as error:
                if self._stopping or error.errno in (errno.EBADF, errno.EINVAL):
                    return
                log.warning("cannot accept a switch: %s", error)
                time.sleep(0.1)  # out of descriptors: give others time to close some
                continue
            where = f"{address[0]}:{address[1]}"
            try:
                connection = self._received(sock, address[0], where)
            except OSError as error:
                sock.close()
                log.warning("no control channel with %s: %s", where, error)
                continue
            if connection is not None:
                self._serve(connection, where)

    def _serve(self, connection: Connection, where: str) -> None:
        try:
            self._spawn(connection.serve, f"openflow-{where}")
        except RuntimeError as error:  # no thread is left to be had
            with self._lock:
                self._waiting.leave(connection)
                self._open.discard(connection)
            connection.end()
            self._tell(where, str(error))

    def _received(self, sock: socket.socket, host: str, where: str) -> Connection | None:
        """A connection that may be read, or None. No byte has been read yet: handshakes have their own threads."""
        if not self._gate.allows(host):
            sock.close()
            self._tell(
                where, f"a connection from {where} is closed: openflow.allow does not name its address"
            )
            return None
        context = self._gate.context
        channel = PlainChannel(sock) if context is None else TlsChannel(sock, context)
        connection = Connection(channel, where, self, self._budget)
        with self._lock:
            # Connections that are closing still count.
            crowded = len(self._threads) >= 2 * MAX_WAITING + len(self._holders)
            oldest = None if crowded else self._waiting.enter(connection, host)
            if not crowded:
                self._open.add(connection)
        if oldest is not None or crowded:
            self._tell(where if oldest is None else oldest.address, "too many unidentified connections")
        if oldest is not None:
            oldest.shut()
        if crowded:
            sock.close()
            return None
        return connection

    def _spawn(self, target: Any, name: str, *arguments: Any) -> None:
        def run() -> None:
            try:
                target(*arguments)
            finally:
                with self._lock:
                    self._threads.discard(thread)

        thread = threading.Thread(target=run, name=name, daemon=True)
        with self._lock:
            self._threads.add(thread)
        try:
            thread.start()
        except RuntimeError:
            with self._lock:
                self._threads.discard(thread)
            raise


def _real_ports(connection: Connection) -> dict[int, PortState]:
    return {port: state for port, state in list(connection.ports_now.items()) if port < MAX_PORT}


def _collect(flows: Future[list[Any]], groups: Future[list[Any]], timeout_s: float) -> SwitchRules:
    deadline = time.monotonic() + timeout_s
    held_flows = flows.result(max(0.0, deadline - time.monotonic()))
    held_groups = groups.result(max(0.0, deadline - time.monotonic()))
    return SwitchRules(
        rules={rule.key: rule for rule in held_flows},
        groups={group.group_id: group for group in held_groups},
    )


def _listen(host: str, port: int, gate: Gate) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        gate.check_listening(host, listener.getsockname()[0], port)
        listener.listen(128)
    except AccessError:
        listener.close()
        raise
    except (OSError, OverflowError) as error:
        listener.close()
        fix = "stop the other controller or choose another port"
        if not (isinstance(error, OSError) and error.errno == errno.EADDRINUSE):
            fix = "choose an address and port of this machine"
        raise OpenFlowError(f"cannot listen for switches on {host}:{port} ({error}): {fix}") from error
    return listener


__all__ = ["Access", "AccessError", "Callbacks", "OpenFlowError", "OpenFlowServer", "Outcome", "PortState"]
