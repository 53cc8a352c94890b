"""The clock by which requests are tried again, kept and pruned: that of the machine.

Arrives: nothing. Leaves: the time since 1970, and how long to sleep until a time. Must not know: requests.

A test lets it run faster, so that an hour of attempts passes in seconds.
"""

from __future__ import annotations

import time

SPEED = 1.0
"""Seconds of this clock in one of the machine's."""

_BEGAN_NS = time.time_ns()


def now_ns() -> int:
    """The time, ns since 1970."""
    now = time.time_ns()
    return now if SPEED == 1.0 else _BEGAN_NS + int((now - _BEGAN_NS) * SPEED)


def seconds_until(then_ns: int) -> float:
    """How long to sleep until that time, in seconds of the machine; less than 0 where it has passed."""
    return (then_ns - now_ns()) / 1e9 / SPEED
