"""One switch's control channel.

Arrives: a connected socket; messages to send; requests that want an answer.
Leaves: answers as futures, unasked messages as calls on a `Listener`.
Must not know: other switches, topologies, plans, what a rule is for.

os-ken's `Datapath` gives the handshake's state and the message classes. Its send queue (16 messages,
a thread of its own) and its end are replaced: on native threads that queue's reader is never woken
when a switch goes away, so the connection would neither end nor be reported; and a queue between
caller and socket costs a thread switch on the way of every switch-over. Here the caller writes to
the socket under a lock, and a socket that takes nothing for SEND_TIMEOUT_S is closed.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import socket
import struct
import threading
from concurrent.futures import Future, InvalidStateError
from typing import Any, Protocol

import msgspec
from os_ken import exception as os_ken_exception
from os_ken.controller import ofp_event
from os_ken.controller.controller import Datapath
from os_ken.controller.handler import DEAD_DISPATCHER, MAIN_DISPATCHER
from os_ken.ofproto import ofproto_parser, ofproto_v1_3, ofproto_v1_4

from waystage.interconnect.openflow_wire import HEADER, encode, with_xid

log = logging.getLogger(__name__)

SEND_TIMEOUT_S = 2.0
"""How long a switch may refuse to read, and how often a silent one is asked whether it is there."""

SILENT_ROUNDS = 2
"""A switch that has said nothing for this many timeouts, and was asked in between, is gone. The time must be
shorter than discovery's SILENCE_S, or the cables of a switch that hangs would be taken for dead first."""

_MAX_XID = 0xFFFFFFFF
_MULTIPART_HEADER = struct.Struct("!HH4x")
_MORE = ofproto_v1_3.OFPMPF_REPLY_MORE


class Disconnected(ConnectionError):
    """The control channel closed before the answer came."""


class PortState(msgspec.Struct, frozen=True, kw_only=True):
    """A switch port: `up` where it is enabled and has carrier; `speed_bps` as the switch reports it."""

    up: bool
    name: str = ""
    mac: str = ""
    speed_bps: int = 0


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """An OpenFlow error message: whose transaction, and what the switch said."""

    xid: int
    reason: str
    kind: int = 0
    code: int = 0


class Listener(Protocol):
    """Called in the connection's own thread; must return quickly and not raise."""

    def connection_ready(self, connection: Connection) -> None: ...

    def connection_lost(self, connection: Connection) -> None: ...

    def port_changed(self, connection: Connection, port: int, state: PortState | None) -> None: ...

    def packet_in(self, connection: Connection, port: int, data: bytes) -> None: ...


