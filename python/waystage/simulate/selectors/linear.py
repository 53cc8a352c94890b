"""Hosts next to one another in the list of hosts.

Arrives: how many ranks, the free hosts, the cluster.
Leaves: the smallest gap that does, else the largest gaps together.
Must not know: the interconnect.

PFSim's `LinearHostSelector`, close to Slurm's default: it keeps fragmentation low.
"""

from __future__ import annotations

from collections.abc import Sequence

from waystage.simulate.cluster import Cluster


class Linear:
    """Best fit in one dimension."""

    def select(self, ranks: int, free: Sequence[int], cluster: Cluster) -> Sequence[int] | None:
        gaps = _gaps(free)
        large = [gap for gap in gaps if sum(map(cluster.slots.__getitem__, gap)) >= ranks]
        ordered = [min(large, key=len)] if large else sorted(gaps, key=len, reverse=True)
        chosen: list[int] = []
        left = ranks
        for host in (h for gap in ordered for h in gap):
            if left <= 0:
                break
            chosen.append(host)
            left -= cluster.slots[host]
        return chosen if left <= 0 else None


def _gaps(free: Sequence[int]) -> list[list[int]]:
    """Runs of consecutive hosts."""
    gaps: list[list[int]] = []
    for host in sorted(free):
        if gaps and gaps[-1][-1] == host - 1:
            gaps[-1].append(host)
        else:
            gaps.append([host])
    return gaps
