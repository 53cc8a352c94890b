"""Options of the native module's servers.

Arrives: values that a caller has checked.
Leaves: frozen option objects with defaults.
Must not know: how the data plane carries them out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class ServerUser:
    """A user of a `WanServer`."""

    name: str
    keys: Sequence[str]
    """Public keys, one line each."""
    modes: Sequence[str] = ()
    """Modes of congestion control beyond `fair` and `modest`."""
    networks: Sequence[tuple[str, int]] = ()
    """Source networks, (address, prefix length); empty for any."""
    rate_bytes_per_s: int | None = None
    connections: int | None = None
    account: tuple[int, int, Sequence[int]] | None = None
    """(User id, group id, supplementary groups) that the server acts as."""
    reach: Sequence[str] = ()
    """Rules for destinations of proxied connections."""
    listen: Sequence[str] = ()
    """Rules for addresses that the server listens on for this user."""
    probe: bool = False


@dataclass(frozen=True, kw_only=True)
class ServerRoot:
    """A directory that a `WanServer` shares."""

    path: Path
    write: bool = False
    users: Sequence[str] = ()
    """Empty for all users."""
    privileged: bool = False
    """Accept owners, set-user-id bits, devices and system attributes."""


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Options of `WanServer`."""

    listen: str
    """Address and port, such as `[::]:7900`; port 0 takes any free one."""
    key: Path
    users: Sequence[ServerUser]
    roots: Sequence[ServerRoot]
    rate_bytes_per_s: int | None = None
    connections: int
    copy_connections: int = 1
    """Connections of one copy."""
    sockets: int = 1
    """UDP sockets."""
    memory_bytes: int
    """For data in flight, of each session."""
    udp: bool = True
    workers: int
    probe_rate_bytes_per_s: int | None = None
    probe_s: float = 0.0
    """The longest a probe may last."""
