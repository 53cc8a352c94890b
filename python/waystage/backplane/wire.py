"""Puts, queries, replies and chunked replays over Zenoh.

Arrives: sessions, keys, bytes.
Leaves: bytes; replies to queries.
Must not know: subscriptions, outboxes, the meaning of events.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import msgspec
import zenoh

from waystage.backplane import keys, sockets
from waystage.backplane.config import BackplaneConfig, BackplaneError
from waystage.backplane.inbox import Arrival
from waystage.backplane.outbox import ReplayEnd, ReplayRequest
from waystage.events import EventError, UnknownEvent, decode

log = logging.getLogger(__name__)

CHUNK_BYTES = 256 * 1024
"""A replay travels in pieces of about this size, so that it does not hold up live events for long."""


REPLIES_MAX = 1_000_000
"""Answers to one question that may wait to be read: more than a site has publishers."""


class Reply(Protocol):
    """Answers with bytes, under `key` where it is not the key asked for."""

    def __call__(self, data: bytes, key: str | None = None) -> None: ...


Handler = Callable[[str, bytes, bytes, Reply], None]
"""Called with the key asked, payload, attachment, and what to answer with, as often as wanted."""


class _Chunk(msgspec.Struct, frozen=True, array_like=True):
    items: list[tuple[str, int, bytes]]
    end: ReplayEnd | None = None


_chunk_decoder = msgspec.msgpack.Decoder(_Chunk)
_request_decoder = msgspec.json.Decoder(ReplayRequest)


RECEIVED_BYTES = 4 << 20
"""Buffers of a link with a stream, of 64 KiB each: while events wait in all of them, Zenoh takes and clears a new one for
every batch, and by default there is one."""


def open_session(config: BackplaneConfig, *, streams: bool = False) -> zenoh.Session:
    """`streams`: this process mostly receives, from one router.

    Raises BackplaneError naming the endpoints and what may be wrong with them.
    """
    settings = zenoh.Config()
    found = config.zenoh()
    if streams:
        found["transport/link/rx/buffer_size"] = RECEIVED_BYTES
    for path, value in found.items():
        settings.insert_json5(path, json.dumps(value))
    group = sockets.group_id(config.local_group) if config.local_group else None
    try:
        for place in config.listen_sockets:
            sockets.prepare(place)
        for place in config.connect_sockets:
            sockets.check_answering(place)
        with sockets.closed_to_others() if config.listen_sockets else contextlib.nullcontext():
            session = zenoh.open(settings)
        try:
            for place in config.listen_sockets:
                sockets.open_to(place, group)
        except sockets.SocketError:
            session.close()  # type: ignore[no-untyped-call]
            raise
        return session
    except sockets.SocketError as error:
        raise BackplaneError(str(error)) from None
    except zenoh.ZError as error:
        reason = str(error).split(" at /")[0]
        if config.listen and any(word in reason.lower() for word in ("listen", "bind", "in use")):
            where = ", ".join(config.listen)
            raise BackplaneError(
                f"cannot listen on {where}: is it in use by another controller, or not an address of this "
                f"machine? ({reason})"
            ) from None
        where = ", ".join(config.connect) or ", ".join(config.listen) or "the embedded backplane"
        raise BackplaneError(
            f"cannot reach {where}: is a controller listening there, and do the certificates fit? ({reason})"
        ) from None


def put(
    session: zenoh.Session, key: str, data: bytes, previous: int | None, *, telemetry: bool = False
) -> None:
    """Control events wait where a link is congested; telemetry is dropped there. Raises BackplaneError."""
    control = zenoh.CongestionControl
    try:
        session.put(
            key,
            data,
            attachment=None if previous is None else str(previous).encode(),
            congestion_control=control.DROP if telemetry else control.BLOCK,
            priority=zenoh.Priority.DATA_LOW if telemetry else zenoh.Priority.DATA_HIGH,
        )
    except zenoh.ZError as error:
        raise BackplaneError(f"cannot publish: {error}") from None


def ask(
    session: zenoh.Session, key: str, payload: bytes, timeout: float, attachment: bytes = b""
) -> Iterator[tuple[str, bytes]]:
    """Every answer, key and bytes, until all who can have answered or `timeout` has passed."""
    try:
        replies = session.get(
            key,
            _channel(),
            payload=payload,
            attachment=attachment,
            timeout=timeout,
            target=zenoh.QueryTarget.ALL,
            consolidation=zenoh.ConsolidationMode.NONE,
        )
    except zenoh.ZError as error:
        raise BackplaneError(f"cannot ask for {key}: {error}") from None
    for reply in replies:
        if reply.ok is not None:
            yield str(reply.ok.key_expr), bytes(reply.ok.payload)


def living(session: zenoh.Session, key: str, timeout: float) -> list[str]:
    """The keys of the liveliness tokens there are now."""
    try:
        replies = session.liveliness().get(key, _channel(), timeout=timeout)
    except zenoh.ZError as error:
        raise BackplaneError(f"cannot ask who is there: {error}") from None
    return [str(reply.ok.key_expr) for reply in replies if reply.ok is not None]


def callback(function: Callable[[Any], None]) -> zenoh.handlers.Callback[Any]:
    """`function` in a separate thread, for queries and replies; arriving events are only queued.

    Called directly in Zenoh's receiving thread it would wait there for the interpreter's lock, with Zenoh's own
    locks held; a thread that has the interpreter's lock and enters Zenoh, if only to let go of a query,
    then waits for ever.
    """
    return zenoh.handlers.Callback(function, indirect=True)


def _channel() -> zenoh.handlers.FifoChannel[zenoh.Reply]:
    """Answers as they come. The default holds 256, and then blocks the very call that would empty it."""
    return zenoh.handlers.FifoChannel(REPLIES_MAX)


def answer(session: zenoh.Session, key: str, handler: Handler) -> Any:
    """Declare that queries to `key` are answered by `handler`; one that raises answers nothing."""

    def called(query: zenoh.Query) -> None:
        payload = bytes(query.payload) if query.payload is not None else b""
        attachment = bytes(query.attachment) if query.attachment is not None else b""

        def reply(data: bytes, key: str | None = None) -> None:
            with contextlib.suppress(zenoh.ZError):  # who asked is gone, and will ask again
                query.reply(query.key_expr if key is None else key, data)

        try:
            handler(str(query.key_expr), payload, attachment, reply)
        except (EventError, msgspec.MsgspecError) as error:
            log.warning("refused a malformed query to %s: %s", key, error)
        except Exception:
            log.exception("answering a query to %s failed", key)

    return session.declare_queryable(key, callback(called), complete=True)


_UNKNOWN = UnknownEvent.__name__


def arrival(source: str, type_name: str | None, data: bytes, attachment: bytes) -> Arrival:
    """Raises EventError where the bytes are no event, or claim another source or type than their key.

    A key that stands for several sources (`*`) is none: to acknowledge its event would acknowledge theirs.
    """
    item = decode(data)
    name = type(item.event).__name__
    if name == _UNKNOWN:
        name = keys.type_name(item.event)
    keys.check_origin(name, source)
    if item.source != source or (type_name is not None and name != type_name):
        raise EventError(f"it claims to be {name[:60]!r} of {item.source[:60]!r}, which its key does not say")
    if item.seq < 0 or item.time_ns < 0:
        raise EventError("its number or time is below zero")
    try:
        return Arrival(item, name, int(attachment) if attachment else None)
    except ValueError:
        raise EventError("the number of the event before it is no number") from None


def decode_request(payload: bytes) -> ReplayRequest:
    """A replay's cursor. Raises msgspec.MsgspecError."""
    return _request_decoder.decode(payload)


