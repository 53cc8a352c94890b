"""The compiled module: engines of the data plane that Python only starts, stops and reads."""

from collections.abc import Sequence
from typing import final

__version__: str

class ProbeError(RuntimeError):
    """Probes that cannot be set up or run; the message names the namespace, stream or address."""

@final
class ProbeStream:
    """UDP packets from `source` to `target` at `rate_pps`, marked with `dscp`.

    A namespace is a name under /run/netns, or None for the caller's own. Raises ValueError on an address
    that is none.
    """

    def __new__(
        cls,
        *,
        source: str,
        target: str,
        port: int,
        rate_pps: int,
        dscp: int = 0,
        source_namespace: str | None = None,
        target_namespace: str | None = None,
    ) -> ProbeStream: ...

@final
class ProbeResult:
    """What became of one stream.

    `refused` and `skipped` packets never left the sender and are in no other count. `loss_runs`
    holds the first (sequence number, count) of packets lost one after the other.
    """

    @property
    def sent(self) -> int: ...
    @property
    def refused(self) -> int: ...
    @property
    def skipped(self) -> int: ...
    @property
    def received(self) -> int: ...
    @property
    def lost(self) -> int: ...
    @property
    def duplicated(self) -> int: ...
    @property
    def reordered(self) -> int: ...
    @property
    def loss_runs(self) -> list[tuple[int, int]]: ...
    @property
    def latency_p50_ns(self) -> int: ...
    @property
    def latency_p99_ns(self) -> int: ...
    @property
    def latency_max_ns(self) -> int: ...

@final
class ProbeReport:
    """What became of all streams, in the order given.

    `overflowed` packets were dropped by receive buffers of this machine, not by the network;
    `foreign` ones were no probe of this run.
    """

    @property
    def streams(self) -> list[ProbeResult]: ...
    @property
    def sending_s(self) -> float: ...
    @property
    def overflowed(self) -> int: ...
    @property
    def foreign(self) -> int: ...
    @property
    def latency_p50_ns(self) -> int: ...
    @property
    def latency_p99_ns(self) -> int: ...
    @property
    def latency_max_ns(self) -> int: ...

@final
class Prober:
    """A set of streams with open sockets, sent by one thread and received by another.

    Every method releases the GIL and raises ProbeError.
    """

    def __new__(cls, streams: Sequence[ProbeStream], payload_bytes: int = 64) -> Prober: ...
    def warm_up(self, timeout_s: float = 5.0) -> list[int]:
        """Send uncounted packets until each stream was received; the indexes of streams that were not."""

    def start(self) -> None:
        """Begin to send and count."""

    def totals(self) -> tuple[int, int]:
        """Packets sent and received since the start; (0, 0) when not running."""

    def stop(self, drain_s: float = 1.0) -> ProbeReport:
        """Stop sending, wait at most `drain_s` for what is under way, and report."""
