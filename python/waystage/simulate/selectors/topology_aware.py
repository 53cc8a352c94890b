"""Hosts under as few edge switches as can be, and those near one another.

Arrives: how many ranks, the free hosts, the cluster.
Leaves: hosts of one edge switch where that is possible, else of the nearest ones.
Must not know: what the job sends.

What fits under one edge switch goes under the fullest one that has room, so that large gaps are kept. What
does not is given whole edge switches around a first one; each edge switch is tried as the first, and the choice
with the fewest switches, then the smallest sum of distances, then the fewest hosts left over, is taken. Slurm's
topology/tree plug-in has the same two steps.
"""

from __future__ import annotations

from collections.abc import Sequence

from waystage.simulate.cluster import Cluster

MOST_STARTS = 64
"""Edge switches tried as the first: enough to find a good corner, few enough for 10,000 hosts."""


class TopologyAware:
    """Best fit on the edge switches."""

    def select(self, ranks: int, free: Sequence[int], cluster: Cluster) -> Sequence[int] | None:
        under: dict[int, list[int]] = {}
        for host in sorted(free):
            under.setdefault(cluster.edge_of[host], []).append(host)
        room = {edge: sum(cluster.slots[h] for h in hosts) for edge, hosts in under.items()}
        if sum(room.values()) < ranks:
            return None
        one = [edge for edge in under if room[edge] >= ranks]
        if one:
            best = min(one, key=lambda edge: (room[edge], edge))
            return _take(under[best], ranks, cluster)
        starts = sorted(under, key=lambda edge: (-room[edge], edge))[:MOST_STARTS]
        return min(
            (_around(start, ranks, under, room, cluster) for start in starts), key=lambda found: found[0]
        )[1]


def _around(
    start: int, ranks: int, under: dict[int, list[int]], room: dict[int, int], cluster: Cluster
) -> tuple[tuple[int, int, int, int], list[int]]:
    """The cost of growing from `start`, and the hosts."""
    distances = cluster.switch_distances(start)
    order = sorted(under, key=lambda edge: (int(distances[edge]), -room[edge], edge))
    chosen: list[int] = []
    left, far, used = ranks, 0, 0
    for position, edge in enumerate(order):
        ring = [e for e in order[position:] if distances[e] == distances[edge]]
        # The last switch is the one of this distance that fits best.
        fits = [e for e in ring if room[e] >= left]
        last = min(fits, key=lambda e: (room[e], e)) if fits else None
        taken = _take(under[edge if last is None else last], left, cluster)
        chosen += taken
        left -= sum(cluster.slots[h] for h in taken)
        far += int(distances[edge]) * len(taken)
        used += 1
        if left <= 0:
            break
    return (used, far, -left, start), sorted(chosen)


def _take(hosts: Sequence[int], ranks: int, cluster: Cluster) -> list[int]:
    """As many of `hosts` as `ranks` need, or all."""
    taken: list[int] = []
    for host in hosts:
        if ranks <= 0:
            break
        taken.append(host)
        ranks -= cluster.slots[host]
    return taken
