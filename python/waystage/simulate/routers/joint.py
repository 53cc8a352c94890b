"""All pairs together, towards the least load of the busiest link.

Arrives: options.
Leaves: the kernel's name and options.
Must not know: hosts, links, loads: the kernel sees them.

Better than one pair after the other: what was placed first may move again.
"""

from __future__ import annotations

from typing import Any

from waystage.simulate.routers.options import effort as checked_effort
from waystage.simulate.routers.options import yes_or_no


class Joint:
    """`by_capacity`: loads are compared by what a link can carry, not by bytes as PFSim does. `effort`: how long it searches; 1 is its own measure."""

    kernel = "joint"
    sees_loads = True

    def __init__(self, effort: float = 1.0, by_capacity: bool = False) -> None:
        self.options: dict[str, Any] = {
            "effort": checked_effort(effort),
            "by_capacity": yes_or_no("by_capacity", by_capacity),
        }
