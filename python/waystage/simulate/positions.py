"""Where the nodes of an interconnect are drawn, by its kind.

Arrives: a cluster, its kind and parameters.
Leaves: a place for each node, and which links are drawn as two stubs because they wrap around.
Must not know: loads, colours, files.

A dragonfly is drawn as groups in a circle, a torus as a grid (planes of three dimensions side by side), a ring as a circle;
anything else as layers, hosts below and switches above by their distance from hosts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from waystage.simulate.cluster import Cluster

F64 = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Positions:
    """`x`, `y` by node; `wraps` by link. `height` is what a drawing of width 9 wants, in inches."""

    kind: str
    x: F64
    y: F64
    wraps: NDArray[np.bool_]
    height: float
    shows_hosts: bool


def positions_of(cluster: Cluster, kind: str, params: Mapping[str, Any]) -> Positions:
    """`kind` and `params` as in the experiment file."""
    switches = len(cluster.switches)
    if kind == "dragonfly" and switches == int(params["a"]) * (int(params["a"]) * int(params["h"]) + 1):
        return _dragonfly(cluster, int(params["a"]))
    dims = [int(size) for size in params["dims"]] if kind == "torus" else []
    if dims and switches == int(np.prod(dims)):
        return _torus(cluster, dims)
    return _layers(cluster)


def _dragonfly(cluster: Cluster, a: int) -> Positions:
    hosts, switches = len(cluster.hosts), len(cluster.switches)
    groups = switches // a
    number = np.arange(switches)
    turn = 2 * np.pi * (number // a) / groups
    # A group's circle takes two thirds of its share of the large one.
    radius = min(0.3, 2 / 3 * np.pi / groups)
    # The first switch of a group looks inwards, so that cables between groups cross no switches.
    within = turn + np.pi + 2 * np.pi * (number % a) / a
    at = np.stack([np.sin(turn) + radius * np.sin(within), np.cos(turn) + radius * np.cos(within)])
    return _direct(cluster, "dragonfly", at, np.zeros(cluster.capacity.size, dtype=bool), 8.2, hosts)


def _torus(cluster: Cluster, dims: list[int]) -> Positions:
    hosts, switches = len(cluster.hosts), len(cluster.switches)
    number, coordinates = np.arange(switches), []
    for size in reversed(dims):
        coordinates.append(number % size)
        number = number // size
    if len([size for size in dims if size > 1]) == 1:
        turn = 2 * np.pi * np.arange(switches) / switches
        at = np.stack([np.sin(turn), np.cos(turn)])
        return _direct(cluster, "ring", at, np.zeros(cluster.capacity.size, dtype=bool), 8.2, hosts)
    x, y = coordinates[0].astype(np.float64), coordinates[1].astype(np.float64)
    wide = float(dims[-1]) + 1.5
    for level, place_in in enumerate(coordinates[2:]):
        # Planes are side by side, each a little higher, so that cables between them are distinct.
        x += wide * place_in
        y += 0.35 * place_in * (level + 1)
        wide *= dims[-3 - level]
    a, b = cluster.links_from.astype(np.int64) - hosts, cluster.links_to.astype(np.int64) - hosts
    between = cluster.between_switches
    wraps = np.zeros(between.size, dtype=bool)
    for size, place_in in zip(reversed(dims), coordinates, strict=True):
        step = np.abs(place_in[a[between]] - place_in[b[between]])
        wraps[between] |= (step > 1) & (step == size - 1)
    ratio = (float(np.ptp(y)) + 1.5) / (float(np.ptp(x)) + 1.5)
    return _direct(cluster, "torus", np.stack([x, -y]), wraps, min(9.0, max(3.2, 7.6 * ratio + 1)), hosts)


def _direct(
    cluster: Cluster, kind: str, at: F64, wraps: NDArray[np.bool_], height: float, hosts: int
) -> Positions:
    x, y = (np.concatenate((np.zeros(hosts), column)) for column in at)
    edges = np.array(cluster.edge_of, dtype=np.int64)
    x[:hosts], y[:hosts] = x[edges], y[edges]
    return Positions(kind, x, y, wraps, height, False)


def _layers(cluster: Cluster) -> Positions:
    """On each level, a node stands at the mean place of what is below it."""
    hosts = len(cluster.hosts)
    level = np.full(len(cluster.names), -1, dtype=np.int64)
    level[:hosts] = 0
    front = np.arange(hosts)
    while front.size:
        reached = cluster.links_to[np.isin(cluster.links_from, front)]
        reached = np.unique(reached[level[reached] < 0])
        level[reached] = level[front[0]] + 1
        front = reached.astype(np.int64)
    level[level < 0] = 0
    x = np.zeros(len(cluster.names))
    edges = np.array(cluster.edge_of)
    x[np.lexsort((np.arange(hosts), edges))] = _spread(hosts)
    for height in range(1, int(level.max()) + 1):
        here = np.flatnonzero(level == height)
        # Links from below, by the switch that they lead to.
        up = (level[cluster.links_to] == height) & (level[cluster.links_from] == height - 1)
        to, below = cluster.links_to[up], x[cluster.links_from[up]]
        mean = np.bincount(to, weights=below, minlength=x.size) / np.maximum(
            np.bincount(to, minlength=x.size), 1
        )
        x[here[np.lexsort((here, mean[here]))]] = _spread(here.size)
    y = level.astype(np.float64)
    return Positions(
        "layers", x, y, np.zeros(cluster.capacity.size, dtype=bool), 1.8 + 1.2 * (y.max() + 1), True
    )


def _spread(count: int) -> F64:
    return (np.arange(count) + 0.5) / max(1, count)
