"""Hosts by chance: the most fragmented allocation.

Arrives: how many ranks, the free hosts, the cluster, a seed.
Leaves: hosts drawn one after the other, in the order of the list of hosts.
Must not know: the interconnect.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from waystage.simulate.cluster import Cluster


class RandomHosts:
    """Each free host is as likely as any other. PFSim's drew some hosts twice; here none is."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(f"waystage random hosts {seed}")

    def select(self, ranks: int, free: Sequence[int], cluster: Cluster) -> Sequence[int] | None:
        order = sorted(free)
        self._random.shuffle(order)
        left = ranks
        for count, host in enumerate(order, start=1):
            left -= cluster.slots[host]
            if left <= 0:
                return sorted(order[:count])
        return None
