"""One switch's control channel.

Arrives: a channel; messages to send; requests that want an answer.
Leaves: answers as futures, unasked messages as calls on a `Listener`.
Must not know: other switches, topologies, plans, what a rule is for.

The caller writes to the channel under a lock, and a channel that takes nothing for SEND_TIMEOUT_S is closed: a queue
between caller and socket would cost a thread switch on the way of every switch-over. What a switch sends is bounded
at every stage: bytes and time until it has said who it is, parts, entries and bytes of every answer, ports, changes of
ports a second. Messages of kinds that are not asked for are skipped unread.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any, Protocol

import msgspec

from waystage.interconnect import openflow_messages as messages
from waystage.interconnect import openflow_wire as wire
from waystage.interconnect.openflow_admission import Budget
from waystage.interconnect.openflow_channel import SEND_TIMEOUT_S, Channel, why_no_handshake
from waystage.interconnect.openflow_errors import MessageError
from waystage.interconnect.openflow_messages import HEADER, PortState

log = logging.getLogger(__name__)

IDENTIFY_S = 5.0
"""From the connection to the features reply, a TLS handshake included."""

DESCRIBE_S = 30.0
"""From there until the switch has described its ports, rules and groups."""

SILENT_ROUNDS = 2
"""A switch that has said nothing for this many timeouts, and was asked in between, is gone. The time must be
shorter than discovery's SILENCE_S, or the cables of a switch that hangs would be taken for dead first."""

STRANGER_BYTES = 4096
"""What a connection may send before it has said who it is: hello and features reply have 48 bytes."""

MAX_PARTS = 4096
MAX_ENTRIES = 131_072
MAX_ANSWER_BYTES = 32 << 20
"""Bounds of one answer: three times the rules of the largest fabric planned for."""

PORT_CHANGES_PER_S = 200
"""Beyond a burst of MAX_PORTS a switch whose ports flap faster is read more slowly: nothing is lost, nothing piles
up."""

_CHUNK = 1 << 18
_MAX_XID = 0xFFFFFFFF
_SET_CONFIG_BODY = struct.pack("!HH", 0, 128)  # fragments as they are; 128 bytes of a packet that missed

Decode = Callable[[bytes], list[Any]]


class Disconnected(ConnectionError):
    """The control channel closed before the answer came."""


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """An OpenFlow error message: whose transaction, and what the switch said."""

    xid: int
    reason: str
    kind: int = 0
    code: int = 0


class Refused(Exception):
    """The peer is not served any longer; the text says why."""


class Listener(Protocol):
    """Called in the connection's own thread; must return quickly and not raise, but for `admit`."""

    def admit(self, connection: Connection) -> None:
        """The peer has said who it is. Raises Refused where it is not believed; may wait."""

    def connection_ready(self, connection: Connection) -> None: ...

    def connection_lost(self, connection: Connection, why: str) -> None:
        """Always called at the end; `why` is empty where the channel just closed."""

    def port_changed(self, connection: Connection, port: int, state: PortState | None) -> None: ...

    def packet_in(self, connection: Connection, port: int, data: bytes) -> None: ...


