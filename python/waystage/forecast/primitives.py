"""Names of MPI primitives, as packets' tags have them.

Arrives: the kinds of messages.
Leaves: their names.
Must not know: programs, paths.
"""

from __future__ import annotations

from waystage.interconnect.tags import PRIMITIVES

__all__ = ["PRIMITIVES"]
