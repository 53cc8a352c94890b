"""The order of ranks in which an MPI collective puts the least on links between switches.

Arrives: a topology, the host of each rank of a communicator, the messages of calls.
Leaves: a permutation of the ranks, with what a call costs before and after.
Must not know: policies, events, the MPI library, how ranks change their order.

An algorithm's messages are between positions: which ranks they join is the communicator's order alone. MPI has it as
rank reordering (`reorder` of MPI_Dist_graph_create_adjacent, MPI 4.0, section 8.5.4; Jeannot, Mercier and Tessier,
"Process Placement in Multicore Clusters", IEEE TPDS 2014, known as TreeMatch). A general graph needs a heuristic; those
of collectives are regular, and two kinds of order are compared. Ranks grouped by edge switch suit algorithms whose near
positions exchange the most: rings, chains, halving from the nearest on. Ranks dealt to edge switches in turn suit those
whose distant positions do: a binomial tree, recursive doubling that gathers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from waystage.mpi_steps import Pair
from waystage.topology import Topology

GAIN = 1.05
"""What an order must gain in bytes between switches: less is not worth another communicator."""

SAME = 1 + 1e-9
"""Sums of the same numbers in another order."""


class Call(NamedTuple):
    """One call: bytes of each pair of ranks of the communicator, by step, in its present order.

    Positions of an algorithm with a root are counted from the `root`, -1 without one.
    """

    steps: Sequence[Mapping[Pair, float]]
    root: int = -1


class Cost(NamedTuple):
    """Of all calls. `switch_bytes`: bytes times links between switches that they cross. `host_bytes`: bytes that leave
    hosts. `seconds`: the busiest link of each step, where uplinks of an edge switch share its load evenly."""

    switch_bytes: float
    host_bytes: float
    seconds: float

    def at_most(self, other: Cost) -> bool:
        """Whether nothing is more than of `other`."""
        return all(mine <= theirs * SAME for mine, theirs in zip(self, other, strict=True))


class Order(NamedTuple):
    """`ranks[p]` is the present rank at position p of the new order."""

    ranks: tuple[int, ...]
    before: Cost
    after: Cost

    @property
    def changes(self) -> bool:
        return self.ranks != tuple(range(len(self.ranks)))


def best_order(
    topology: Topology, hosts: Sequence[str], calls: Sequence[Call], reordered: Sequence[Call] | None = None
) -> Order:
    """The order of ranks for `calls`; the present one where none gains, or where a call would cost more.

    `reordered` are the messages of the same calls in a new order, where the MPI library then has another algorithm.
    Raises KeyError where a host has no link or no way to another.
    """
    places = _Places.of(topology, hosts)
    present = tuple(range(len(hosts)))
    messages = [_Messages.of(call, len(hosts)) for call in calls]
    later = messages if reordered is None else [_Messages.of(call, len(hosts)) for call in reordered]
    before_each = [places.cost(present, one) for one in messages]
    before = _sum(before_each)
    best, after = present, before
    if before.switch_bytes > 0:
        for candidate in dict.fromkeys(_candidates(places, [call.root for call in calls])):
            each = [places.cost(candidate, one) for one in later]
            cost = _sum(each)
            gains = cost.switch_bytes * GAIN <= before.switch_bytes and cost < after
            if gains and all(new.at_most(old) for new, old in zip(each, before_each, strict=True)):
                best, after = candidate, cost
    return Order(best, before, after)


def _sum(costs: Sequence[Cost]) -> Cost:
    return (
        Cost(*(float(sum(values)) for values in zip(*costs, strict=True))) if costs else Cost(0.0, 0.0, 0.0)
    )


class _Messages(NamedTuple):
    """Of one call; positions are counted from its root."""

    step: NDArray[np.intp]
    src: NDArray[np.intp]
    dst: NDArray[np.intp]
    bytes: NDArray[np.float64]
    steps: int
    root: int

    @classmethod
    def of(cls, call: Call, size: int) -> _Messages:
        rows = [(at, a, b, n) for at, step in enumerate(call.steps) for (a, b), n in step.items()]
        first = max(call.root, 0)
        step, src, dst = (np.array([row[i] for row in rows], dtype=np.intp) for i in range(3))
        sizes = np.array([row[3] for row in rows], dtype=np.float64)
        return cls(step, (src - first) % size, (dst - first) % size, sizes, len(call.steps), call.root)


class _Places(NamedTuple):
    """Of each rank its host, edge switch and pod, by number; of each pair of edge switches the links between them; the
    bytes/s of each edge switch's uplinks together, and of each host."""

    host: NDArray[np.intp]
    edge: NDArray[np.intp]
    pod: NDArray[np.intp]
    links: NDArray[np.float64]
    uplinks: NDArray[np.float64]
    rates: NDArray[np.float64]

    @classmethod
    def of(cls, topology: Topology, hosts: Sequence[str]) -> _Places:
        names = sorted(set(hosts), key=topology.host_index.__getitem__)
        edge_of = {name: topology.attachment[name][0] for name in names}
        edges = [edge for edge in topology.edge_switches if edge in set(edge_of.values())]
        number = {edge: at for at, edge in enumerate(edges)}
        host_number = {name: at for at, name in enumerate(names)}
        links = np.array([[_links_from(topology, a)[b] for b in edges] for a in edges], dtype=np.float64)
        # Edge switches with one switch between them: a pod of a fat tree, all of two levels.
        pods = np.array([int(np.argmax(row <= 2)) for row in links], dtype=np.intp)
        uplinks = np.zeros(len(edges))
        for link in topology.switch_links:
            for end in (link.a, link.b):
                if end in number:
                    uplinks[number[end]] += link.capacity_bps / 8
        rates = [topology.link_between(name, edge_of[name]).capacity_bps / 8 for name in names]
        edge = np.array([number[edge_of[name]] for name in hosts], dtype=np.intp)
        return cls(
            np.array([host_number[name] for name in hosts], dtype=np.intp),
            *(edge, pods[edge], links, uplinks, np.array(rates, dtype=np.float64)),
        )

    def cost(self, order: Sequence[int], call: _Messages) -> Cost:
        """Of one call, with the ranks in this order."""
        ranks = np.array(order, dtype=np.intp)
        if call.root >= 0:
            ranks = np.roll(ranks, -int(np.flatnonzero(ranks == call.root)[0]))
        src, dst = ranks[call.src], ranks[call.dst]
        leaves = np.where(self.host[src] != self.host[dst], call.bytes, 0.0)
        links = self.links[self.edge[src], self.edge[dst]]
        crosses = np.where(links > 0, call.bytes, 0.0)
        busy = np.zeros(call.steps)
        for at, loads, rates in ((self.host, leaves, self.rates), (self.edge, crosses, self.uplinks)):
            for end in (src, dst):
                cells = np.bincount(
                    call.step * len(rates) + at[end], weights=loads, minlength=call.steps * len(rates)
                ).reshape(call.steps, len(rates))
                with np.errstate(divide="ignore", invalid="ignore"):
                    seconds = np.where(cells > 0, cells / rates, 0.0)
                busy = np.maximum(busy, seconds.max(axis=1, initial=0.0))
        return Cost(float((links * call.bytes).sum()), float(leaves.sum()), float(busy.sum()))


