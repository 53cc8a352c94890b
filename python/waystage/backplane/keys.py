"""Key expressions of the backplane.

Arrives: event types, scopes, source names.
Leaves: Zenoh key expressions.
Must not know: sessions, sockets, the contents of events.

    waystage/v1/control/<Type>/<scope>/<source>   control events: never lost
    waystage/v1/event/<Type>/<scope>/<source>     telemetry: may be dropped, counted
    waystage/v1/alive/<source>                    liveliness of a publisher with a cache
    waystage/v1/replay/<source>/<Type>            query: cached events of a type
    waystage/v1/ack/<source>                      the tier above has journalled events up to this number
    waystage/v1/confirm/<source>/<Type>           query: journal this event, then reply
    waystage/v1/journal/<source>/<Type>           query: journalled events of that source
    waystage/v1/snapshot                          query: the state of the global controller

Access rights refer to these keys (see `access.py`); therefore the type precedes the scope and the scope the source.
"""

from __future__ import annotations

import functools
import re

from waystage.events import Event, EventError, UnknownEvent

ROOT = "waystage/v1"
ALIVE = f"{ROOT}/alive"
REPLAY = f"{ROOT}/replay"
ACK = f"{ROOT}/ack"
CONFIRM = f"{ROOT}/confirm"
JOURNAL = f"{ROOT}/journal"
SNAPSHOT = f"{ROOT}/snapshot"

END = "-"
"""Stands for the type in the last answer to a replay of every type."""

_PART = re.compile(r"^[A-Za-z0-9_.=-]{1,128}$")
"""One chunk of a key: no '/', and none of Zenoh's own '*', '$', '?', '#'."""


def check_part(what: str, value: str) -> str:
    """`value`, which may stand in a key. Raises EventError."""
    if not _PART.match(value):
        raise EventError(f"the {what} {ascii(value)[:60]} must be 1 to 128 of A-Z a-z 0-9 _ . = -")
    return value


@functools.lru_cache(maxsize=4096)
def check_origin(type_name: str, source: str) -> None:
    """Both may stand in a key. Raises EventError."""
    check_part("event type", type_name)
    check_part("source", source)


def type_name(event: Event) -> str:
    """The name an event travels under."""
    return event.type if isinstance(event, UnknownEvent) else type(event).__name__


def event_key(event: Event, scope: str, source: str) -> str:
    """Where `event` is published."""
    kind = "event" if event.telemetry else "control"
    return f"{ROOT}/{kind}/{check_part('event type', type_name(event))}/{scope}/{source}"


def type_key(name: str, scope: str = "*") -> str:
    """What a subscriber to one type, or to all (`*`), listens to: control events and telemetry."""
    return f"{ROOT}/*/{name}/{scope}/*"


def check_scope(event: Event, scope: str | None) -> None:
    """Refuse an event that belongs to another scope than the one it came under, if that is known. Raises EventError."""
    owner = event.belongs_to()
    if owner is not None and scope is not None and owner != scope:
        raise EventError(
            f"{type_name(event)} belongs to {ascii(owner)[:60]}, and came under {ascii(scope)[:60]}"
        )


@functools.lru_cache(maxsize=4096)
def event_key_parts(key: str) -> tuple[str, str, str]:
    """The source, type and scope of a key that `event_key` gave."""
    *_, name, scope, source = key.split("/")
    return source, name, scope


def last_part(key: str) -> str:
    """The source at the end of a key."""
    return key.rpartition("/")[2]
