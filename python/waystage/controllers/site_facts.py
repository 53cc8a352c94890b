"""A site's file systems and wide-area paths, which no protocol announces: from its configuration to events.

Arrives: the configuration's entries, with the keys of an experiment's `file_systems` and `wide_paths`.
Leaves: FileSystemDeclared and WidePathDeclared; withdrawals of what the configuration no longer has.
Must not know: policies, the backplane.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import msgspec

from waystage.events import Event, EventError, FileSystemDeclared, WidePathDeclared
from waystage.events.base import check_name
from waystage.state import State
from waystage.units import UnitError, parse_size

MOST_TARGETS = 4096


class FactError(ValueError):
    """An entry that cannot be; the message names the key and the fix."""


class FileSystemConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One loader alone gets `bytes_per_s` from a target; x loaders get a g(x)-th of it each, by the points `slowdown`."""

    name: str
    targets: int
    bytes_per_s: int | str = 0
    slowdown: tuple[tuple[float, float], ...] = ()
    hosts: tuple[str, ...] = ()


class WidePathConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A wide-area path to the peer `name`: `bytes_per_s` in each direction; `host` is its near end."""

    name: str
    bytes_per_s: int | str
    rtt_s: float = 0.0
    host: str = ""


def declared(
    file_systems: tuple[FileSystemConfig, ...], wide_paths: tuple[WidePathConfig, ...]
) -> tuple[Event, ...]:
    """The events that declare them. Raises FactError."""
    for key, names in (
        ("file_systems", [system.name for system in file_systems]),
        ("wide_paths", [path.name for path in wide_paths]),
    ):
        for i, name in enumerate(names):
            if name in names[:i]:
                raise FactError(f"{key}[{i}].name: {name} is there twice: give each its own name")
    return (
        *(_file_system(f"file_systems[{i}]", system) for i, system in enumerate(file_systems)),
        *(_wide_path(f"wide_paths[{i}]", path) for i, path in enumerate(wide_paths)),
    )


def withdrawn(events: tuple[Event, ...], state: State) -> Iterator[Event]:
    """What the state knows from an earlier configuration, and `events` do not declare."""
    systems = {event.file_system for event in events if isinstance(event, FileSystemDeclared)}
    peers = {event.peer for event in events if isinstance(event, WidePathDeclared)}
    for name in state.file_systems.keys() - systems:
        yield FileSystemDeclared(file_system=name, targets=0)
    for peer in state.wide_paths.keys() - peers:
        yield WidePathDeclared(peer=peer, rate_bps=0)


def _file_system(key: str, system: FileSystemConfig) -> Event:
    _name(key, system.name)
    if not 1 <= system.targets <= MOST_TARGETS:
        raise FactError(f"{key}.targets: {system.targets}: give 1 to {MOST_TARGETS}")
    points = system.slowdown
    if any(not 1 <= x <= 1e6 or not 1 <= g <= 1e6 for x, g in points):
        raise FactError(f"{key}.slowdown: give points of loaders and slowdowns, both 1 or more")
    if any(a[0] >= b[0] for a, b in itertools.pairwise(points)):
        raise FactError(f"{key}.slowdown: loaders must rise from point to point")
    return FileSystemDeclared(
        file_system=system.name,
        targets=system.targets,
        target_bps=8 * _bytes(key, system.bytes_per_s),
        slowdown=points,
        hosts=system.hosts,
    )


def _wide_path(key: str, path: WidePathConfig) -> Event:
    _name(key, path.name)
    rate_bps = 8 * _bytes(key, path.bytes_per_s)
    if not rate_bps:
        raise FactError(f"{key}.bytes_per_s: a path without a rate is none: give more than 0")
    if not 0 <= path.rtt_s <= 60:
        raise FactError(f"{key}.rtt_s: {path.rtt_s:g} s: give 0 to 60 seconds")
    return WidePathDeclared(peer=path.name, host=path.host, rate_bps=rate_bps, rtt_s=path.rtt_s)


def _name(key: str, name: str) -> None:
    try:
        check_name("name", name)
    except EventError as error:
        raise FactError(f"{key}.name: {error}") from None


def _bytes(key: str, value: int | str) -> int:
    try:
        return parse_size(value)
    except UnitError as error:
        raise FactError(f"{key}.bytes_per_s: {error}") from None