@functools.lru_cache(maxsize=4096)
def _links_from(topology: Topology, edge: str) -> dict[str, int]:
    """Links from an edge switch to each other one that a path over switches reaches."""
    return {name: hops for name, hops in topology.distances(edge).items() if name in topology.hosts_at}


def _candidates(places: _Places, roots: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Orders to compare; each begins with a root, or with the first rank."""
    for first in dict.fromkeys(max(root, 0) for root in roots):
        for by_size in (False, True):
            yield from _from(places, first, by_size)


def _from(places: _Places, first: int, by_size: bool) -> Iterator[tuple[int, ...]]:
    pods = [
        _split(ranks, lambda rank: int(places.edge[rank]), first, by_size)
        for ranks in _split(range(len(places.host)), lambda rank: int(places.pod[rank]), first, by_size)
    ]
    near = [
        [
            [rank for host in _split(edge, lambda r: int(places.host[r]), first, False) for rank in host]
            for edge in pod
        ]
        for pod in pods
    ]
    yield tuple(rank for pod in near for edge in pod for rank in edge)
    yield _dealt([_dealt(pod) for pod in near])
    yield _dealt([edge for pod in near for edge in pod])
    yield tuple(rank for pod in near for rank in _dealt(pod))


def _split(ranks: Sequence[int], of: Callable[[int], int], first: int, by_size: bool) -> list[list[int]]:
    """The ranks by what each is at: that of `first` before the others, larger groups before smaller ones."""
    groups: dict[int, list[int]] = {}
    for rank in ranks:
        groups.setdefault(of(rank), []).append(rank)
    return [
        sorted(groups[key], key=lambda rank: (rank != first, rank))
        for key in sorted(
            groups, key=lambda key: (first not in groups[key], -len(groups[key]) * by_size, key)
        )
    ]


def _dealt(groups: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """One of each group after the other."""
    return tuple(rank for row in zip_longest(*groups, fillvalue=-1) for rank in row if rank >= 0)
