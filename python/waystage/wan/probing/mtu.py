"""Which packets are too large for the path: the search of RFC 8899, section 5.3.

Arrives: whether packets of a size get through.
Leaves: the largest size that does.
Must not know: how they are sent. They may not be cut into fragments on the way.
"""

from __future__ import annotations

from collections.abc import Callable

PLATEAUS = (1500, 1501, 9000)
"""Tried first: Ethernet, whether it is a little more, jumbo frames. Most paths are known after three."""

BASE = 1280
"""What IPv6 promises, and nearly every path carries."""

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