class Connection:
    """`ports_now` is kept current; `send` and the requests may be called from any thread.

    `id` is the datapath id, None until the peer has said it; `version` is 0 until one is agreed.
    """

    def __init__(
        self, channel: Channel, address: str, listener: Listener, budget: Budget | None = None
    ) -> None:
        self.address = address
        self.id: int | None = None
        self.version = 0
        self.ports_now: dict[int, PortState] = {}
        self.bundles = True
        self._channel = channel
        self._listener = listener
        self._budget = budget or Budget()
        self._counting = threading.Lock()
        self._kept: dict[int, int] = {}  # type of an answer -> bytes that the last of them had
        self._xids = itertools.count(1)
        self._xid_lock = threading.Lock()
        self._answers: dict[int, _Answer] = {}
        self._active = True
        self._ready = False
        self._heard = 0
        self._heard_more = threading.Condition()
        self._received = 0
        self._due_s = time.monotonic() + IDENTIFY_S
        self._port_changes = float(messages.MAX_PORTS)
        self._port_changes_s = time.monotonic()

    # -- for callers in any thread ------------------------------------------------------------

    @property
    def dpid(self) -> int:
        """The datapath id of a connection that was admitted."""
        assert self.id is not None
        return self.id

    @property
    def names(self) -> tuple[str, ...]:
        """The names in the peer's certificate."""
        return self._channel.names

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

    def send(self, data: bytes) -> bool:
        """Write now. False where the channel is closed, or has just been for want of a reader."""
        try:
            self._channel.send(data)
        except OSError as error:
            if self._ready:
                log.info("switch at %s takes no messages: %s", self.address, error)
            self.shut()
            return False
        return True

    def shut(self) -> None:
        """Close both directions; the reading thread then ends and reports the loss."""
        self._channel.shut()

    def end(self) -> None:
        """Close a connection that is not served."""
        self._channel.shut()
        self._channel.close()

    def request(
        self, message: bytes, decode: Decode, at_most: int | None = None, *, kept: bool = False
    ) -> Future[list[Any]]:
        """Send an encoded multipart request; the future holds what `decode` makes of the parts, in one list.

        A `kept` answer counts against the budget of all connections until the next of its type, or the end.
        """
        answer = _Answer(int.from_bytes(message[8:10], "big"), decode, at_most or MAX_ENTRIES, kept)
        answer.xids = tuple(self.next_xids(1))
        self._answers[answer.xids[0]] = answer
        self._dispatch(answer, wire.with_xid(message, answer.xids[0]))
        return answer.future

    def batch(self, encoded: bytes, xids: range, also: range = range(0)) -> Future[list[Refusal]]:
        """Send encoded messages of which the last is a barrier; the future holds what was refused.

        `also` are transaction ids of earlier messages that may be refused only now.
        """
        answer = _Answer()
        answer.xids = (*xids, *also)
        for xid in answer.xids:
            self._answers[xid] = answer
        self._dispatch(answer, encoded)
        return answer.future

    def forget(self, future: Future[Any]) -> None:
        """Stop waiting for an answer that took too long."""
        for answer in list(self._answers.values()):
            if answer.future is future:
                self._drop(answer)

    def described(self) -> None:
        """All that was asked first is known: from now on only silence ends the channel."""
        self._due_s = float("inf")

    def is_alive(self, timeout_s: float) -> bool:
        """Ask for an echo. Whether anything arrives within this time."""
        with self._heard_more:
            before = self._heard
        if not self.send(self._echo_request()):
            return False
        with self._heard_more:
            self._heard_more.wait_for(lambda: self._heard != before or not self._active, timeout_s)
            return self._heard != before and self._active

    # -- the reading thread -------------------------------------------------------------------

    def serve(self) -> None:
        """Say hello, then read until the switch or `shut` closes the channel."""
        why = ""
        try:
            self._open()
            self._read()
        except (MessageError, Refused) as error:
            why = str(error)
        except OSError:
            pass  # the channel closed
        finally:
            with self._heard_more:
                self._active = False
                self._heard_more.notify_all()
            self._channel.shut()
            self._channel.close()
            for answer in list(self._answers.values()):
                self._drop(answer)
                answer.fail(Disconnected(f"the switch at {self.address} closed its control channel"))
            self._budget.give(sum(self._kept.values()))
            self._listener.connection_lost(self, why)

    def take_all(self, buffer: bytearray) -> None:
        """Handle every complete message and remove it. Raises MessageError or Refused."""
        at, size = 0, len(buffer)
        while size - at >= HEADER.size:
            version, kind, length, xid = HEADER.unpack_from(buffer, at)
            self._check_header(version, kind, length)
            if size - at < length:
                break
            body = bytes(buffer[at + HEADER.size : at + length])
            at += length
            self._take(version, kind, xid, body)
        del buffer[:at]

    def _open(self) -> None:
        try:
            self._channel.open(self._due_s)
        except OSError as error:
            raise Refused(why_no_handshake(error)) from None
        self.send(messages.hello())

    def _read(self) -> None:
        buffer = bytearray()
        silent = 0
        while True:
            left_s = self._due_s - time.monotonic()
            if left_s <= 0:
                stage = (
                    f"say who it is within {IDENTIFY_S:.0f} s"
                    if self.id is None
                    else "describe itself in time"
                )
                raise Refused(f"it did not {stage}")
            try:
                data = self._channel.recv(min(SEND_TIMEOUT_S, left_s), self._may_receive())
            except TimeoutError:
                silent += 1
                if self._ready and silent >= SILENT_ROUNDS:
                    raise Refused("it is silent") from None
                if self._ready:
                    self.send(self._echo_request())
                continue
            if not data:
                return
            silent = 0
            buffer += data
            self._received += len(data)
            self.take_all(buffer)

    def _may_receive(self) -> int:
        if self.id is not None:
            return _CHUNK
        if self._received >= STRANGER_BYTES:
            raise Refused(f"it sent {STRANGER_BYTES} bytes without saying who it is")
        return STRANGER_BYTES - self._received

    def _check_header(self, version: int, kind: int, length: int) -> None:
        """What can be said before the body is there."""
        if length < HEADER.size:
            raise MessageError(f"a message says it has {length} bytes")
        if self.id is None and length > STRANGER_BYTES:
            raise MessageError(f"it wants to send {length} bytes before it has said who it is")
        if self.version == 0:
            if kind not in (messages.HELLO, messages.ERROR) or not 0 < version < 0x80:
                tls = (
                    ": it speaks TLS, which this controller was given no certificates for"
                    if version == 0x16
                    else ""
                )
                raise MessageError(f"it began with no OpenFlow hello{tls}")
        elif version != self.version and kind != messages.HELLO:
            raise MessageError(f"a message has version {version}, though {self.version} was agreed")

    def _take(self, version: int, kind: int, xid: int, body: bytes) -> None:
        with self._heard_more:
            self._heard += 1
            self._heard_more.notify_all()
        if kind == messages.MULTIPART_REPLY:
            self._take_part(xid, body)
        elif kind == messages.BARRIER_REPLY:
            answer = self._answers.get(xid)
            if answer is not None and answer.decode is None:
                self._finish(answer)
        elif kind == messages.PACKET_IN:
            if self._ready:
                self._take_packet(body)
        elif kind == messages.PORT_STATUS:
            if self.id is not None:
                self._take_port(body)
        elif kind == messages.ERROR:
            self._take_error(xid, body)
        elif kind == messages.ECHO_REQUEST:
            self.send(HEADER.pack(version, messages.ECHO_REPLY, HEADER.size + len(body), xid) + body)
        elif kind == messages.HELLO:
            self._take_hello(version, body)
        elif kind == messages.FEATURES_REPLY:
            self._take_features(body)
        # Anything else was not asked for, or says what a barrier behind it says too: skipped unread.

    # -- the handshake ------------------------------------------------------------------------

    def _take_hello(self, version: int, body: bytes) -> None:
        if self.version:
            return
        agreed = messages.common_version(version, body)
        if agreed is None:
            reason = "this controller speaks OpenFlow 1.3 and 1.4"
            self.send(messages.hello_failed(min(version, max(messages.VERSIONS)), reason))
            raise Refused(f"it speaks neither OpenFlow 1.3 nor 1.4, its hello has version {version}")
        self.version = agreed
        self._send_bare(messages.FEATURES_REQUEST)

    def _take_features(self, body: bytes) -> None:
        told = messages.features(body)
        if self.id is not None:
            return
        if told.auxiliary:
            raise Refused(
                f"it is auxiliary connection {told.auxiliary} of switch {told.dpid:#x}, and none is used"
            )
        self.id = told.dpid
        self._listener.admit(self)
        self._due_s = time.monotonic() + DESCRIBE_S
        self._send_bare(messages.SET_CONFIG, _SET_CONFIG_BODY)
        request = wire.port_desc_request(self.version)
        ports = self.request(
            request, lambda part: messages.ports(self.version, part), at_most=messages.MAX_PORTS
        )
        ports.add_done_callback(self._ports_known)

    def _ports_known(self, ports: Future[list[Any]]) -> None:
        if ports.exception() is not None:
            self.shut()
            return
        self.ports_now = dict(ports.result())
        self._ready = True
        self._listener.connection_ready(self)

    def _send_bare(self, kind: int, body: bytes = b"") -> None:
        self.send(wire.with_xid(messages.bare(self.version, kind, body), self.next_xids(1)[0]))

    def _echo_request(self) -> bytes:
        return wire.with_xid(messages.bare(self.version, messages.ECHO_REQUEST), self.next_xids(1)[0])

    # -- what comes unasked -------------------------------------------------------------------

    def _take_packet(self, body: bytes) -> None:
        packet = messages.packet_in(body)
        if packet.port is not None:
            self._listener.packet_in(self, packet.port, packet.data)

    def _take_port(self, body: bytes) -> None:
        port, state = messages.port_status(self.version, body)
        self._slow_down()
        if state is None:
            self.ports_now.pop(port, None)
        else:
            self.ports_now[port] = state
            if len(self.ports_now) > messages.MAX_PORTS:
                raise MessageError(f"it says it has more than {messages.MAX_PORTS} ports")
        if self._ready:
            self._listener.port_changed(self, port, state)

    def _slow_down(self) -> None:
        now_s = time.monotonic()
        gained = (now_s - self._port_changes_s) * PORT_CHANGES_PER_S
        self._port_changes = min(float(messages.MAX_PORTS), self._port_changes + gained) - 1
        self._port_changes_s = now_s
        if self._port_changes < 0:
            time.sleep(-self._port_changes / PORT_CHANGES_PER_S)

    # -- answers ------------------------------------------------------------------------------

    def _take_part(self, xid: int, body: bytes) -> None:
        kind, more, part = messages.multipart(body)
        with self._counting:
            answer = self._answers.get(xid)
            if answer is None or answer.decode is None or answer.kind != kind:
                return
            if not self._budget.take(len(part)):
                raise Refused("the answers of all switches together take too much memory")
            answer.size += len(part)
        answer.add(part)
        if not more:
            self._finish(answer)

    def _take_error(self, xid: int, body: bytes) -> None:
        kind, code = messages.error(body)
        answer = self._answers.get(xid)
        if self.id is None:
            raise Refused(f"it answered with an error of type {kind}, code {code}, before it said who it is")
        if answer is None:
            return
        reason = wire.error_text(self.version, kind, code)
        if answer.decode is None:
            answer.refuse(Refusal(xid=xid, reason=reason, kind=kind, code=code))
        else:
            self._drop(answer)
            answer.fail(OSError(f"the switch refused the request: {reason}"))

    def _dispatch(self, answer: _Answer, data: bytes) -> None:
        # The channel may have ended after the answer was entered and before it was sent.
        if not self.send(data) or not self._active:
            self._drop(answer)
            answer.fail(Disconnected(f"the switch at {self.address} closed its control channel"))

    def _finish(self, answer: _Answer) -> None:
        self._drop(answer, keep=answer.kept)
        answer.succeed()

    def _drop(self, answer: _Answer, *, keep: bool = False) -> None:
        with self._counting:
            for xid in answer.xids:
                self._answers.pop(xid, None)
            unused, answer.size = answer.size, 0
            if keep:  # in the place of what was described before
                unused, self._kept[answer.kind] = self._kept.get(answer.kind, 0), unused
        self._budget.give(unused)


