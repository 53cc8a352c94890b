"""The envelope: an event with its origin, as JSON.

Arrives: events and actions; untrusted bytes.
Leaves: bytes; events, or EventError and no other exception.
Must not know: the meaning of an event, the backplane.

Compatibility: unknown fields are ignored, absent fields take their defaults, an unknown type or a newer schema of a
known one is kept as `UnknownEvent` and forwarded as it came. A newer sender therefore never breaks an older receiver.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec

from waystage.events.base import (
    MAX_MESSAGE_BYTES,
    Action,
    Event,
    EventError,
    action_registry,
    check_names,
    event_registry,
)
from waystage.events.interconnect import UnknownEvent


class Envelope(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An event with its origin. `source` names the publisher's incarnation, `seq` counts its events from 1."""

    event: Event
    event_id: str
    source: str = ""
    seq: int = 0
    time_ns: int = 0


class _Wire(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    type: str
    schema: int = 1
    id: str = ""
    source: str = ""
    seq: int = 0
    time_ns: int = 0
    body: msgspec.Raw = msgspec.Raw(b"{}")


_Reader = tuple[str, type[Event], Callable[[bytes], Any]]
"""The name of a type, the type, and what reads a whole event of it in one pass, as `encode` writes it; that raises for
another type or a later schema, which `decode` then reads in two passes."""

_wire_decoder = msgspec.json.Decoder(_Wire)
_encoder = msgspec.json.Encoder()
_body_decoders: dict[type, msgspec.json.Decoder[Any]] = {}
_readers: dict[bytes, _Reader] = {}
_BEGINS = b'{"type":"'


def new_event_id() -> str:
    """A 128-bit random id in hex."""
    return os.urandom(16).hex()


def envelope(event: Event, source: str = "", seq: int = 0) -> Envelope:
    """Wrap `event` now, with a new id."""
    return Envelope(event=event, event_id=new_event_id(), source=source, seq=seq, time_ns=time.time_ns())


def encode(item: Envelope) -> bytes:
    """The envelope as JSON bytes. Raises EventError where it is larger than MAX_MESSAGE_BYTES."""
    event = item.event
    if isinstance(event, UnknownEvent):
        type_name, schema, body = event.type, event.version, _encoder.encode(event.body)
    else:
        type_name, schema, body = type(event).__name__, type(event).schema, _encoder.encode(event)
    wire = _Wire(
        type=type_name,
        schema=schema,
        id=item.event_id,
        source=item.source,
        seq=item.seq,
        time_ns=item.time_ns,
        body=msgspec.Raw(body),
    )
    data = _encoder.encode(wire)
    if len(data) > MAX_MESSAGE_BYTES:
        raise EventError(f"{type_name} is {len(data)} bytes long; at most {MAX_MESSAGE_BYTES} travel")
    return data


def decode(data: bytes) -> Envelope:
    """Decode untrusted bytes. Raises EventError, and no other exception."""
    event: Event
    if len(data) > MAX_MESSAGE_BYTES:
        raise EventError(f"message of {len(data)} bytes; at most {MAX_MESSAGE_BYTES} are read")
    name = data[len(_BEGINS) : data.find(b'"', len(_BEGINS), 256)]
    known = _readers.get(name)
    if known is None or event_registry.get(known[0]) is not known[1]:
        known = _reader(name)
    if known is not None:
        try:
            found = known[2](data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            pass  # looked at more closely below
        else:
            event = found.body
            check_names(event)
            return Envelope(
                event=event, event_id=found.id, source=found.source, seq=found.seq, time_ns=found.time_ns
            )
    try:
        wire = _wire_decoder.decode(data)
        cls = event_registry.get(wire.type)
        if cls is None or wire.schema > cls.schema or cls is UnknownEvent:
            body = msgspec.json.decode(wire.body, type=dict[str, Any])
            event = UnknownEvent(type=wire.type, body=body, version=wire.schema)
        else:
            event = _decode_body(cls, wire.body)
            check_names(event)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise EventError(f"malformed event: {error}") from None
    return Envelope(event=event, event_id=wire.id, source=wire.source, seq=wire.seq, time_ns=wire.time_ns)


def encode_action(action: Action) -> msgspec.Raw:
    """An action as tagged JSON, for `Decided` and for actuators elsewhere."""
    return msgspec.Raw(_encoder.encode({"type": type(action).__name__, "body": action}))


def decode_action(data: bytes | msgspec.Raw) -> Action:
    """The inverse of encode_action. Raises EventError."""
    try:
        wire = _wire_decoder.decode(data)
        cls = action_registry.get(wire.type)
        if cls is None:
            raise EventError(f"unknown action {wire.type!r}")
        action: Action = _decode_body(cls, wire.body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise EventError(f"malformed action: {error}") from None
    return action


def event_type(name: str) -> type[Event] | None:
    """The registered event type of that name, or None."""
    return event_registry.get(name)


def event_types() -> dict[str, type[Event]]:
    """Every registered event type by name."""
    return dict(event_registry)


def _reader(type_name: bytes) -> _Reader | None:
    """None where no event of that name is known."""
    name = type_name.decode("ascii", "replace")
    cls = event_registry.get(name)
    if cls is None or cls is UnknownEvent:
        return None
    known = _readers[type_name] = (name, cls, msgspec.json.Decoder(_whole(cls)).decode)
    return known


def _whole(cls: type[Event]) -> Any:
    """An envelope on the wire with an event of this type, of a schema that is known."""
    fields: list[Any] = [("type", Literal[cls.__name__]), ("body", cls)]
    fields += [("schema", Annotated[int, msgspec.Meta(le=cls.schema)], 1)]
    fields += [("id", str, ""), ("source", str, ""), ("seq", int, 0), ("time_ns", int, 0)]
    return msgspec.defstruct(f"_Whole{cls.__name__}", fields, frozen=True, kw_only=True, gc=False)


def _decode_body(cls: type, body: msgspec.Raw) -> Any:
    decoder = _body_decoders.get(cls)
    if decoder is None:
        decoder = _body_decoders[cls] = msgspec.json.Decoder(cls)
    return decoder.decode(body)
