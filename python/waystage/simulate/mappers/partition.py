"""A graph divided into parts of given sizes with a small cut, by METIS.

Arrives: weights between vertices, the size of each part.
Leaves: the part of each vertex; sizes are met exactly.
Must not know: ranks, hosts.

METIS (Karypis and Kumar, SIAM J. Sci. Comput. 20(1), 1998) by way of pymetis. It meets sizes only nearly, so vertices
move from too large parts to too small ones, the cheapest first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pymetis
from numpy.typing import NDArray

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]

HEAVIEST = 1 << 20
"""METIS takes whole numbers of 32 bits, and adds them up; weights are scaled so that the heaviest becomes this."""

_SEED_BITS = 0x7FFF_FFFF


@dataclass(frozen=True, eq=False)
class Graph:
    """Undirected, without loops: vertex v has `neighbours[starts[v]:starts[v + 1]]`, with `weights`."""

    starts: I64
    neighbours: I64
    weights: F64

    @classmethod
    def of(cls, size: int, src: I64, dst: I64, weight: F64) -> Graph:
        """Both directions of a pair are added up."""
        away = src != dst
        a = np.concatenate((src[away], dst[away]))
        b = np.concatenate((dst[away], src[away]))
        key, which = np.unique(a * size + b, return_inverse=True)
        total = np.bincount(which, weights=np.concatenate((weight[away], weight[away])), minlength=key.size)
        starts = np.searchsorted(key, np.arange(size + 1) * size)
        return cls(starts.astype(np.int64), (key % max(1, size)).astype(np.int64), total.astype(np.float64))

    @property
    def size(self) -> int:
        return int(self.starts.size - 1)

    def sources(self) -> I64:
        """The vertex that each entry of `neighbours` belongs to."""
        return np.repeat(np.arange(self.size), np.diff(self.starts))

    def within(self, vertices: I64) -> Graph:
        """The graph between `vertices`, numbered anew in their order."""
        number = np.full(self.size, -1, dtype=np.int64)
        number[vertices] = np.arange(vertices.size)
        a, b = number[self.sources()], number[self.neighbours]
        keep = (a >= 0) & (a < b)
        return Graph.of(int(vertices.size), a[keep], b[keep], self.weights[keep])

    def dense(self) -> F64:
        matrix = np.zeros((self.size, self.size))
        matrix[self.sources(), self.neighbours] = self.weights
        return matrix


def divide(graph: Graph, sizes: I64, seed: int) -> I64:
    """Parts of `sizes`; the same for the same seed."""
    wanted = np.flatnonzero(sizes)
    if wanted.size <= 1 or graph.neighbours.size == 0:
        return np.repeat(np.arange(sizes.size), sizes)
    scaled = np.maximum(1, np.round(graph.weights * (HEAVIEST / graph.weights.max()))).astype(np.int64)
    options = pymetis.Options(seed=seed & _SEED_BITS)
    found = pymetis.part_graph(
        int(wanted.size),
        pymetis.CSRAdjacency(graph.starts.tolist(), graph.neighbours.tolist()),
        eweights=scaled.tolist(),
        tpwgts=(sizes[wanted] / sizes.sum()).tolist(),
        recursive=True,
        options=options,
    )
    return _exactly(graph, wanted[np.asarray(found.vertex_part, dtype=np.int64)], sizes)


def _exactly(graph: Graph, part: I64, sizes: I64) -> I64:
    """Vertices moved until every part has its size."""
    part = part.copy()
    surplus = np.bincount(part, minlength=sizes.size) - sizes
    while surplus.any():
        full, lacking = np.flatnonzero(surplus > 0), np.flatnonzero(surplus < 0)
        movable = np.flatnonzero(np.isin(part, full))
        # What each vertex sends to each part.
        ties = np.zeros((graph.size, sizes.size))
        np.add.at(ties, (graph.sources(), part[graph.neighbours]), graph.weights)
        gain = ties[np.ix_(movable, lacking)] - ties[movable, part[movable]][:, None]
        at = np.unravel_index(int(np.argmax(gain)), gain.shape)
        vertex, target = int(movable[at[0]]), int(lacking[at[1]])
        surplus[part[vertex]] -= 1
        surplus[target] += 1
        part[vertex] = target
    return part
