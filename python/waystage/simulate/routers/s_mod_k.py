"""Source modulo K: a static spread by the number of the source host.

Arrives: options.
Leaves: the kernel's name and options.
Must not know: hosts, links, loads: the kernel sees them.

As D-mod-K, with the position of the source.
"""

from __future__ import annotations

from typing import Any


class SModK:
    """Pairs do not affect one another."""

    kernel = "s-mod-k"
    sees_loads = False

    def __init__(self) -> None:
        self.options: dict[str, Any] = {}
