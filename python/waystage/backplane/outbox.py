"""A publisher's cache of its control events, for replay.

Arrives: encoded events in order; acknowledgements.
Leaves: sequence numbers, and the events after a cursor.
Must not know: Zenoh, threads, clocks.

Each event carries the number of the previous event of its type, so that a subscriber to some types detects gaps without
receiving the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

import msgspec


class Held(NamedTuple):
    """One event as it was sent; `previous` is the number of the event of its type before it, 0 for none."""

    seq: int
    type: str
    previous: int
    time_ns: int
    data: bytes


class ReplayRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a subscriber has (`last`, by type); of types it has nothing of, it wants what is younger than `since_ns`."""

    last: dict[str, int] = {}
    since_ns: int = 0


class ReplayEnd(msgspec.Struct, frozen=True, kw_only=True):
    """Ends a replay: of these types, events up to these numbers were wanted and are kept no longer."""

    missed: dict[str, int] = {}


class Outbox:
    """Bounded by number and bytes; the oldest leave first. Not thread-safe: its owner holds a lock."""

    def __init__(self, max_events: int, max_bytes: int) -> None:
        self.max_events, self.max_bytes = max_events, max_bytes
        self.last_seq = 0
        self.acknowledged = 0
        self._held: deque[Held] = deque()
        self._bytes = 0
        self._last_of_type: dict[str, int] = {}
        self._evicted: dict[str, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def add(self, type_name: str, time_ns: int, data: bytes) -> Held:
        """Keep the event numbered `last_seq + 1`; evicts the oldest where a bound is passed."""
        self.last_seq += 1
        item = Held(self.last_seq, type_name, self._last_of_type.get(type_name, 0), time_ns, data)
        self._last_of_type[type_name] = item.seq
        self._held.append(item)
        self._bytes += len(data)
        while len(self._held) > self.max_events or (self._bytes > self.max_bytes and len(self._held) > 1):
            old = self._held.popleft()
            self._bytes -= len(old.data)
            self._evicted[old.type] = (old.seq, old.time_ns)
        return item

    def newest(self) -> Held | None:
        """The last event added."""
        return self._held[-1] if self._held else None

    def would_evict_unacknowledged(self, size: int) -> bool:
        """Whether another event of `size` bytes pushes out one that no controller has journalled."""
        if not self._held or self._held[0].seq <= self.acknowledged:
            return False
        return len(self._held) >= self.max_events or self._bytes + size > self.max_bytes

    def acknowledge(self, seq: int) -> None:
        """A controller has journalled everything up to `seq`."""
        self.acknowledged = max(self.acknowledged, min(seq, self.last_seq))

    def replay(self, request: ReplayRequest, type_name: str = "*") -> tuple[list[Held], ReplayEnd]:
        """The wanted events in order, and what is wanted but gone."""
        last, since = request.last, request.since_ns
        found = [
            item
            for item in self._held
            if type_name in ("*", item.type) and _wanted(last, since, item.type, item.seq, item.time_ns)
        ]
        missed = {
            name: seq
            for name, (seq, time_ns) in self._evicted.items()
            if type_name in ("*", name) and _wanted(last, since, name, seq, time_ns)
        }
        return found, ReplayEnd(missed=missed)


def _wanted(last: Mapping[str, int], since_ns: int, type_name: str, seq: int, time_ns: int) -> bool:
    known = last.get(type_name)
    return seq > known if known is not None else time_ns >= since_ns
