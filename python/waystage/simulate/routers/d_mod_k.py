"""Destination modulo K: a static spread by the number of the destination host.

Arrives: options.
Leaves: the kernel's name and options.
Must not know: hosts, links, loads: the kernel sees them.

Zahavi et al. (IBM Research / Mellanox, 2010) for fat trees; as PFSim has it: at each hop the candidate switches are sorted by
name, and the position of the destination in the list of hosts chooses among them.
"""

from __future__ import annotations

from typing import Any


class DModK:
    """Pairs do not affect one another."""

    kernel = "d-mod-k"
    sees_loads = False

    def __init__(self) -> None:
        self.options: dict[str, Any] = {}
