"""At each switch the least loaded of the links that lead nearer.

Arrives: options.
Leaves: the kernel's name and options.
Must not know: hosts, links, loads: the kernel sees them.

Minimal adaptive routing (Duato 1993; Dally and Towles 2004, section 10.2): each switch looks at its own links only.
"""

from __future__ import annotations

from typing import Any

from waystage.simulate.routers.options import yes_or_no


class AdaptiveMinimal:
    """`by_capacity`: loads are compared by what a link can carry, not by bytes."""

    kernel = "adaptive-minimal"
    sees_loads = True

    def __init__(self, by_capacity: bool = False) -> None:
        self.options: dict[str, Any] = {"by_capacity": yes_or_no("by_capacity", by_capacity)}
