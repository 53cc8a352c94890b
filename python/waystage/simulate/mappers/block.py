"""Ranks fill one host after the other.

Arrives: the number of ranks, the job's hosts, their slots.
Leaves: rank i on host i / slots.
Must not know: what the ranks send.
"""

from __future__ import annotations

from collections.abc import Sequence

from waystage.simulate.cluster import Cluster
from waystage.simulate.traffic import Traffic


class Block:
    """PFSim's `LinearProcessMapper`; mpirun's `--map-by slot`."""

    def map(self, traffic: Traffic, hosts: Sequence[int], cluster: Cluster) -> Sequence[int]:
        return [host for host in hosts for _ in range(cluster.slots[host])][: traffic.ranks]
