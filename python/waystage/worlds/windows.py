"""Windows and storage requests of aggregators, as crates/aggregator divides an operation (decision 0063).

Arrives: bytes of an aggregator's part of an operation, the largest window.
Leaves: bytes of a window, requests in flight.
Must not know: targets, links, time.
"""

from __future__ import annotations

SMALL_WINDOW = 2 << 20
REQUEST = (256 << 10, 1 << 20)
IN_FLIGHT = 8


def window_bytes(part: int, buffer: int) -> int:
    """A quarter of the part, so that one window is filled while another is written; at least 2 MiB, at most `buffer`."""
    return max(1, min(buffer, max(part // 4, SMALL_WINDOW)))


def in_flight(part: int, buffer: int) -> int:
    """Requests of one aggregator that targets have at once: a quarter of a window each, within bounds, two windows."""
    window = window_bytes(part, buffer)
    request = min(max(window // 4, REQUEST[0]), REQUEST[1])
    return min(IN_FLIGHT, 2 * -(-window // request), max(1, part // request))
