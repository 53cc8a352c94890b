"""Every pair by way of a random intermediate switch.

Arrives: options.
Leaves: the kernel's name and options.
Must not know: hosts, links, loads: the kernel sees them.

Valiant and Brebner, "Universal schemes for parallel communication", STOC 1981: any traffic becomes random, for twice the load.
"""

from __future__ import annotations

from typing import Any


class Valiant:
    """Pairs do not affect one another."""

    kernel = "valiant"
    sees_loads = False

    def __init__(self) -> None:
        self.options: dict[str, Any] = {}
