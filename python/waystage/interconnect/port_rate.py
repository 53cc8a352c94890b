"""A limit on what one switch port may make the controller do.

Arrives: the port a packet came in by, the time.
Leaves: whether to look at it.
Must not know: what the packet is.
"""

from __future__ import annotations

PORTS_KEPT = 16384
"""Ports counted at a time; those of a switch that only pretended to be one are forgotten with the rest."""


class PortRate:
    """At most `per_s` in each second of the clock, port by port: one host cannot use up another's share."""

    def __init__(self, per_s: int) -> None:
        self._per_s = per_s
        self._windows: dict[tuple[int, int], tuple[int, int]] = {}

    def allows(self, dpid: int, port: int, now_s: float) -> bool:
        second = int(now_s)
        if len(self._windows) >= PORTS_KEPT and (dpid, port) not in self._windows:
            self._windows = {key: window for key, window in self._windows.items() if window[0] == second}
            if len(self._windows) >= PORTS_KEPT:
                return False
        started, used = self._windows.get((dpid, port), (second, 0))
        used = used + 1 if started == second else 1
        self._windows[dpid, port] = (second, used)
        return used <= self._per_s
