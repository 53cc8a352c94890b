"""Pictures of a pattern: source by destination, darker where more bytes went.

Arrives: a pattern.
Leaves: lines of text, or a PNG file.
Must not know: which pattern it is and why it is looked at.

Many ranks are drawn as fewer cells, each the sum of a square of pairs. The scale is logarithmic: bytes of pairs
differ by orders of magnitude, and a linear scale would show the busiest alone.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from waystage.patterns.output import write_whole
from waystage.patterns.pattern import Pattern

SHADES = " ░▒▓█"
DPI = 150
MOST_CELLS = 1024
"""Of a picture's side: more are indistinguishable."""


def cells(
    pattern: Pattern, side: int, *, phase: int | None = None, what: str = "bytes"
) -> NDArray[np.float64]:
    """Sums over squares of pairs, at most `side` by `side` of them."""
    width = -(-pattern.ranks // side)
    count = -(-pattern.ranks // width)
    src, dst, messages, total = pattern.pairs(phase=phase)
    grid = np.zeros((count, count))
    np.add.at(grid, (src // width, dst // width), (total if what == "bytes" else messages).astype(np.float64))
    return grid


def as_text(pattern: Pattern, *, side: int = 64, phase: int | None = None) -> str:
    """Two characters a cell, so that it is about square; the first line says what a cell is."""
    grid = cells(pattern, side, phase=phase)
    most = grid.max(initial=0.0)
    width = -(-pattern.ranks // grid.shape[0])
    unit = "rank" if width == 1 else f"{width} ranks"
    lines = [
        f"bytes from each {unit} (down) to each (across), logarithmic; the darkest is {round(most):,} bytes"
    ]
    if most > 0:
        # From the smallest cell that is not empty to the largest.
        least = np.log(grid[grid > 0].min())
        span = max(float(np.log(most) - least), 1e-9)
        level = np.zeros(grid.shape, dtype=np.int64)
        filled = grid > 0
        level[filled] = 1 + np.minimum(
            ((np.log(grid[filled]) - least) / span * (len(SHADES) - 1)).astype(np.int64), len(SHADES) - 2
        )
    else:
        level = np.zeros(grid.shape, dtype=np.int64)
    lines += ["│" + "".join(SHADES[int(v)] * 2 for v in row) + "│" for row in level]
    return "\n".join(lines)


def write_png(pattern: Pattern, path: Path, *, phase: int | None = None) -> None:
    """Raises PatternError where the file cannot be written."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure

    grid = cells(pattern, MOST_CELLS, phase=phase)
    figure = Figure(figsize=(7, 6), layout="constrained")
    axes = figure.add_subplot()
    shown = np.ma.masked_equal(grid, 0.0)
    extent = (-0.5, pattern.ranks - 0.5, pattern.ranks - 0.5, -0.5)
    if grid.max(initial=0.0) > 0:
        norm = LogNorm(
            vmin=float(grid[grid > 0].min()), vmax=float(max(grid.max(), grid[grid > 0].min() * 1.01))
        )
        image = axes.imshow(shown, norm=norm, cmap="viridis_r", interpolation="nearest", extent=extent)
        figure.colorbar(image, ax=axes, label="bytes")
    else:
        axes.set_xlim(extent[:2])
        axes.set_ylim(extent[2:])
        axes.text(pattern.ranks / 2, pattern.ranks / 2, "nothing was sent", ha="center")
    axes.set_xlabel("destination rank")
    axes.set_ylabel("source rank")
    program = pattern.run.get("program", "")
    when = "" if phase is None else f", phase {phase}"
    axes.set_title(f"{program or 'pattern'}: {pattern.ranks} ranks{when}")
    drawn = io.BytesIO()
    # Without the library's name and version: equal patterns give equal bytes.
    FigureCanvasAgg(figure).print_figure(drawn, dpi=DPI, format="png", metadata={"Software": None})
    write_whole(path, drawn.getvalue())
