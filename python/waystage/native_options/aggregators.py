"""Options of the native module's aggregator process.

Arrives: values that a caller has checked.
Leaves: frozen option objects with defaults.
Must not know: how the data plane carries them out.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class AggregatorOptions:
    """Options of `Aggregator`."""

    socket: str
    """The unix socket for ranks, in a directory of mode 0700."""
    listen: str
    """Address and port for other nodes' aggregators; port 0: any."""
    name: str
    """The name of the aggregator: HOST or HOST/n."""
    token: str
    """The token of the launch."""
    app: str
    """The application of ranks that do not say theirs."""
    memory: int = 256 << 20
    """Bytes of the memory that it shares with its ranks: all images and staging memory."""
    lease_s: float = 10.0
    """A process of another node of which nothing is heard for this long is lost."""
    storage_timeout_s: float = 600.0
    """A request that the storage has not ended after this long is an error of its operation."""
    linger_s: float | None = None
    """End once the last rank has been gone for this long; None: never."""
    parent: int | None = None
    """End when this process has ended."""
    delay_us: int = 0
    """Microseconds to sleep before each window; for tests and benchmarks."""
    delay_file: str | None = None
    """A file with such a number, which is read again and again."""
