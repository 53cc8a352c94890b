"""Equal-cost multi-path: a hash of the pair chooses anew at each switch.

Arrives: options.
Leaves: the kernel's name and options.
Must not know: hosts, links, loads: the kernel sees them.

RFC 2991 and 2992: what switches do that know nothing of loads.
"""

from __future__ import annotations

from typing import Any


class Ecmp:
    """Pairs do not affect one another."""

    kernel = "ecmp-hash"
    sees_loads = False

    def __init__(self) -> None:
        self.options: dict[str, Any] = {}
