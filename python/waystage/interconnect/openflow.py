"""The OpenFlow side: accepts switches, reads back what they hold, installs changes.

Arrives: connections from switches; changes by datapath id; packets and counters to ask for.
Leaves: calls on `Callbacks`; per switch, whether its changes are in force.
Must not know: topologies, plans, labels, what a rule is for. It translates only.

os-ken is embedded, on native threads: one application, instantiated through its AppManager, takes
part in the handshake; each switch has one thread, in which its messages are parsed and handled.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import logging
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from os_ken.base.app_manager import AppManager
from os_ken.controller import ofp_event
from os_ken.controller.handler import CONFIG_DISPATCHER, MAIN_DISPATCHER, set_ev_handler
from os_ken.controller.ofp_handler import OFPHandler
from os_ken.lib import hub

from waystage.interconnect import openflow_wire as wire
from waystage.interconnect.openflow_connection import Connection, PortState
from waystage.interconnect.openflow_install import install
from waystage.interconnect.outcome import Outcome
from waystage.interconnect.rules import Change, SwitchRules

log = logging.getLogger(__name__)

ANSWER_TIMEOUT_S = 5.0
"""How long a switch may take to answer; hardware takes seconds for thousands of rules (OFLOPS, PAM'12)."""

MAX_PORT = 0xFF00  # OFPP_MAX: above it are the reserved ports


class OpenFlowError(RuntimeError):
    """The server cannot start, or a switch did not answer; the message says which and what to do."""


class Callbacks(Protocol):
    """Called in the threads of the switches: return quickly, raise nothing, call no blocking method here."""

    def switch_up(self, dpid: int, ports: dict[int, PortState], held: SwitchRules) -> None: ...

    def switch_down(self, dpid: int) -> None: ...

    def port_changed(self, dpid: int, port: int, state: PortState | None) -> None: ...

    def packet_in(self, dpid: int, port: int, data: bytes) -> None: ...


class OpenFlowServer:
    """`start` and `stop` in pairs; one server at a time in a process, because os-ken's registry is global.

    `ours` is the (cookie, mask) by which Waystage knows its own flow entries.
    """

    def __init__(
        self,
        callbacks: Callbacks,
        listen: tuple[str, int] = ("127.0.0.1", 6653),
        *,
        ours: tuple[int, int] = (0, 0),
    ) -> None:
        self._callbacks = callbacks
        self._listen = listen
        self._ours = ours
        self._listener: socket.socket | None = None
        self._threads: set[threading.Thread] = set()
        self._open: set[Connection] = set()
        self._switches: dict[int, Connection] = {}
        self._lock = threading.Lock()
        self._stopping = False

    # -- life ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Listen. Raises OpenFlowError where the port is taken or may not be opened."""
        if hub.HUB_TYPE != "native":
            raise OpenFlowError("os-ken would patch the process for eventlet: unset OSKEN_HUB_TYPE")
        self._listener = _listen(*self._listen)
        if not _is_loopback(self._listen[0]):
            log.warning("OpenFlow on %s:%d is not encrypted: use a network of its own for it", *self._listen)
        AppManager.get_instance().instantiate(_App)
        self._stopping = False
        self._spawn(self._accept, "openflow-accept", self._listener)

    def stop(self) -> None:
        """Close every channel; switches keep the rules they hold. Harmless when not started."""
        if self._listener is None:
            return
        self._stopping = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread, closing alone does not
        self._listener.close()
        self._listener = None
        with self._lock:
            connections, threads = list(self._open), list(self._threads)
        for connection in connections:
            connection.shut()
        for thread in threads:
            thread.join(timeout=ANSWER_TIMEOUT_S)
        AppManager.get_instance().uninstantiate(ofp_event.NAME)

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

        Blocks until the last barrier is answered. A switch that does not answer in time is cut off,
        so that its state is read again when it returns.
        """
        with self._lock:
            connections = {dpid: self._switches.get(dpid) for dpid in changes}
        return install(connections, changes, timeout_s)

    def read_back(self, dpid: int, timeout_s: float = ANSWER_TIMEOUT_S) -> SwitchRules:
        """What the switch holds of ours. Raises OpenFlowError where it is away or does not answer."""
        connection = self._connection(dpid)
        try:
            return _collect(*self._ask_held(connection), timeout_s)
        except (OSError, TimeoutError) as error:
            raise OpenFlowError(f"switch {dpid:#x} did not say what it holds: {error}") from error

    def packet_out(self, dpid: int, port: int, data: bytes) -> bool:
        """Send a frame out of a port. False where the switch is away."""
        with self._lock:
            connection = self._switches.get(dpid)
        return connection is not None and connection.send(wire.packet_out(connection.version, port, data))

    def count(
        self, dpid: int, cookie: int, mask: int, timeout_s: float = ANSWER_TIMEOUT_S
    ) -> tuple[list[wire.FlowCount], list[wire.PortCount]]:
        """Counters of the flow entries whose masked cookie matches, and of every port."""
        connection = self._connection(dpid)
        version = connection.version
        flows = connection.request_raw(wire.flow_counts_request(version, cookie, mask))
        ports = connection.request_raw(wire.port_counts_request(version))
        deadline = time.monotonic() + timeout_s
        try:
            flow_parts = flows.result(max(0.0, deadline - time.monotonic()))
            port_parts = ports.result(max(0.0, deadline - time.monotonic()))
            return (
                [count for part in flow_parts for count in wire.flow_counts(part)],
                [count for part in port_parts for count in wire.port_counts(version, part)],
            )
        except (OSError, TimeoutError, ValueError) as error:
            connection.forget(flows)
            connection.forget(ports)
            raise OpenFlowError(f"switch {dpid:#x} did not give its counters: {error}") from error

    # -- the listener of each connection ------------------------------------------------------

    def connection_ready(self, connection: Connection) -> None:
        flows, groups = self._ask_held(connection)
        # Both are answered in the thread that is now in this call: go on when the later one is.
        groups.add_done_callback(lambda _: self._held_known(connection, flows, groups))

    def connection_lost(self, connection: Connection) -> None:
        with self._lock:
            current = self._switches.get(connection.id) is connection
            if current:
                del self._switches[connection.id]
        if current:
            self._callbacks.switch_down(connection.id)

    def port_changed(self, connection: Connection, port: int, state: PortState | None) -> None:
        with self._lock:
            current = self._switches.get(connection.id) is connection
        if current and port < MAX_PORT:
            self._callbacks.port_changed(connection.id, port, state)

    def packet_in(self, connection: Connection, port: int, data: bytes) -> None:
        with self._lock:
            current = self._switches.get(connection.id) is connection
        if current:
            self._callbacks.packet_in(connection.id, port, data)

    # -- helpers ------------------------------------------------------------------------------

    def _connection(self, dpid: int) -> Connection:
        with self._lock:
            connection = self._switches.get(dpid)
        if connection is None:
            raise OpenFlowError(f"switch {dpid:#x} is not connected")
        return connection

    def _ask_held(self, connection: Connection) -> tuple[Future[list[Any]], Future[list[Any]]]:
        parser = connection.ofproto_parser
        cookie, mask = self._ours
        flows = connection.request(parser.OFPFlowStatsRequest(connection, cookie=cookie, cookie_mask=mask))
        groups = connection.request(parser.OFPGroupDescStatsRequest(connection))
        return flows, groups

    def _held_known(
        self, connection: Connection, flows: Future[list[Any]], groups: Future[list[Any]]
    ) -> None:
        try:
            held = _collect(flows, groups, 0)
        except (OSError, TimeoutError, ValueError) as error:
            log.warning(
                "switch %#x did not say what it holds, its channel is closed: %s", connection.id, error
            )
            connection.shut()
            return
        with self._lock:
            before = self._switches.get(connection.id)
            self._switches[connection.id] = connection
        if before is not None:
            log.info("switch %#x connected again; its earlier channel is closed", connection.id)
            before.shut()
        self._callbacks.switch_up(connection.id, _real_ports(connection), held)

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
            self._spawn(self._serve, f"openflow-{address[0]}:{address[1]}", sock, address)

    def _serve(self, sock: socket.socket, address: Any) -> None:
        try:
            connection = Connection(sock, address, self)
        except OSError as error:
            log.warning("no control channel with %s: %s", address, error)
            sock.close()
            return
        with self._lock:
            self._open.add(connection)
        try:
            if not self._stopping:
                connection.serve()
        finally:
            with self._lock:
                self._open.discard(connection)

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
        thread.start()


class _App(OFPHandler):  # type: ignore[misc]
    """os-ken's handshake application. Its own listener, which cannot be stopped, is not started."""

    OFP_VERSIONS = list(wire.VERSIONS)

    def start(self) -> None:
        """Nothing to start: handlers run in the connections' threads."""

    @set_ev_handler(ofp_event.EventOFPPortDescStatsReply, CONFIG_DISPATCHER)  # type: ignore[untyped-decorator]
    def multipart_reply_handler(self, event: Any) -> None:
        for port in event.msg.body:
            event.msg.datapath.port_status(port.port_no, _port_state(port))
        super().multipart_reply_handler(event)

    @set_ev_handler(ofp_event.EventOFPPortStatus, MAIN_DISPATCHER)  # type: ignore[untyped-decorator]
    def port_status_handler(self, event: Any) -> None:
        removed = event.msg.reason == event.msg.datapath.ofproto.OFPPR_DELETE
        port = event.msg.desc
        event.msg.datapath.port_status(port.port_no, None if removed else _port_state(port))

    @set_ev_handler(ofp_event.EventOFPPacketIn, MAIN_DISPATCHER)  # type: ignore[untyped-decorator]
    def packet_in_handler(self, event: Any) -> None:
        port = event.msg.match.get("in_port")
        if port is not None:
            event.msg.datapath.arrived(port, event.msg.data)


def _port_state(port: Any) -> PortState:
    down = 1  # OFPPC_PORT_DOWN in the configuration, OFPPS_LINK_DOWN in the state
    speed = getattr(port, "curr_speed", None)
    if speed is None:  # OpenFlow 1.4 moved it to a property
        speed = max((getattr(p, "curr_speed", 0) for p in getattr(port, "properties", ())), default=0)
    name = port.name.decode("utf-8", "replace").rstrip("\0") if isinstance(port.name, bytes) else port.name
    return PortState(
        up=not (port.config & down or port.state & down),
        name=name,
        mac=port.hw_addr,
        speed_bps=int(speed) * 1000,
    )


def _real_ports(connection: Connection) -> dict[int, PortState]:
    return {port: state for port, state in list(connection.ports_now.items()) if port < MAX_PORT}


def _collect(flows: Future[list[Any]], groups: Future[list[Any]], timeout_s: float) -> SwitchRules:
    deadline = time.monotonic() + timeout_s
    held_flows = flows.result(max(0.0, deadline - time.monotonic()))
    held_groups = groups.result(max(0.0, deadline - time.monotonic()))
    return SwitchRules(
        rules={rule.key: rule for rule in map(wire.decode_rule, held_flows)},
        groups={group.group_id: group for group in map(wire.decode_group, held_groups)},
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(128)
    except (OSError, OverflowError) as error:
        listener.close()
        mend = "stop the other controller or choose another port"
        if not (isinstance(error, OSError) and error.errno == errno.EADDRINUSE):
            mend = "choose an address and port of this machine"
        raise OpenFlowError(f"cannot listen for switches on {host}:{port} ({error}): {mend}") from error
    return listener


__all__ = ["Callbacks", "OpenFlowError", "OpenFlowServer", "Outcome", "PortState"]
