"""Options of the native module's proxies.

Arrives: values that a caller has checked.
Leaves: frozen option objects with defaults.
Must not know: how the data plane carries them out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ProxyOptions:
    """Options of `WanProxy`."""

    listeners: Sequence[tuple[str, str, str]] = ()
    """(`socks`, `forward`, `redirect` or `tproxy`, address and port to listen on, destination of `forward`)."""
    reverse: Sequence[tuple[str, str]] = ()
    """(Address and port that the server listens on, destination as this host reaches it)."""
    rules: Sequence[str] = ()
    """`allow`, `deny` or `direct` and HOSTS[:PORTS]; the first match decides."""
    wait_s: float = 30.0
    """How long new connections wait for the next session."""
