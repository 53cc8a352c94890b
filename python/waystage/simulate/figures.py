"""The figures of a scenario: largest loads, load distributions, the topology coloured by load.

Arrives: rows of the table, loads of runs, a cluster.
Leaves: SVG texts that need nothing from outside.
Must not know: HTML, files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from waystage.experiment.drawing import COLOURS, draw_lines, new_figure, svg
from waystage.simulate.cluster import Cluster
from waystage.simulate.summary import Row, columns

F64 = NDArray[np.float64]

MOST_BARS = 60
MOST_CURVES = 10
MOST_CABLES = 20_000
"""Cables of a drawing; of a larger topology only those between switches, and of a still larger one none."""


def largest_loads(rows: Sequence[Row]) -> str:
    """A bar for each combination, as the dissertation's Fig. 2.11: colours tell routers apart."""
    shown = [row for row in rows if row.failed < len(row.runs)][:MOST_BARS]
    routers = list(dict.fromkeys(row.choices["router"] for row in shown))
    others = [c for c in columns(rows) if c != "router"]
    figure, axes = new_figure(9, 1.0 + 0.24 * max(3, len(shown)))
    for y, row in enumerate(shown):
        colour = COLOURS[routers.index(row.choices["router"]) % len(COLOURS)]
        value = row.max_load_bytes if row.relative is None else row.relative
        first = row.choices["router"] not in [r.choices["router"] for r in shown[:y]]
        axes.barh(y, value, height=0.7, color=colour, label=row.choices["router"] if first else None)
        axes.annotate(f" {value:.4g}", (value, y), va="center", fontsize=7)
    labels = [" ".join([*(row.choices[c] for c in others), row.choices["router"]]) for row in shown]
    axes.set_yticks(range(len(shown)), labels, fontsize=7)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlabel("largest load of a link between switches, relative to the first combination", fontsize=8)
    return svg(figure)


def load_distribution(cluster: Cluster, peaks: Mapping[str, F64]) -> str:
    """The loads of the links between switches from the largest to the smallest, one curve for each of `peaks`."""
    figure, axes = new_figure(9, 3.4)
    for i, (name, peak) in enumerate(list(peaks.items())[:MOST_CURVES]):
        loads = np.sort(peak[cluster.between_switches])[::-1] / 1e9
        share = (np.arange(loads.size) + 0.5) / max(1, loads.size) * 100
        style = ("-", "--", ":")[i // len(COLOURS) % 3]
        axes.plot(
            share,
            loads,
            style,
            drawstyle="steps-mid",
            color=COLOURS[i % len(COLOURS)],
            label=name,
            linewidth=1.3,
        )
    axes.set_xlabel("links between switches, the most loaded first, %", fontsize=8)
    axes.set_ylabel("peak load, GB", fontsize=8)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=7)
    return svg(figure)


def coloured_topology(cluster: Cluster, peak: F64) -> str | None:
    """Hosts below, switches above by their distance from hosts; None where there are too many links to see any.

    A cable has the colour of its busier direction.
    """
    a, b = cluster.links_from[::2].astype(np.int64), cluster.links_to[::2].astype(np.int64)
    load = np.maximum(peak[::2], peak[1::2])
    between = cluster.between_switches[::2]
    if a.size > MOST_CABLES:
        a, b, load = a[between], b[between], load[between]
        between = np.ones(a.size, dtype=bool)
    if a.size == 0 or a.size > MOST_CABLES:
        return None
    x, y = _places(cluster)
    busiest = float(load[between].max(initial=0.0)) or float(load.max()) or 1.0
    share = np.minimum(load / busiest, 1.0)
    order = np.argsort(share, kind="stable")
    figure, axes = new_figure(9, 1.4 + 1.1 * (y.max() + 1))
    ends = np.stack([np.stack([x[a], y[a]], axis=1), np.stack([x[b], y[b]], axis=1)], axis=1)
    thickness = 3.0 if a.size < 300 else 1.0
    draw_lines(
        axes, ends[order], share[order], 0.4 + thickness * share[order], "share of the busiest link's load"
    )
    hosts = len(cluster.hosts)
    drawn = np.unique(np.concatenate((a, b)))
    for part, marker, size in ((drawn[drawn >= hosts], "s", 26), (drawn[drawn < hosts], "o", 10)):
        axes.scatter(
            x[part], y[part], marker=marker, s=min(size, 9000 / max(1, part.size)), color="#333", zorder=3
        )
    if drawn.size <= 80:
        for node in drawn.tolist():
            below = node < hosts
            axes.annotate(
                cluster.names[node],
                (x[node], y[node]),
                (0, -9 if below else 7),
                textcoords="offset points",
                ha="center",
                va="top" if below else "bottom",
                rotation=90 if below and hosts > 12 else 0,
                fontsize=6,
            )
    axes.set_axis_off()
    axes.margins(0.03, 0.22)
    return svg(figure)


def _places(cluster: Cluster) -> tuple[F64, F64]:
    """Where each node is drawn: its level, and on it the mean place of what is below it."""
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
        place = np.bincount(to, weights=below, minlength=x.size) / np.maximum(
            np.bincount(to, minlength=x.size), 1
        )
        x[here[np.lexsort((here, place[here]))]] = _spread(here.size)
    return x, level.astype(np.float64)


def _spread(count: int) -> F64:
    return (np.arange(count) + 0.5) / max(1, count)
