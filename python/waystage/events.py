"""Every event and every action, declared once.

Arrives: nothing; this module is the vocabulary of the control plane.
Leaves: typed structs, their registry, and the envelope that encodes them.
Must not know: Zenoh, OpenFlow, files, clocks.

An **event** is a fact: it is folded into the state and shown to policies. An **action** is a
policy's answer: data that an actuator carries out. Both travel in an `Envelope`. A new event type is
declared by subclassing `Event`, here or in user code; it is registered by its class name.

Compatibility: unknown fields are ignored, absent fields take their defaults, an unknown type is
kept as `UnknownEvent`. A newer sender therefore never breaks an older receiver. A change that an
older receiver would misread raises the class's `schema` number; a body of a newer schema than the
receiver knows is also kept as `UnknownEvent`.
"""

from __future__ import annotations

import os
import time
from typing import Any, ClassVar, Literal

import msgspec

from waystage.topology import Topology

TrafficClass = Literal["mpi", "staging", "io", "wan"]
CLASSES: tuple[TrafficClass, ...] = ("mpi", "staging", "io", "wan")
"""In the order of their code points, the VLAN priority (PCP) of a labelled packet."""

Direction = Literal["in", "out"]
RuleStyle = Literal["labelled", "per-pair"]
Spread = Literal["pair", "destination"]

MAX_NAME_BYTES = 256
"""Longest job id, host or program name accepted from outside; Slurm's own job ids and names are far shorter."""

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
"""Longest encoded envelope accepted; a topology of 10,000 hosts is about 2 MB."""

_event_types: dict[str, type[Event]] = {}
_action_types: dict[str, type[Action]] = {}


class EventError(ValueError):
    """Invalid bytes or fields of an event; the message names the field."""


