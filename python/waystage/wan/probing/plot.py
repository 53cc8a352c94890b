"""A text plot of the rates tried.

Arrives: the points of a sweep.
Leaves: lines: offered and delivered rate, loss and queueing delay.
Must not know: terminals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from waystage.wan.probing.points import Point
from waystage.wan.probing.report import rate_text

BLOCKS = " ▏▎▍▌▋▊▉█"
"""Eighths of a cell, so that a bar of ten cells has eighty lengths."""


def bar(share: float, width: int) -> str:
    """A bar over `share` of `width` cells."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + (BLOCKS[rest] if rest else "")).ljust(width)


def plot(points: Sequence[Point], base_ns: int, width: int = 80) -> str:
    """Rates on a logarithmic scale, losses and delays on a linear one, each relative to the largest."""
    if not points:
        return ""
    rows = sorted(points, key=lambda p: p.target_bps)
    cells = max(6, (width - 52) // 3)
    least = math.log(min(p.target_bps for p in rows) / 2)
    most_log = math.log(max(p.offered_bps for p in rows) or 2.0)
    span = max(most_log - least, 1e-9)
    most_loss = max(max(p.loss for p in rows), 0.01)
    waits = [max(0, p.median_ns - base_ns) / 1e6 for p in rows]
    most_wait = max(*waits, 1.0) if len(waits) > 1 else max(waits[0], 1.0)
    head = f"{'offered':>12}  {'delivered':<{cells + 13}} {'loss':<{cells + 8}} {'waiting':<{cells + 9}}"
    lines = [head.rstrip()]
    for p, wait in zip(rows, waits, strict=True):
        came = (math.log(p.delivered_bps) - least) / span if p.delivered_bps > 0 else 0.0
        line = (
            f"{rate_text(p.offered_bps):>12}  {bar(came, cells)} {rate_text(p.delivered_bps):>12} "
            f"{bar(p.loss / most_loss, cells)} {100 * p.loss:5.1f} % {bar(wait / most_wait, cells)} {wait:6.1f} ms"
        )
        lines.append(line.rstrip() + ("  (machine)" if p.machine else ""))
    return "\n".join(lines)
