"""Messages between engines, the flow agent, and those who pace flows: one JSON object a line.

Arrives: lines of local processes that may be hostile.
Leaves: validated messages, or a `WireError` with one sentence for the sender.
Must not know: sockets, users, how a message is acted on.

Strict: an unknown field, a number or text out of bounds, and a control character in a name are errors. The peer of
these messages, which imports little, is `reporter.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from waystage.events import Control, EventError, FlowEndpoint, FlowSettings, TrafficClass, check_name
from waystage.flows import io_wire, mpi_wire
from waystage.flows.io_wire import IoMessage
from waystage.flows.messages import Count, Message, Name, encoder
from waystage.flows.mpi_wire import MpiMessage

LINE_BYTES = 64 * 1024
"""Longest line of a client; a flow that reads 1,024 storage targets takes 30 kB."""

DEVICE = "device:"
"""How the targets of file systems of one host begin."""

Targets = Annotated[tuple[Name, ...], Meta(max_length=1024)]
Controls = Annotated[tuple[Control, ...], Meta(max_length=8)]
Limit = Literal["", "rate", "source", "destination", "network", "paused"]


class WireError(ValueError):
    """A line that is no valid message; the text is for its sender."""


class End(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One end of a flow; an empty host is the agent's own where there is no peer."""

    host: Name = ""
    targets: Targets = ()
    peer: Name = ""


class Start(Message, frozen=True, kw_only=True, tag="start"):
    """First line of an engine: the flow that it reports on this connection. Only root may name another `user`."""

    traffic: TrafficClass
    engine: Name
    job_id: Name | None = None
    user: Name | None = None
    source: End = End()
    destination: End = End()
    bytes: Count = 0
    controls: Controls = ()


class Progress(Message, frozen=True, kw_only=True, tag="progress"):
    """Totals since the start, and the version of the settings that the engine keeps to."""

    bytes_done: Count
    bytes: Count = 0
    limited_by: Limit = ""
    version: Count = 0


class Finish(Message, frozen=True, kw_only=True, tag="finish"):
    bytes_done: Count = 0
    outcome: Literal["done", "failed", "cancelled"] = "done"


class Show(Message, frozen=True, kw_only=True, tag="show"):
    """Asks for the flows of this agent: a user's own, root's all."""


class Change(Message, frozen=True, kw_only=True, tag="change"):
    """Asks for other settings of a flow; a setting that is absent stays, None gives it back."""

    flow_id: Name
    rate_bps: Annotated[int, Meta(ge=8, le=2**53)] | UnsetType | None = UNSET
    mode: Annotated[str, Meta(min_length=1, max_length=32, pattern="^[a-z-]+$")] | UnsetType | None = UNSET
    loaders: Annotated[int, Meta(ge=1, le=4096)] | UnsetType | None = UNSET
    paused: bool | UnsetType = UNSET


FlowMessage = Start | Progress | Finish | Show | Change

AnyMessage = FlowMessage | IoMessage | MpiMessage

_decoder: msgspec.json.Decoder[AnyMessage] = msgspec.json.Decoder(AnyMessage)


def decode(line: bytes) -> AnyMessage:
    """A client's line. Raises WireError, and no other exception."""
    try:
        message = _decoder.decode(line)
        for what, value in _names(message):
            if value:
                check_name(what, value)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise WireError(f"malformed message: {error}") from None
    except EventError as error:
        raise WireError(str(error)) from None
    return message


def endpoint(end: End, host: str) -> FlowEndpoint:
    """The event's form of one end; `host` is the agent's own, which devices are named by: each host has its own."""
    at = end.host or ("" if end.peer else host)
    targets = tuple(
        f"{at}/{target}" if at and target.startswith(DEVICE) else target for target in end.targets
    )
    return FlowEndpoint(host=at, targets=targets, peer=end.peer)


def accepted(flow_id: str) -> bytes:
    """Answers `Start`."""
    return encoder.encode({"type": "accepted", "flow_id": flow_id})


def refused(why: str) -> bytes:
    """Answers a message that is not acted on."""
    return encoder.encode({"type": "refused", "why": why})


def changed(flow_id: str) -> bytes:
    """Answers `Change`."""
    return encoder.encode({"type": "changed", "flow_id": flow_id})


def settings(wanted: FlowSettings) -> bytes:
    """Tells an engine what to keep to: every setting, in full."""
    return encoder.encode(
        {
            "type": "settings",
            "version": wanted.version,
            "rate_bps": wanted.rate_bps,
            "mode": wanted.mode,
            "loaders": wanted.loaders,
            "paused": wanted.paused,
        }
    )


def shown(flows: list[dict[str, Any]]) -> bytes:
    """Answers `Show`."""
    return encoder.encode({"type": "flows", "flows": flows})


def _names(message: AnyMessage) -> list[tuple[str, str | None]]:
    if isinstance(message, Change):
        return [("flow id", message.flow_id)]
    if isinstance(message, IoMessage):
        return list(io_wire.names(message))
    if isinstance(message, MpiMessage):
        return list(mpi_wire.names(message))
    if not isinstance(message, Start):
        return []
    ends = [("source", message.source), ("destination", message.destination)]
    return [
        ("job id", message.job_id),
        ("user", message.user),
        ("engine", message.engine),
        *((f"host of the {what}", end.host) for what, end in ends),
        *((f"peer of the {what}", end.peer) for what, end in ends),
        *((f"storage target of the {what}", target) for what, end in ends for target in end.targets),
    ]
