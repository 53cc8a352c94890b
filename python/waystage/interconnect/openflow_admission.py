"""Bounds on unidentified connections and on reports of refused ones.

Arrives: connections that come, are identified, or go; the time.
Leaves: which connection to evict; whether to report a refusal.
Must not know: os_ken, sockets. Callers of `Waiting` and `Told` hold a lock.

An attacker cannot lock out switches by opening connections: the oldest connection of the address with the most is
evicted, and a switch identifies itself within milliseconds.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

MAX_WAITING, MAX_WAITING_PER_ADDRESS = 512, 128
"""Limits of unidentified connections. All switches of a lab have one address."""

TELL_EVERY_S = 10.0
TOLD_KEPT = 1024
TOLD_AT_MOST = 100
"""Refusals reported in TELL_EVERY_S: an attacker with many addresses must not fill the log."""

MAX_HELD_BYTES = 128 << 20
"""What all switches together may say that they hold, as it came: a million rules. As values it takes about six
times that."""

T = TypeVar("T", bound=Hashable)


class Waiting(Generic[T]):
    """Connections not yet identified, in the order they came."""

    def __init__(self, total: int = MAX_WAITING, per_address: int = MAX_WAITING_PER_ADDRESS) -> None:
        self._total, self._per_address = total, per_address
        self._by_address: dict[str, OrderedDict[T, None]] = {}
        self._address: dict[T, str] = {}

    def __len__(self) -> int:
        return len(self._address)

    def enter(self, connection: T, address: str) -> T | None:
        """Count a new connection; gives the one that must be ended for it."""
        mine = self._by_address.setdefault(address, OrderedDict())
        mine[connection] = None
        self._address[connection] = address
        if len(mine) > self._per_address:
            crowd = mine
        elif len(self._address) > self._total:
            crowd = max(self._by_address.values(), key=len)
        else:
            return None
        oldest = next(iter(crowd))
        self.leave(oldest)
        return oldest

    def leave(self, connection: T) -> bool:
        """It said who it is, or ended. False where it was not waiting."""
        address = self._address.pop(connection, None)
        if address is None:
            return False
        mine = self._by_address[address]
        del mine[connection]
        if not mine:
            del self._by_address[address]
        return True


class Budget:
    """Bytes of answers that are held for all connections together. For any thread."""

    def __init__(self, total: int = MAX_HELD_BYTES) -> None:
        self._left = total
        self._lock = threading.Lock()

    def take(self, count: int) -> bool:
        """False where there is no room for these bytes; none are counted then."""
        with self._lock:
            if count > self._left:
                return False
            self._left -= count
            return True

    def give(self, count: int) -> None:
        with self._lock:
            self._left += count


class Told:
    """Says each refusal at once, and the same again at most every TELL_EVERY_S, with how often it came."""

    def __init__(self) -> None:
        self._last: OrderedDict[Hashable, tuple[float, int]] = OrderedDict()
        self._window_s, self._in_window = 0.0, 0

    def times(self, key: Hashable, now_s: float) -> int:
        """Occurrences since the last report, including this one; 0 if it is not to be reported now."""
        told_s, suppressed = self._last.get(key, (-TELL_EVERY_S, 0))
        if now_s - self._window_s >= TELL_EVERY_S:
            self._window_s, self._in_window = now_s, 0
        if now_s - told_s < TELL_EVERY_S or self._in_window >= TOLD_AT_MOST:
            if key in self._last:
                self._last[key] = (told_s, suppressed + 1)
            return 0
        self._in_window += 1
        self._last[key] = (now_s, 0)
        self._last.move_to_end(key)
        if len(self._last) > TOLD_KEPT:
            self._last.popitem(last=False)
        return suppressed + 1
