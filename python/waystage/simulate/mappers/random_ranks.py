"""Ranks by chance on the slots of the job's hosts.

Arrives: the number of ranks, the job's hosts, their slots, a seed.
Leaves: a host for each rank.
Must not know: what the ranks send.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from waystage.simulate.cluster import Cluster
from waystage.simulate.traffic import Traffic


class RandomRanks:
    """`by: rank` shuffles the ranks over all slots; `by: host` shuffles the hosts and fills them, as PFSim's did."""

    def __init__(self, by: str = "rank", seed: int = 0) -> None:
        if by not in ("rank", "host"):
            raise ValueError(f"by: {by} is neither rank nor host")
        self._by = by
        self._random = random.Random(f"waystage random ranks {seed}")

    def map(self, traffic: Traffic, hosts: Sequence[int], cluster: Cluster) -> Sequence[int]:
        order = list(hosts)
        if self._by == "host":
            self._random.shuffle(order)
        slots = [host for host in order for _ in range(cluster.slots[host])]
        if self._by == "rank":
            # The same slots as block mapping, so that both leave the same ones empty.
            slots = slots[: traffic.ranks]
            self._random.shuffle(slots)
        return slots[: traffic.ranks]