class Connection(Datapath):  # type: ignore[misc]
    """`ports` is kept current; `send` and the requests may be called from any thread."""

    def __init__(self, sock: socket.socket, address: Any, listener: Listener) -> None:
        self.ports_now: dict[int, PortState] = {}
        self.bundles = True
        self._listener = listener
        self._send_lock = threading.Lock()
        self._xids = itertools.count(1)
        self._xid_lock = threading.Lock()
        self._answers: dict[int, _Answer] = {}
        self._ready = False
        super().__init__(sock, address)
        self.socket.settimeout(SEND_TIMEOUT_S)

    # -- for callers in any thread ------------------------------------------------------------

    @property
    def version(self) -> int:
        return int(self.ofproto.OFP_VERSION)

    def next_xids(self, count: int) -> range:
        """That many transaction ids in a row, never 0."""
        with self._xid_lock:
            first = next(self._xids)
            if first + count > _MAX_XID:
                self._xids = itertools.count(1)
                first = next(self._xids)
            for _ in range(count - 1):
                next(self._xids)
            return range(first, first + count)

    def send(self, buf: bytes, close_socket: bool = False) -> bool:
        """Write now. False where the channel is closed, or has just been for want of a reader."""
        try:
            with self._send_lock:
                self.socket.sendall(buf)
        except OSError as error:
            log.info("switch at %s takes no messages: %s", self.address, error)
            self.shut()
            return False
        if close_socket:
            self.shut()
        return True

    def set_xid(self, msg: Any) -> int:
        xid = self.next_xids(1)[0]
        msg.set_xid(xid)
        return xid

    def shut(self) -> None:
        """Close both directions; the reading thread then ends and reports the loss."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def request(self, message: Any) -> Future[list[Any]]:
        """Send an os-ken multipart request; the future holds the parts' entries, parsed, in one list."""
        return self._ask(encode(message), parsed=True)

    def request_raw(self, message: bytes) -> Future[list[Any]]:
        """The same for an encoded request; the future holds each part's body as bytes."""
        return self._ask(message, parsed=False)

    def batch(self, messages: bytes, xids: range, also: range = range(0)) -> Future[list[Refusal]]:
        """Send encoded messages of which the last is a barrier; the future holds what was refused.

        `also` are transaction ids of earlier messages that may be refused only now.
        """
        answer = _Answer(parsed=False, batch=True)
        answer.xids = (*xids, *also)
        for xid in answer.xids:
            self._answers[xid] = answer
        self._dispatch(answer, messages)
        return answer.refusals

    def forget(self, future: Future[Any]) -> None:
        """Stop waiting for an answer that took too long."""
        for answer in list(self._answers.values()):
            if future in (answer.entries, answer.refusals):
                self._drop(answer)

    # -- the reading thread -------------------------------------------------------------------

    def serve(self) -> None:
        """Say hello, then read until the switch or `shut` closes the channel."""
        self.send_msg(self.ofproto_parser.OFPHello(self))
        try:
            self._recv_loop()
        finally:
            self.is_active = False
            self.set_state(DEAD_DISPATCHER)
            with contextlib.suppress(OSError):
                self.socket.close()
            for answer in list(self._answers.values()):
                answer.fail(Disconnected(f"the switch at {self.address} closed its control channel"))
            self._answers.clear()
            if self._ready:
                self._listener.connection_lost(self)

    def close(self) -> None:
        self.shut()

    def set_state(self, state: str) -> None:
        super().set_state(state)
        if state == MAIN_DISPATCHER and not self._ready:
            self._ready = True
            self._listener.connection_ready(self)

    def port_status(self, port: int, state: PortState | None) -> None:
        """A port status message came; None where the port was removed."""
        if state is None:
            self.ports_now.pop(port, None)
        else:
            self.ports_now[port] = state
        if self._ready:
            self._listener.port_changed(self, port, state)

    def arrived(self, port: int, data: bytes) -> None:
        """A packet was handed to the controller."""
        self._listener.packet_in(self, port, data)

    def _recv_loop(self) -> None:
        buffer = bytearray()
        silent = 0
        while True:
            try:
                data = self.socket.recv(1 << 18)
            except TimeoutError:
                silent += 1
                if silent >= SILENT_ROUNDS:
                    log.warning("switch at %s is silent: its control channel is closed", self.address)
                    return
                if self._ready:
                    self.send_msg(self.ofproto_parser.OFPEchoRequest(self))
                continue
            except OSError:
                return
            if not data:
                return
            silent = 0
            buffer += data
            if not self._take_all(buffer):
                return

    def _take_all(self, buffer: bytearray) -> bool:
        """Handle every whole message and remove it. False where the bytes are no OpenFlow."""
        at = 0
        while len(buffer) - at >= HEADER.size:
            version, kind, length, xid = HEADER.unpack_from(buffer, at)
            if length < HEADER.size:
                log.warning("%s sent a message of %d bytes: its channel is closed", self.address, length)
                return False
            if len(buffer) - at < length:
                break
            message = bytes(buffer[at : at + length])
            at += length
            try:
                self._take(version, kind, xid, message)
            except (struct.error, AssertionError, os_ken_exception.OSKenException) as error:
                log.warning("%s sent a malformed message: %r; its channel is closed", self.address, error)
                return False
        del buffer[:at]
        return True

    def _take(self, version: int, kind: int, xid: int, message: bytes) -> None:
        answer = self._answers.get(xid)
        if kind == ofproto_v1_3.OFPT_ERROR and answer is not None:
            self._refused(answer, xid, message)
        elif kind == ofproto_v1_3.OFPT_BARRIER_REPLY:
            if answer is not None:
                self._finish(answer)
        elif kind == ofproto_v1_3.OFPT_MULTIPART_REPLY and answer is not None:
            self._take_part(answer, version, kind, xid, message)
        elif _is_bundle_reply(version, kind):
            pass  # the barrier behind it says the same
        else:
            self._take_parsed(version, kind, xid, message)

    def _take_part(self, answer: _Answer, version: int, kind: int, xid: int, message: bytes) -> None:
        _, flags = _MULTIPART_HEADER.unpack_from(message, HEADER.size)
        if answer.parsed:
            parsed = ofproto_parser.msg(self, version, kind, len(message), xid, message)
            if parsed is not None:
                answer.parts += parsed.body
        else:
            answer.parts.append(message[HEADER.size + _MULTIPART_HEADER.size :])
        if not flags & _MORE:
            self._finish(answer)

    def _take_parsed(self, version: int, kind: int, xid: int, message: bytes) -> None:
        """os-ken parses it and its handlers run here, in this thread, without a queue."""
        parsed = ofproto_parser.msg(self, version, kind, len(message), xid, message)
        if parsed is None or self.ofp_brick is None:
            return
        event = ofp_event.ofp_msg_to_ev(parsed)
        for handler in list(self.ofp_brick.get_handlers(event, self.state)):
            handler(event)

    # -- answers ------------------------------------------------------------------------------

    def _ask(self, message: bytes, parsed: bool) -> Future[list[Any]]:
        answer = _Answer(parsed=parsed, batch=False)
        answer.xids = tuple(self.next_xids(1))
        self._answers[answer.xids[0]] = answer
        self._dispatch(answer, with_xid(message, answer.xids[0]))
        return answer.entries

    def _dispatch(self, answer: _Answer, data: bytes) -> None:
        # The channel may have ended after the answer was entered and before it was sent.
        if not self.send(data) or not self.is_active:
            self._drop(answer)
            answer.fail(Disconnected(f"the switch at {self.address} closed its control channel"))

    def _refused(self, answer: _Answer, xid: int, message: bytes) -> None:
        kind, code = struct.unpack_from("!HH", message, HEADER.size)
        refusal = Refusal(xid=xid, reason=self._reason(kind, code), kind=kind, code=code)
        if answer.batch:
            answer.refused.append(refusal)
        else:
            self._drop(answer)
            answer.fail(OSError(f"the switch refused the request: {refusal.reason}"))

    def _reason(self, kind: int, code: int) -> str:
        ofp = self.ofproto
        if kind == ofp.OFPET_EXPERIMENTER:
            return f"experimenter error {code}"
        return f"{ofp.ofp_error_type_to_str(kind)}: {ofp.ofp_error_code_to_str(kind, code)}"

    def _finish(self, answer: _Answer) -> None:
        self._drop(answer)
        answer.succeed()

    def _drop(self, answer: _Answer) -> None:
        for xid in answer.xids:
            self._answers.pop(xid, None)


class _Answer:
    """Something was asked; one of the futures will say how it ended."""

    def __init__(self, parsed: bool, batch: bool) -> None:
        self.parsed = parsed
        self.batch = batch
        self.parts: list[Any] = []
        self.refused: list[Refusal] = []
        self.xids: tuple[int, ...] = ()
        self.entries: Future[list[Any]] = Future()
        self.refusals: Future[list[Refusal]] = Future()

    @property
    def _future(self) -> Future[Any]:
        return self.refusals if self.batch else self.entries

    def succeed(self) -> None:
        with contextlib.suppress(InvalidStateError):  # it may have failed in another thread
            self._future.set_result(self.refused if self.batch else self.parts)

    def fail(self, error: Exception) -> None:
        with contextlib.suppress(InvalidStateError):
            self._future.set_exception(error)


def _is_bundle_reply(version: int, kind: int) -> bool:
    if version >= ofproto_v1_4.OFP_VERSION:
        return bool(kind == ofproto_v1_4.OFPT_BUNDLE_CONTROL)
    return bool(kind == ofproto_v1_3.OFPT_EXPERIMENTER)
