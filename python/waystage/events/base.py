"""The base classes of events and actions, their registry, and the rules for names.

Arrives: subclasses, at their declaration.
Leaves: types by name.
Must not know: any one event.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import msgspec

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

event_registry: dict[str, type[Event]] = {}
action_registry: dict[str, type[Action]] = {}


class EventError(ValueError):
    """Invalid bytes or fields of an event; the message names the field."""


class _Body(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """Outside the cyclic garbage collector, like all that events hold: none of it refers to what holds it."""

    schema: ClassVar[int] = 1


class Event(_Body, frozen=True, kw_only=True):
    """A typed fact on the backplane. Subclass to define one.

    `telemetry = True` marks a type of which only the newest value matters: a slow receiver may drop older ones,
    and counts them. Every other type is a control event and is never lost. `journalled = False` marks telemetry that
    soon comes again: a journal of it would only grow.
    """

    telemetry: ClassVar[bool] = False
    journalled: ClassVar[bool] = True

    def belongs_to(self) -> str | None:
        """The scope that this event must travel under, where it belongs to one; None: any. Raises EventError for
        an event that claims several."""
        return None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _register(event_registry, cls)


class OfAgent:
    """Of events with a field `agent`: they belong to that agent. A mixin, since a subclass of `Event` is an event type."""

    __slots__ = ()
    agent: str

    def belongs_to(self) -> str | None:
        return self.agent


class Action(_Body, frozen=True, kw_only=True):
    """A policy's answer to an event. Subclass to define one; an actuator must accept it."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _register(action_registry, cls)


def _register(types: dict[str, Any], cls: type) -> None:
    known = types.get(cls.__name__)
    if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
        raise EventError(
            f"{cls.__module__} declares {cls.__name__}, which {known.__module__} declares already: choose another name"
        )
    types[cls.__name__] = cls


_NAMES = (
    ("job id", "job_id"),
    ("flow id", "flow_id"),
    ("application id", "app"),
    ("aggregator", "aggregator"),
    ("user name", "user"),
    ("node name", "nodes"),
)
_names_of: dict[type, tuple[tuple[str, str], ...]] = {}


def check_names(event: Event) -> None:
    """Reject ids that are empty, too long, or carry control characters. Raises EventError."""
    kind = type(event)
    names = _names_of.get(kind)
    if names is None:
        names = _names_of[kind] = tuple((what, field) for what, field in _NAMES if hasattr(kind, field))
    for what, field in names:
        value = getattr(event, field)
        if field == "nodes":
            for node in value or ():
                if isinstance(node, str):
                    check_name(what, node)
        elif isinstance(value, str) and (value or field != "user"):
            if value.isascii() and 0 < len(value) <= MAX_NAME_BYTES and value.isprintable():
                continue  # as `check_name`, of almost every name
            check_name(what, value)


def check_name(what: str, value: str) -> None:
    """Raise EventError, quoting at most 40 characters, if `value` is not a usable name."""
    if value.isascii() and 0 < len(value) <= MAX_NAME_BYTES and value.isprintable():
        return
    size = len(value.encode("utf-8", "surrogatepass"))
    if not value:
        raise EventError(f"the {what} is empty: give one")
    if size > MAX_NAME_BYTES:
        raise EventError(f"the {what} is {size} bytes long; at most {MAX_NAME_BYTES} are accepted")
    if not value.isprintable():
        raise EventError(f"the {what} {ascii(value)[:40]} holds control characters: remove them")