def send_replay(reply: Reply, key: str, items: Iterable[tuple[str, int, bytes]], end: ReplayEnd) -> None:
    """Answer a query to `key` with events, as (type, number before it of its type, bytes), and then the end.

    Each event travels under a key with its type, since rights are given by type.
    """
    base, _, asked = key.rpartition("/")
    by_type: dict[str, list[tuple[str, int, bytes]]] = {}
    for item in items:
        by_type.setdefault(item[0], []).append(item)
    for name, own in by_type.items():
        for batch in _batches(own):
            reply(msgspec.msgpack.encode(_Chunk(batch)), f"{base}/{name}")
    reply(msgspec.msgpack.encode(_Chunk([], end)), f"{base}/{keys.END}" if asked == "*" else key)


def _batches(items: list[tuple[str, int, bytes]]) -> Iterator[list[tuple[str, int, bytes]]]:
    batch: list[tuple[str, int, bytes]] = []
    size = 0
    for item in items:
        batch.append(item)
        size += len(item[2])
        if size >= CHUNK_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def decode_chunk(data: bytes) -> tuple[list[tuple[str, int, bytes]], ReplayEnd | None]:
    """One answer of a replay; an answer that is none is empty."""
    try:
        chunk = _chunk_decoder.decode(data)
    except msgspec.MsgspecError as error:
        log.warning("dropped a malformed answer to a replay: %s", error)
        return [], None
    return chunk.items, chunk.end
