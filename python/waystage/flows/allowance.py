"""Token buckets: how often a client may do something.

Arrives: times, s.
Leaves: yes or no.
Must not know: clocks, what is allowed.
"""

from __future__ import annotations


class Allowance:
    """`burst` at once, and `per_s` each second after that."""

    __slots__ = ("_at", "_burst", "_left", "_per_s")

    def __init__(self, per_s: float, burst: float) -> None:
        self._per_s = per_s
        self._burst = self._left = burst
        self._at: float | None = None

    def take(self, now_s: float) -> bool:
        """Whether one more is allowed; it is then counted."""
        if self._at is not None:
            self._left = min(self._burst, self._left + (now_s - self._at) * self._per_s)
        self._at = now_s
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True

    @property
    def full_after_s(self) -> float:
        """How long after the last `take` nothing of it is remembered."""
        return (self._burst - self._left) / self._per_s


class AllowanceOfUsers:
    """An allowance for each user; those that are full again are forgotten."""

    def __init__(self, per_s: float, burst: float, kept: int = 1024) -> None:
        self._per_s, self._burst, self._kept = per_s, burst, kept
        self._of: dict[int, tuple[Allowance, float]] = {}

    def take(self, uid: int, now_s: float) -> bool:
        if len(self._of) > self._kept:
            self._of = {u: (a, t) for u, (a, t) in self._of.items() if now_s - t < a.full_after_s}
        allowance = self._of.get(uid, (Allowance(self._per_s, self._burst), 0.0))[0]
        self._of[uid] = (allowance, now_s)
        return allowance.take(now_s)
