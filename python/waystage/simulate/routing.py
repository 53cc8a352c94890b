"""Paths for the pairs of a job, by a compiled router or by a user's own.

Arrives: bytes by pair of hosts, what is on the links already.
Leaves: the bytes that the job puts on each link, and each pair's path.
Must not know: jobs, queues, time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from waystage.experiment.scheduling import AlgorithmError, guarded
from waystage.native_options.routes import RouteOptions
from waystage.simulate.algorithms import KernelRouter, Router
from waystage.simulate.cluster import Cluster
from waystage.simulate.traffic import Pairs, merged

U32 = NDArray[np.uint32]
U64 = NDArray[np.uint64]
F64 = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Routed:
    """`loads[l]` bytes of the job are on link l. Where paths are kept, the i-th pair, counted by first appearance,
    takes `links[offsets[i]:offsets[i + 1]]`."""

    loads: F64
    offsets: U64
    links: U32


class Routing:
    """The router of a run on its cluster."""

    def __init__(
        self, cluster: Cluster, router: Router | KernelRouter, seed: int, *, keep_paths: bool = False
    ) -> None:
        self._cluster = cluster
        self._kernel = router if isinstance(router, KernelRouter) else None
        self._own = router if not isinstance(router, KernelRouter) else None
        self._seed = seed
        self._keep_paths = keep_paths

    def repeats(self, loads: F64) -> bool:
        """Whether the same pairs would be routed the same way again, now and whenever this is true."""
        return self._kernel is not None and not (self._kernel.sees_loads and bool(loads.any()))

    def route(self, pairs: Pairs, loads: F64) -> Routed:
        """Equal pairs are one. Raises AlgorithmError where the router fails or a path is none."""
        if self._kernel is not None:
            return self._by_kernel(self._kernel, pairs, loads)
        assert self._own is not None
        return self._by_user(self._own, merged(pairs, len(self._cluster.hosts)), loads)

    def _by_kernel(self, router: KernelRouter, pairs: Pairs, loads: F64) -> Routed:
        network = self._cluster.network
        initial = loads if router.sees_loads else None
        options = RouteOptions(
            seed=self._seed, initial=initial, keep_paths=self._keep_paths, **router.options
        )
        found = guarded(
            "the router",
            lambda: network.route_loads(router.kernel, pairs.src, pairs.dst, pairs.amount, options),
        )
        return Routed(found.loads, found.offsets, found.links)

    def _by_user(self, router: Router, pairs: Pairs, loads: F64) -> Routed:
        # A router that writes on what it is given must not change the run.
        src, dst, amounts, seen = pairs.src.copy(), pairs.dst.copy(), pairs.amount.copy(), loads.copy()
        found = guarded("the router", lambda: list(router.paths(src, dst, amounts, seen, self._cluster)))
        if len(found) != len(pairs):
            raise AlgorithmError(f"the router gave {len(found)} paths for {len(pairs)} pairs")
        try:
            links = np.array([link for path in found for link in path], dtype=np.int64)
            lengths = [len(path) for path in found]
        except (TypeError, ValueError, OverflowError):
            raise AlgorithmError("the router gave something other than lists of links") from None
        offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.uint64)
        self._check(pairs, offsets.astype(np.int64), links)
        of_job = np.zeros(loads.size)
        self._cluster.network.add_paths(of_job, offsets, links.astype(np.uint32), pairs.amount)
        return Routed(of_job, offsets, links.astype(np.uint32))

    def _check(self, pairs: Pairs, offsets: NDArray[np.int64], links: NDArray[np.int64]) -> None:
        """Each path is one: it begins and ends at the pair's hosts, its links join, and hosts do not forward."""
        cluster = self._cluster
        if links.size and not 0 <= links.min() <= links.max() < cluster.capacity.size:
            raise AlgorithmError(
                f"the router used link {links.max()}; links are 0 to {cluster.capacity.size - 1}"
            )
        for i in range(len(pairs)):
            path = links[offsets[i] : offsets[i + 1]]
            nodes = [int(pairs.src[i]), *(int(cluster.links_to[link]) for link in path)]
            begins = [int(cluster.links_from[link]) for link in path]
            if (
                nodes[:-1] != begins
                or nodes[-1] != pairs.dst[i]
                or min(nodes[1:-1], default=1 << 32) < len(cluster.hosts)
            ):
                names = cluster.hosts
                raise AlgorithmError(
                    f"the router's path from {names[int(pairs.src[i])]} to {names[int(pairs.dst[i])]} is none: "
                    f"{', '.join(cluster.link_names[link] for link in path) or 'it is empty'}"
                )
