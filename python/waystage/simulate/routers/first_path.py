"""`first-path`: every pair on its first shortest path, and the template for your own router.

Copy this file to `my_routers.py`, rename the class, and name it by its dotted path in an experiment file:

    algorithms:
      router: ["my_routers:MyRouter", d-mod-k]

    PYTHONPATH=. waystage run my-experiment.yaml --on sim

Arrives: the pairs of a job that starts, their bytes, the loads of all links, the cluster.
Leaves: a path for each pair.
Must not know: jobs, queues, time, other runs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# A router imports the cluster's type, and nothing else of Waystage.
from waystage.simulate.cluster import Cluster


class FirstPath:
    """Say in one sentence how the router chooses, and name its source where it has one."""

    # Options arrive as keyword arguments from the experiment file (`{name: ..., options: {threshold: 2}}`). Give each a
    # default and a type, and raise ValueError for a value that makes no sense: the message is shown to the user.
    # A constructor that takes `seed` gets one for each run: draw random numbers only from a generator made with it.
    def __init__(self) -> None:
        pass

    # Called once for each job that starts (and, in time mode, for its staging), with each pair of hosts once:
    #
    #   src, dst   host numbers, as in `cluster.hosts`; never equal
    #   amounts    bytes of each pair over the job's life
    #   loads      bytes that running jobs have on each directed link, without this job's
    #   cluster    hosts are nodes 0 .. len(cluster.hosts) - 1, switches follow; link i leads from node
    #              `cluster.links_from[i]` to `cluster.links_to[i]` at `cluster.capacity[i]` bytes a second
    #
    # Return one list of link numbers for each pair, in the order of `src`. A path starts at the source, ends at the
    # destination, and passes no host in between; anything else fails the run with a sentence that names the pair.
    #
    # Deterministic: the same arguments (and seed) give the same paths. A fresh object is made for each run, so state
    # may be kept on `self` between calls; every array is a copy, so it may be changed.
    #
    # A router that spreads load adds to its own copy as it goes:
    #
    #     for path, amount in zip(paths, amounts): loads[path] += amount
    #
    def paths(
        self,
        src: NDArray[np.uint32],
        dst: NDArray[np.uint32],
        amounts: NDArray[np.float64],
        loads: NDArray[np.float64],
        cluster: Cluster,
    ) -> Sequence[Sequence[int]]:
        return [self._path(a, b, cluster) for a, b in zip(src.tolist(), dst.tolist(), strict=True)]

    def _path(self, node: int, destination: int, cluster: Cluster) -> list[int]:
        path: list[int] = []
        while node != destination:
            link = next_links(cluster, node, destination)[0]
            path.append(link)
            node = int(cluster.links_to[link])
        return path


def next_links(cluster: Cluster, node: int, destination: int) -> list[int]:
    """The links from `node` that begin a shortest path to the host `destination`, lowest number first."""
    # `switch_distances` is kept by the cluster: hops from a switch to every node.
    hops = cluster.switch_distances(cluster.edge_of[destination])
    found = np.flatnonzero(cluster.links_from == node)
    towards = cluster.links_to[found]
    if destination in towards:
        return [int(link) for link in found[towards == destination]]
    switches = towards >= len(cluster.hosts)
    found, towards = found[switches], towards[switches]
    return [int(link) for link in found[hops[towards] == hops[towards].min()]]
