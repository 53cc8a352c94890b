"""The server that a task of the native module connects to.

Arrives: values that a caller has checked.
Leaves: a frozen object with defaults.
Must not know: how the data plane carries them out.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A server, and the identity that a session with it uses."""

    host: str
    port: int
    user: str
    """A user of the server; empty for the one that the key belongs to."""
    key: Path
    """The file with this host's private key."""
    trusted: str | None
    """The server's public key, as one line; None where it is not known."""
    mode: str = "fair"
    """Congestion control: `fair`, `fast-start`, `modest` or `aggressive`."""
    rate_bytes_per_s: int | None = None
    udp_wait_s: float | None = None
    """How long to wait for an answer over UDP before falling back to TCP; None for TCP alone."""
