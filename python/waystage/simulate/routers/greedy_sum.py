"""The heaviest pair first, each on the path whose links carry least together.

Arrives: options.
Leaves: the kernel's name and options.
Must not know: hosts, links, loads: the kernel sees them.

PFSim's `GreedyRouter`.
"""

from __future__ import annotations

from typing import Any

from waystage.simulate.routers.options import yes_or_no


class GreedySum:
    """`by_capacity`: loads are compared by what a link can carry, not by bytes as PFSim does."""

    kernel = "greedy-sum"
    sees_loads = True

    def __init__(self, by_capacity: bool = False) -> None:
        self.options: dict[str, Any] = {"by_capacity": yes_or_no("by_capacity", by_capacity)}