class _Answer:
    """Something was asked: entries, where there is a `decode`; else what is refused before the barrier."""

    def __init__(
        self, kind: int = -1, decode: Decode | None = None, at_most: int = 0, kept: bool = False
    ) -> None:
        self.kind = kind
        self.decode = decode
        self.kept = kept
        self.size = 0
        self._at_most = at_most
        self.xids: tuple[int, ...] = ()
        self.future: Future[list[Any]] = Future()
        self._found: list[Any] = []
        self._parts = 0

    def add(self, part: bytes) -> None:
        """Raises MessageError where the answer grows beyond all bounds."""
        assert self.decode is not None
        self._parts += 1
        if self._parts > MAX_PARTS or self.size > MAX_ANSWER_BYTES:
            raise MessageError(f"its answer has more than {MAX_PARTS} parts or {MAX_ANSWER_BYTES >> 20} MiB")
        self._found += self.decode(part)
        if len(self._found) > self._at_most:
            raise MessageError(f"its answer has more than {self._at_most} entries")

    def refuse(self, refusal: Refusal) -> None:
        if len(self._found) < len(self.xids):  # one for each message at the most
            self._found.append(refusal)

    def succeed(self) -> None:
        with contextlib.suppress(InvalidStateError):  # it may have failed in another thread
            self.future.set_result(self._found)

    def fail(self, error: Exception) -> None:
        with contextlib.suppress(InvalidStateError):
            self.future.set_exception(error)
