"""A shortest path or Valiant's, whichever has less hops times load, as the sender's switch sees it.

Arrives: options.
Leaves: the kernel's name and options.
Must not know: hosts, links, loads: the kernel sees them.

UGAL-L: Singh, "Load-balanced routing in interconnection networks", PhD thesis, Stanford 2005; Kim et al., ISCA 2008, for
dragonflies. It knows the load of the first link only.
"""

from __future__ import annotations

from waystage.simulate.routers.options import compared_candidates


class UgalL:
    """`candidates`: how many shortest paths, and how many of Valiant's, are compared (two of each, as Cray Aries does).
    `by_capacity`: loads are compared by what a link can carry."""

    kernel = "ugal-l"
    sees_loads = True

    def __init__(self, candidates: int = 2, by_capacity: bool = False) -> None:
        self.options = compared_candidates(candidates, by_capacity)
