"""Messages between the I/O process of a node and the flow agent: one JSON object a line.

Arrives: lines of local processes that may be hostile.
Leaves: validated messages, or a `WireError` with one sentence for the sender.
Must not know: sockets, users, how a message is acted on.

Strict, as `wire`. One connection speaks for one application on one node.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec
from msgspec import Meta

from waystage.events import IoSettings
from waystage.flows.messages import Count, Message, Name, encoder

Id = Annotated[str, Meta(min_length=1, max_length=200)]
Operation = Annotated[int, Meta(ge=1, le=2**63 - 1)]

MOST_SERVERS = 64
"""Aggregators of one node process in one message."""


class ServerUse(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Totals of one aggregator of this process; see `AggregatorUse`."""

    aggregator: Id
    epoch: Count = 0
    bytes: Count = 0
    busy_ns: Count = 0
    writes: Count = 0
    queue_bytes: Count = 0


class IoStart(Message, frozen=True, kw_only=True, tag="io-start"):
    """First line: the application, this node's ranks of it, and the aggregators that this process offers."""

    app: Id
    host: Id
    ranks: Annotated[int, Meta(ge=0, le=1 << 20)] = 0
    job_id: Name | None = None
    aggregators: Annotated[tuple[Id, ...], Meta(max_length=MOST_SERVERS)] = ()


class IoReport(Message, frozen=True, kw_only=True, tag="io-report"):
    """At most once a second, and after an operation: the settings kept to, and what the aggregators did."""

    version: Count = 0
    waiting: Count = 0
    bytes: Count = 0
    servers: Annotated[tuple[ServerUse, ...], Meta(max_length=MOST_SERVERS)] = ()


class IoRequest(Message, frozen=True, kw_only=True, tag="io-request"):
    """START_IO."""

    op: Operation
    bytes: Count = 0
    storage: Name = ""


class IoComplete(Message, frozen=True, kw_only=True, tag="io-complete"):
    """FINISH_IO."""

    op: Operation
    bytes: Count = 0
    waited_ns: Count = 0
    took_ns: Count = 0
    operations: Operation = 1


class IoAdopted(Message, frozen=True, kw_only=True, tag="io-adopted"):
    """All ranks have begun this epoch."""

    epoch: Count
    aggregators: Annotated[tuple[Id, ...], Meta(max_length=4096)]


class IoServerState(Message, frozen=True, kw_only=True, tag="io-server"):
    """An aggregator of any node is lost to this process, or can serve again."""

    aggregator: Id
    lost: bool
    reason: Annotated[str, Meta(max_length=500)] = ""


class IoFinish(Message, frozen=True, kw_only=True, tag="io-finish"):
    """The application has ended on this node."""


IoMessage = IoStart | IoReport | IoRequest | IoComplete | IoAdopted | IoServerState | IoFinish


def settings(wanted: IoSettings, left_ns: int) -> bytes:
    """Tells a node process what to keep to; the grant or the waiting ends in `left_ns`, with 0 no grant is needed."""
    return encoder.encode(
        {
            "type": "io-settings",
            "version": wanted.version,
            "aggregators": wanted.aggregators,
            "weight": wanted.weight,
            "left_ns": left_ns,
        }
    )


def names(message: IoMessage) -> Iterator[tuple[str, str]]:
    """What must be a usable name."""
    match message:
        case IoStart():
            yield from (("application id", message.app), ("host", message.host))
            if message.job_id:
                yield "job id", message.job_id
            yield from (("aggregator", name) for name in message.aggregators)
        case IoReport():
            yield from (("aggregator", server.aggregator) for server in message.servers)
        case IoRequest():
            if message.storage:
                yield "storage", message.storage
        case IoAdopted():
            yield from (("aggregator", name) for name in message.aggregators)
        case IoServerState():
            yield "aggregator", message.aggregator
            if message.reason:
                yield "reason", message.reason
