"""The path MTU: the search of RFC 8899, section 5.3.

Arrives: whether packets of a size pass.
Leaves: the largest size that passes.
Must not know: how they are sent. They must not be fragmented.
"""

from __future__ import annotations

from collections.abc import Callable

PLATEAUS = (1500, 1501, 9000)
"""Tried first: Ethernet, slightly more, jumbo frames. Three probes suffice for most paths."""

BASE = 1280
"""The minimum of IPv6, which nearly every path carries."""

LEAST, MOST = 256, 9000


def path_mtu(passes: Callable[[int], bool]) -> int | None:
    """The largest IP packet that passes, in bytes; None where not even the smallest tried does. Asks some three to
    sixteen times."""
    low, high = None, MOST + 1
    for size in PLATEAUS:
        if passes(size):
            low = size
        else:
            high = size
            break
    if low == MOST:
        return low
    if low is None:
        low = next((size for size in (BASE, LEAST) if passes(size)), None)
        if low is None:
            return None
        if low == LEAST:
            high = BASE
    while high - low > 1:
        middle = (low + high) // 2
        if passes(middle):
            low = middle
        else:
            high = middle
    return low
