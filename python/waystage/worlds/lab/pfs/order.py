"""What the process of a mount is told.

Arrives: nothing.
Leaves: the order's type.
Must not know: who gives or takes it.
"""

from __future__ import annotations

import msgspec

from waystage.worlds.lab.pfs.shape import Shape


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What to serve where."""

    point: str
    shape: Shape
    folder: str | None = None
