"""A shortest path or Valiant's, whichever has less hops times load on its busiest link.

Arrives: options.
Leaves: the kernel's name and options.
Must not know: hosts, links, loads: the kernel sees them.

UGAL-G: Singh, "Load-balanced routing in interconnection networks", PhD thesis, Stanford 2005; Kim et al., ISCA 2008, for
dragonflies. It knows all loads: what UGAL-L could reach with perfect knowledge.
"""

from __future__ import annotations

from waystage.simulate.routers.options import compared_candidates


class UgalG:
    """`candidates`: how many shortest paths, and how many of Valiant's, are compared (two of each, as Cray Aries does).
    `by_capacity`: loads are compared by what a link can carry."""

    kernel = "ugal-g"
    sees_loads = True

    def __init__(self, candidates: int = 2, by_capacity: bool = False) -> None:
        self.options = compared_candidates(candidates, by_capacity)
