"""What all figures share: their style, and SVG that is the same for the same data.

Arrives: a size; a figure.
Leaves: axes in the house's style; SVG texts that need nothing from outside.
Must not know: what is drawn.
"""

from __future__ import annotations

import io
import re
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

CLASS_COLOURS = {"mpi": "#4269d0", "staging": "#ff725c", "io": "#efb118", "wan": "#a463f2", "all": "#777777"}
"""Of classes of traffic, in every figure, on the live page too; distinguishable in grey and to the colour-blind."""

COLOURS = ("#2b2f36", "#2a9d8f", "#9aa5b1", "#8c564b", "#c7d36f")
"""Of what is compared, such as policies, in order; none is a class's."""

STEP_COLOURS = ("#7a0177", "#c51b8a", "#f768a1", "#fbb4b9")
"""Of the steps of a switch-over."""

WAITING_COLOUR = "#d5d9df"
"""Of jobs that wait in the queue."""


def new_figure(width: float, height: float) -> tuple[Figure, Any]:
    """A figure of one plot, in inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.subplots()
    style(axes)
    return figure, axes


def style(axes: Any) -> None:
    """No frame above and to the right, faint lines behind the data."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#ddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8)


def draw_lines(
    axes: Any, ends: Any, values: Any, widths: Any, most: float, label: str, mark: float = 0.0
) -> None:
    """Lines between pairs of points, coloured by `values` from 0 to `most`, with a bar that says which colour is which.

    A `mark` above zero is drawn across the bar.
    """
    lines = LineCollection(list(ends), cmap="YlOrRd", linewidths=widths, capstyle="butt")
    lines.set_array(values)
    lines.set_clim(-0.15 * most, most)  # the palest tenth of the map cannot be seen on white
    axes.add_collection(lines)
    bar = axes.figure.colorbar(lines, ax=axes, fraction=0.03, pad=0.01)
    bar.solids.set_rasterized(False)  # shapes, as all else on the page
    bar.ax.set_ylim(0.0, most)
    bar.set_label(label, fontsize=7)
    bar.ax.tick_params(labelsize=7)
    if 0 < mark <= most:
        bar.ax.axhline(mark, color="#222", linewidth=1.5)
        bar.ax.annotate(
            "bound",
            (0, mark),
            xycoords=("axes fraction", "data"),
            xytext=(-2, 0),
            textcoords="offset points",
            ha="right",
            va="center",
            fontsize=6,
        )


def svg(figure: Figure) -> str:
    """SVG without prologue and creation date: the same data give the same text."""
    out = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "waystage", "svg.fonttype": "none"}):
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    # Hundredths of a point cannot be seen, and paths of many bins are most of a report.
    text = re.sub(r' d="[^"]*"', lambda found: re.sub(r"(\.\d\d)\d+", r"\1", found[0]), text)
    # Tools that look for requests to other hosts should find none, not even in a description of the format.
    return re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
