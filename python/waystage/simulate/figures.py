"""The figures of a sweep: largest loads, load distributions, the topology coloured by load.

Arrives: rows of the table, loads of runs, a cluster.
Leaves: SVG texts that need nothing from outside.
Must not know: HTML, files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from waystage.experiment.drawing import COLOURS, draw_lines, new_figure, svg
from waystage.experiment.sweep_summary import Combined, columns
from waystage.simulate.cluster import Cluster
from waystage.simulate.positions import Positions

F64 = NDArray[np.float64]

MOST_BARS = 60
MOST_CURVES = 10
MOST_CABLES = 20_000
"""Cables of a drawing; of a larger topology only those between switches, and of a still larger one none."""


def largest_loads(rows: Sequence[Combined]) -> str:
    """A bar for each combination, as the dissertation's Fig. 2.11: colours tell routers apart.

    A line through the end of a bar is the spread over seeds, a tick the bound that no routing can beat.
    """
    shown = [row for row in rows if row.failed < len(row.runs)][:MOST_BARS]
    routers = list(dict.fromkeys(row.choices["router"] for row in shown))
    others = [c for c in columns(rows) if c != "router"]
    figure, axes = new_figure(9, 1.3 + 0.26 * max(3, len(shown)))
    for y, row in enumerate(shown):
        colour = COLOURS[routers.index(row.choices["router"]) % len(COLOURS)]
        base = row.max_load_bytes / row.relative if row.relative else 1.0
        value = row.max_load_bytes / base
        first = row.choices["router"] not in [r.choices["router"] for r in shown[:y]]
        axes.barh(y, value, height=0.7, color=colour, label=row.choices["router"] if first else None)
        end = value
        if row.low is not None and row.high is not None:
            low, high = max(0.0, row.low) / base, row.high / base
            axes.plot([low, high], [y, y], color="#222", linewidth=1.2, marker="|", markersize=5)
            end = max(end, high)
        if row.bound_bytes:
            axes.plot([row.bound_bytes / base] * 2, [y - 0.42, y + 0.42], color="#d0402b", linewidth=1.6)
        axes.annotate(f" {value:.4g}", (end, y), va="center", fontsize=7)
    labels = [" ".join([*(row.choices[c] for c in others), row.choices["router"]]) for row in shown]
    axes.set_yticks(range(len(shown)), labels, fontsize=7)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlim(left=0)
    axes.set_xlabel("largest load of a link between switches, relative to the first combination", fontsize=8)
    seeds = max((len(row.runs) for row in shown), default=1)
    kind = "range" if any(row.is_range for row in shown) else "95 % interval"
    over = f"; black: {kind} over {seeds} seeds" if seeds > 1 else ""
    axes.set_title(
        f"Largest load by combination; red: what no routing over its paths can beat{over}", fontsize=9
    )
    return svg(figure)


def load_distribution(cluster: Cluster, peaks: Mapping[str, F64], title: str) -> str:
    """The loads of the links between switches from the largest to the smallest, one curve for each of `peaks`."""
    figure, axes = new_figure(9, 3.6)
    shown = list(peaks.items())[:MOST_CURVES]
    most = max((float(peak[cluster.between_switches].max(initial=0.0)) for _, peak in shown), default=0.0)
    unit, factor = byte_unit(most)
    for i, (name, peak) in enumerate(shown):
        loads = np.sort(peak[cluster.between_switches])[::-1] / factor
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
    axes.set_xlabel("links between switches, each direction by itself, the most loaded first, %", fontsize=8)
    axes.set_ylabel(f"peak load, {unit}", fontsize=8)
    axes.set_ylim(bottom=0)
    axes.set_title(title, fontsize=9)
    axes.legend(frameon=False, fontsize=7)
    return svg(figure)


def coloured_topology(
    cluster: Cluster, peak: F64, positions: Positions, title: str, bound: float
) -> str | None:
    """Both directions of each cable side by side, traffic keeping to the right; None where there are too many to see any.

    The scale goes from nothing to the largest load that is drawn. `bound` is marked on it.
    """
    drawn = np.ones(peak.size, dtype=bool) if positions.shows_hosts else cluster.between_switches.copy()
    if np.count_nonzero(drawn) > 2 * MOST_CABLES:
        drawn = cluster.between_switches.copy()
    if not 0 < np.count_nonzero(drawn) <= 2 * MOST_CABLES:
        return None
    links = np.flatnonzero(drawn)
    # The busiest last, on top.
    links = links[np.argsort(peak[links], kind="stable")]
    figure, axes = new_figure(9, positions.height)
    unit, factor = byte_unit(float(peak[links].max(initial=0.0)))
    load = peak[links] / factor
    most = float(load.max(initial=0.0)) or 1.0
    thick = 3.2 if links.size < 400 else 1.4
    ends, owner = _directed(cluster, positions, links)
    axes.set_aspect("auto" if positions.shows_hosts else "equal")
    draw_lines(
        axes,
        ends,
        load[owner],
        0.5 + thick * load[owner] / most,
        most,
        f"peak load of a link, {unit}",
        bound / factor,
    )
    hosts = len(cluster.hosts)
    nodes = np.unique(np.concatenate((cluster.links_from[links], cluster.links_to[links]))).astype(np.int64)
    for part, marker, size in ((nodes[nodes >= hosts], "s", 30), (nodes[nodes < hosts], "o", 12)):
        axes.scatter(
            positions.x[part],
            positions.y[part],
            marker=marker,
            s=min(size, 9000 / max(1, part.size)),
            color="#333",
            zorder=3,
        )
    if nodes.size <= 90:
        for node in nodes.tolist():
            below = node < hosts
            axes.annotate(
                cluster.names[node],
                (positions.x[node], positions.y[node]),
                (0, -9 if below else 7),
                textcoords="offset points",
                ha="center",
                va="top" if below else "bottom",
                rotation=90 if below and hosts > 12 else 0,
                fontsize=6,
                zorder=4,
            )
    between = cluster.between_switches
    if between.any() and peak[between].any():
        at = int(np.flatnonzero(between)[np.argmax(peak[between])])
        title += f"; busiest between switches: {cluster.link_names[at]}, {peak[at] / factor:.4g} {unit}"
    axes.set_title(title, fontsize=9)
    axes.set_axis_off()
    axes.margins(0.04, 0.16 if positions.shows_hosts else 0.06)
    return svg(figure)


def byte_unit(most: float) -> tuple[str, float]:
    """The unit in which `most` has one to three digits before the point."""
    units = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3))
    return next(((unit, factor) for unit, factor in units if most >= factor), ("B", 1.0))


def _directed(
    cluster: Cluster, positions: Positions, links: NDArray[np.int64]
) -> tuple[F64, NDArray[np.int64]]:
    """Lines from end to end, a little to the right of the way, and the link of each; two stubs for one that wraps."""
    a, b = cluster.links_from[links].astype(np.int64), cluster.links_to[links].astype(np.int64)
    start = np.stack([positions.x[a], positions.y[a]], axis=1)
    stop = np.stack([positions.x[b], positions.y[b]], axis=1)
    wide = np.array([np.ptp(positions.x) or 1.0, np.ptp(positions.y) or 1.0])
    # In units of the drawing, not of the data: layers are wider than they are high.
    inches = np.array([8.0, max(1.0, positions.height - 1.0)]) if positions.shows_hosts else np.full(2, 8.0)
    unit = inches / (wide if positions.shows_hosts else np.full(2, wide.max()))
    way = (stop - start) * unit
    length = np.maximum(np.hypot(way[:, 0], way[:, 1]), 1e-9)
    right = np.stack([way[:, 1], -way[:, 0]], axis=1) / length[:, None] * 0.042 / unit
    wraps = positions.wraps[links]
    plain = np.stack([start + right, stop + right], axis=1)[~wraps]
    # Out of the grid at one side and in again at the opposite one.
    out = -(stop - start) / np.maximum(np.hypot(*(stop - start).T), 1e-9)[:, None] * 0.45
    leaving = np.stack([start + right, start + out + right], axis=1)[wraps]
    coming = np.stack([stop - out + right, stop + right], axis=1)[wraps]
    number = np.arange(links.size)
    lines = np.concatenate((plain, leaving, coming))
    owner = np.concatenate((number[~wraps], number[wraps], number[wraps]))
    order = np.argsort(owner, kind="stable")
    return lines[order], owner[order]