class _Body(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    schema: ClassVar[int] = 1


class Event(_Body, frozen=True, kw_only=True):
    """A typed fact on the backplane. Subclass to define one.

    `telemetry = True` marks a type of which only the newest value matters: a slow receiver may drop older ones,
    and counts them. Every other type is a control event and is never lost.
    """

    telemetry: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _register(_event_types, cls)


class Action(_Body, frozen=True, kw_only=True):
    """A policy's answer to an event. Subclass to define one; an actuator must accept it."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _register(_action_types, cls)


def _register(types: dict[str, Any], cls: type) -> None:
    known = types.get(cls.__name__)
    if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
        raise EventError(
            f"{cls.__module__} declares {cls.__name__}, which {known.__module__} declares already: choose another name"
        )
    types[cls.__name__] = cls


# -- jobs and staging (Endo et al. 2020 section IV.C.1: the notificator's four messages) -----------------


class JobStarted(Event, frozen=True, kw_only=True):
    job_id: str
    nodes: tuple[str, ...]


class JobFinished(Event, frozen=True, kw_only=True):
    job_id: str


class StagingStarted(Event, frozen=True, kw_only=True):
    """`nodes` is given if staging begins before the job; `bytes` is the declared amount, 0 if unknown."""

    job_id: str
    direction: Direction = "in"
    nodes: tuple[str, ...] = ()
    bytes: int = 0


class StagingFinished(Event, frozen=True, kw_only=True):
    job_id: str
    direction: Direction = "in"


class IoStarted(Event, frozen=True, kw_only=True):
    """A running job begins to use the global file system (open issue 3 of Endo et al. 2020)."""

    job_id: str
    bytes: int = 0


class IoFinished(Event, frozen=True, kw_only=True):
    job_id: str


class DemandDeclared(Event, frozen=True, kw_only=True):
    """The load that a job expects to offer to the core in one class; 0 withdraws it."""

    job_id: str
    traffic: TrafficClass
    rate_bps: int


# -- the interconnect -----------------------------------------------------------------------------


class TopologyChanged(Event, frozen=True, kw_only=True):
    """The topology in force, as given by the operator or as discovered."""

    topology: Topology


class HostSeen(Event, frozen=True, kw_only=True):
    """A host announced itself by LLDP on a switch port."""

    host: str
    switch: str
    port: int
    mac: str
    ip: str | None = None


class LinkUp(Event, frozen=True, kw_only=True):
    link: str


class LinkDown(Event, frozen=True, kw_only=True):
    link: str


class SwitchUp(Event, frozen=True, kw_only=True):
    switch: str


class SwitchDown(Event, frozen=True, kw_only=True):
    switch: str


class SwitchRefused(Event, frozen=True, kw_only=True):
    """A connection claimed to be `switch` and was rejected, `times` times since the last such event.

    `certificate` holds the names in its certificate, if switches use TLS.
    """

    switch: str
    address: str
    certificate: str = ""
    reason: str
    times: int = 1


class CablingError(Event, frozen=True, kw_only=True):
    """LLDP contradicts the topology on a port; `found` is empty if no neighbour announced itself."""

    switch: str
    port: int
    expected: str
    found: str


class PortUse(msgspec.Struct, frozen=True, kw_only=True):
    """Traffic out of `port` of `node` in the interval: totals, and by class where counted."""

    node: str
    port: int
    bytes: int
    packets: int = 0
    drops: int = 0
    by_class: dict[TrafficClass, int] = {}


class LinkUse(Event, frozen=True, kw_only=True):
    """Utilization of every port over `interval_ns`, up to the time of the envelope."""

    telemetry: ClassVar[bool] = True

    interval_ns: int
    ports: tuple[PortUse, ...]


class PathsChanged(Event, frozen=True, kw_only=True):
    """A path plan is in force on every switch: the last barrier was answered.

    Times in ns: `processor_ns` from receipt to decision, `planner_ns` for rules and difference,
    `install_ns` from first message to last barrier (the parts of Endo et al. 2020 Fig. 14).
    """

    plan: PathPlan
    cause_id: str
    processor_ns: int = 0
    planner_ns: int = 0
    install_ns: int = 0
    messages: int = 0
    switches: int = 0


class PathsRefused(Event, frozen=True, kw_only=True):
    """A switch refused a rule or is disconnected; its previous rules stay in force."""

    cause_id: str
    switch: str
    reason: str


class Decided(Event, frozen=True, kw_only=True):
    """A policy answered `cause_id` with these actions: the record that makes decisions part of the state."""

    policy: str
    cause_id: str
    actions: tuple[msgspec.Raw, ...]


class PolicyFailed(Event, frozen=True, kw_only=True):
    """A policy raised an exception on an event of type `event`. Reported once for each type and error."""

    policy: str
    cause_id: str
    event: str
    error: str


class UnknownEvent(Event, frozen=True, kw_only=True):
    """An event of an unknown type or newer schema, kept unparsed."""

    type: str
    body: dict[str, Any]


# -- actions --------------------------------------------------------------------------------------


class PairPath(msgspec.Struct, frozen=True, kw_only=True):
    """One directed path, source host first, destination host last; `traffic` None for every class."""

    path: tuple[str, ...]
    traffic: TrafficClass | None = None


Placement = dict[TrafficClass, dict[str, tuple[str, ...]]]
"""class -> edge switch -> core switch of each path index."""


class PathPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How traffic crosses the interconnect: the complete plan, not a change, so that applying it is idempotent.

    `labelled`: every class may use the core switches in `cores[class]` (all, where absent); a
    host pair is spread over them by `spread` (`pair`: a seeded hash of source and destination;
    `destination`: the destination's index, D-mod-K). `placed` overrides the core switch of each path index, by class
    and ingress edge switch; a core switch that the class may not use, or that is down, is ignored.
    `per-pair`: the paths are listed: `base_pairs` are permanent, `pairs` override them by priority.
    """

    style: RuleStyle = "labelled"
    spread: Spread = "pair"
    seed: int = 0
    separated: bool = False
    cores: dict[TrafficClass, tuple[str, ...]] = {}
    placed: Placement = {}
    base_pairs: tuple[PairPath, ...] = ()
    pairs: tuple[PairPath, ...] = ()


class AssignPaths(Action, frozen=True, kw_only=True):
    plan: PathPlan


# -- the envelope ---------------------------------------------------------------------------------


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
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


_wire_decoder = msgspec.json.Decoder(_Wire)
_encoder = msgspec.json.Encoder()
_body_decoders: dict[type, msgspec.json.Decoder[Any]] = {}


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
        type_name, body = event.type, _encoder.encode(event.body)
    else:
        type_name, body = type(event).__name__, _encoder.encode(event)
    wire = _Wire(
        type=type_name,
        schema=type(event).schema,
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
    if len(data) > MAX_MESSAGE_BYTES:
        raise EventError(f"message of {len(data)} bytes; at most {MAX_MESSAGE_BYTES} are read")
    try:
        wire = _wire_decoder.decode(data)
        cls = _event_types.get(wire.type)
        event: Event
        if cls is None or wire.schema > cls.schema or cls is UnknownEvent:
            event = UnknownEvent(type=wire.type, body=msgspec.json.decode(wire.body, type=dict[str, Any]))
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
        cls = _action_types.get(wire.type)
        if cls is None:
            raise EventError(f"unknown action {wire.type!r}")
        action: Action = _decode_body(cls, wire.body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise EventError(f"malformed action: {error}") from None
    return action


def event_type(name: str) -> type[Event] | None:
    """The registered event type of that name, or None."""
    return _event_types.get(name)


def event_types() -> dict[str, type[Event]]:
    """Every registered event type by name."""
    return dict(_event_types)


def check_names(event: Event) -> None:
    """Reject ids that are empty, too long, or carry control characters. Raises EventError."""
    job_id = getattr(event, "job_id", None)
    if isinstance(job_id, str):
        check_name("job id", job_id)
    for node in getattr(event, "nodes", ()) or ():
        if isinstance(node, str):
            check_name("node name", node)


def check_name(what: str, value: str) -> None:
    """Raise EventError, quoting at most 40 characters, if `value` is not a usable name."""
    size = len(value.encode("utf-8", "surrogatepass"))
    if not value:
        raise EventError(f"the {what} is empty: give one")
    if size > MAX_NAME_BYTES:
        raise EventError(f"the {what} is {size} bytes long; at most {MAX_NAME_BYTES} are accepted")
    if not value.isprintable():
        raise EventError(f"the {what} {ascii(value)[:40]} holds control characters: remove them")


def _decode_body(cls: type, body: msgspec.Raw) -> Any:
    decoder = _body_decoders.get(cls)
    if decoder is None:
        decoder = _body_decoders[cls] = msgspec.json.Decoder(cls)
    return decoder.decode(body)
