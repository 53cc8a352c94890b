"""A random one of the shortest paths of each pair.

Arrives: options.
Leaves: the kernel's name and options.
Must not know: hosts, links, loads: the kernel sees them.

Drawn once for a pair in a run, each path as likely as any other.
"""

from __future__ import annotations

from typing import Any


class RandomPath:
    """Pairs do not affect one another."""

    kernel = "random"
    sees_loads = False

    def __init__(self) -> None:
        self.options: dict[str, Any] = {}
