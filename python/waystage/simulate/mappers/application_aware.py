"""Ranks that send much to one another share a host; where they cannot, an edge switch, then a pod.

Arrives: what the ranks send, the job's hosts, their slots, switches and uplinks, a seed.
Leaves: a host for each rank.
Must not know: routes.

From the top down the ranks are divided among the parts of the tree of switches by METIS (`partition`), which keeps the sum
of all cuts small. What holds a job up is its busiest link, so the compiled module then lets ranks change places for as
long as that carries less. METIS answers differently to each seed: several answers, and block mapping, are looked at, and each
that is better than those before it goes on.

The compiled module reckons with an even split of every pair, which no router gives. All that was found is therefore judged
by the sweep's own router, and the best is taken. More `effort` or more `starts` add to what is judged and take nothing
away, so that they never give a worse mapping.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from waystage.simulate.algorithms import Judge
from waystage.simulate.cluster import Cluster
from waystage.simulate.mappers.partition import Graph, divide
from waystage.simulate.traffic import Traffic

I64 = NDArray[np.int64]
U32 = NDArray[np.uint32]

MOST_KEPT = 256
"""Mappings that are kept for jobs that come back to the same hosts."""

MOST_EFFORT = 100
"""A hundred times its own measure: what takes longer was mistyped."""

LADDER = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""Efforts that are tried, up to the one asked for: each rung's answer is judged, so a higher one cannot be worse."""

MOST_STARTS = 1000
"""More answers of METIS differ in nothing that matters."""


@dataclass(frozen=True)
class _Part:
    """A part of the tree: a host, or what is below a switch."""

    hosts: tuple[int, ...]
    below: tuple[_Part, ...] = ()


class ApplicationAware:
    """`starts`: how many answers of METIS are looked at. `effort`: how long ranks change places; 1 is its own measure, and
    the steps are those of `LADDER`."""

    def __init__(self, starts: int = 4, effort: float = 1.0, seed: int = 0) -> None:
        if isinstance(starts, bool) or not isinstance(starts, int) or not 1 <= starts <= MOST_STARTS:
            raise ValueError(f"starts: {starts!r} is not a whole number from 1 to {MOST_STARTS}")
        number = isinstance(effort, int | float) and not isinstance(effort, bool)
        if not number or not 0 <= effort <= MOST_EFFORT:
            raise ValueError(f"effort: {effort!r} is not from 0 to {MOST_EFFORT}")
        self._starts = starts
        self._efforts = [rung for rung in LADDER if rung <= effort]
        self._judge: Judge | None = None
        self._seed = seed
        self._kept: dict[tuple[str, tuple[int, ...], str], list[int]] = {}

    def judged_by(self, judge: Judge) -> None:
        """Without it an even split of every pair decides."""
        self._judge = judge

    def map(self, traffic: Traffic, hosts: Sequence[int], cluster: Cluster) -> Sequence[int]:
        # A job that comes back to the same hosts, as with linear selection, is not worked out again.
        key = (traffic.digest, tuple(hosts), cluster.digest)
        if key not in self._kept:
            if len(self._kept) >= MOST_KEPT:
                self._kept.clear()
            self._kept[key] = self._mapped(traffic, hosts, cluster)
        return self._kept[key]

    def _mapped(self, traffic: Traffic, hosts: Sequence[int], cluster: Cluster) -> list[int]:
        # The slots that block mapping would take: hosts are filled in order, the last as far as need be.
        room: dict[int, int] = {}
        left = traffic.ranks
        for host in hosts:
            room[host] = min(left, cluster.slots[host])
            left -= room[host]
        used = [host for host in hosts if room[host]]
        pairs = traffic.total
        graph = Graph.of(traffic.ranks, pairs.src.astype(np.int64), pairs.dst.astype(np.int64), pairs.amount)
        tree = _tree(used, cluster)
        found = [np.repeat(np.array(used, dtype=np.uint32), [room[h] for h in used])]
        for start in range(self._starts):
            host_of = np.zeros(traffic.ranks, dtype=np.uint32)
            _place(graph, np.arange(traffic.ranks), tree, room, host_of, self._seed + start)
            found.append(host_of)
        answers: dict[bytes, tuple[U32, float]] = {}
        least = float("inf")
        for host_of in found:
            _, even = self._refined(traffic, host_of, cluster, 0.0)
            answers.setdefault(host_of.tobytes(), (host_of, even))
            if even < least:
                least = even
                for effort in self._efforts:
                    better, evenly = self._refined(traffic, host_of, cluster, effort)
                    answers.setdefault(better.tobytes(), (better, evenly))
        # The first of equals: block mapping is kept where nothing is better.
        best, _ = min(answers.values(), key=lambda answer: (self._judged(traffic, answer), answer[1]))
        return [int(host) for host in best]

    def _judged(self, traffic: Traffic, answer: tuple[U32, float]) -> float:
        host_of, even = answer
        return even if self._judge is None else self._judge(traffic, host_of.tolist())

    def _refined(self, traffic: Traffic, host_of: U32, cluster: Cluster, effort: float) -> tuple[U32, float]:
        """A mapping no worse, and what its busiest link carries where every pair is split evenly."""
        pairs, slots = traffic.total, cluster.slots_array.astype(np.uint32)
        return cluster.network.refine_mapping(
            pairs.src, pairs.dst, pairs.amount, host_of, slots, seed=self._seed, effort=effort
        )


def _place(graph: Graph, ranks: I64, part: _Part, room: dict[int, int], host_of: U32, seed: int) -> None:
    """Give `ranks`, which are the vertices of `graph`, places in `part`."""
    if not part.below:
        host_of[ranks] = part.hosts[0]
        return
    sizes = np.array([sum(room[h] for h in child.hosts) for child in part.below], dtype=np.int64)
    division = divide(graph, sizes, seed)
    for number, child in enumerate(part.below):
        here = np.flatnonzero(division == number)
        if here.size:
            _place(graph.within(here), ranks[here], child, room, host_of, seed)


def _tree(hosts: Sequence[int], cluster: Cluster) -> _Part:
    """Hosts under edge switches, edge switches that are nearest to one another in pods."""
    under: dict[int, list[int]] = {}
    for host in hosts:
        under.setdefault(cluster.edge_of[host], []).append(host)
    edges = [_Part(tuple(below), tuple(_Part((h,)) for h in below)) for below in under.values()]
    pods = _pods(list(under), cluster)
    if 1 < len(pods) < len(edges):
        parts = [
            _Part(tuple(h for i in pod for h in edges[i].hosts), tuple(edges[i] for i in pod)) for pod in pods
        ]
        return _Part(tuple(hosts), tuple(parts))
    return _Part(tuple(hosts), tuple(edges))


def _pods(edges: Sequence[int], cluster: Cluster) -> list[list[int]]:
    """Positions of edge switches, those at the smallest distance there is together."""
    if len(edges) < 3:
        return [[i] for i in range(len(edges))]
    distances = {edge: cluster.switch_distances(edge)[list(edges)] for edge in edges}
    near = min(int(d[d > 0].min()) for d in distances.values())
    pods: list[list[int]] = []
    done: set[int] = set()
    for i in range(len(edges)):
        if i in done:
            continue
        pod, waiting = [], [i]
        done.add(i)
        while waiting:
            at = waiting.pop()
            pod.append(at)
            beside = np.flatnonzero(distances[edges[at]] == near).tolist()
            waiting += [j for j in beside if j not in done]
            done.update(beside)
        pods.append(sorted(pod))
    return pods
