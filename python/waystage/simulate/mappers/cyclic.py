"""Ranks go to one host after the other, again and again.

Arrives: the number of ranks, the job's hosts, their slots.
Leaves: rank i on host i modulo hosts, past those that are full.
Must not know: what the ranks send.
"""

from __future__ import annotations

from collections.abc import Sequence

from waystage.simulate.cluster import Cluster
from waystage.simulate.traffic import Traffic


class Cyclic:
    """PFSim's `CyclicProcessMapper`; mpirun's `--map-by node`."""

    def map(self, traffic: Traffic, hosts: Sequence[int], cluster: Cluster) -> Sequence[int]:
        placed: list[int] = []
        turn = 0
        while len(placed) < traffic.ranks:
            placed += [host for host in hosts if cluster.slots[host] > turn]
            turn += 1
        return placed[: traffic.ranks]
