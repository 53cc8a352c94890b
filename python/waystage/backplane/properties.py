"""Filters of a subscription: types, and equality on fields.

Arrives: the caller's properties.
Leaves: the types to subscribe to, and whether an event matches.
Must not know: Zenoh, queues.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from waystage.backplane import keys
from waystage.events import Event, UnknownEvent

Properties = str | type[Event] | Sequence[str | type[Event]] | Mapping[str, Any] | None
"""A type, several, or `{"type": ..., field: value, ...}`, all of which must hold; None for every event."""


class Wanted:
    """Properties in usable form. Raises EventError for a type name that cannot be one."""

    def __init__(self, properties: Properties) -> None:
        types: Any = properties
        self.fields: dict[str, Any] = {}
        if isinstance(properties, Mapping):
            self.fields = dict(properties)
            types = self.fields.pop("type", None)
        if types is None:
            self.types: tuple[str, ...] = ("*",)
        elif isinstance(types, str | type):
            self.types = (_name(types),)
        else:
            self.types = tuple(dict.fromkeys(_name(t) for t in types)) or ("*",)

    def matches(self, event: Event) -> bool:
        """Whether every field has its value; an event without the field does not match."""
        if self.types != ("*",) and keys.type_name(event) not in self.types:
            return False
        return not self.fields or all(_field(event, name) == value for name, value in self.fields.items())


_ABSENT = object()


def _field(event: Event, name: str) -> Any:
    if isinstance(event, UnknownEvent):
        return event.body.get(name, _ABSENT)
    return getattr(event, name, _ABSENT)


def _name(value: Any) -> str:
    name = value if isinstance(value, str) else value.__name__
    return name if name == "*" else keys.check_part("event type", name)
