"""The figure of collective operations: which application was in one when, for how long it waited, and its epochs.

Arrives: a `RunResult`.
Leaves: an SVG text that loads nothing from outside.
Must not know: HTML, files, policies.

After Figs. 10 and 16 of Isaila et al., "CLARISSE".
"""

from __future__ import annotations

from waystage.experiment.drawing import CLASS_COLOURS, new_figure, svg
from waystage.experiment.results import IoRecord, RunResult

MOST_ROWS = 24
"""Applications drawn; more rows would be too thin."""


def timeline(result: RunResult, policy: str, set_index: int) -> str:
    """Operations of each job of one set under one policy over time, s from the start of the first job."""
    records = [r for r in result.io if r.policy == policy and r.set == set_index]
    rows = sorted({r.index for r in records})[:MOST_ROWS]
    jobs = [j for j in result.jobs if j.policy == policy and j.set == set_index]
    start = min((j.started_at_s for j in jobs), default=min(r.requested_at_s for r in records))
    figure, axes = new_figure(9, 0.9 + 0.42 * len(rows))
    axes.grid(axis="y", visible=False)
    for row, index in enumerate(rows):
        colour = CLASS_COLOURS["io"]
        mine = sorted((r for r in records if r.index == index), key=lambda r: r.op)
        begun = [(r.requested_at_s - start, r) for r in mine]
        axes.broken_barh([(at, r.waited_s) for at, r in begun], (row - 0.3, 0.6), color=colour, alpha=0.25)
        moving = [(at + r.waited_s, r.took_s) for at, r in begun]
        axes.broken_barh(moving, (row - 0.3, 0.6), color=colour)
        for record in _first_of_epochs(mine):
            at = record.requested_at_s - start + record.waited_s
            axes.plot([at, at], [row - 0.42, row + 0.42], color="#222", linewidth=1.0)
            axes.annotate(
                str(record.aggregators),
                (at, row + 0.42),
                (2, 0),
                textcoords="offset points",
                fontsize=6,
                va="center",
            )
    names = {r.index: r.job_id for r in records}
    axes.set_yticks(range(len(rows)), [names[index] for index in rows], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xlabel("seconds", fontsize=8)
    return svg(figure)


def _first_of_epochs(records: list[IoRecord]) -> list[IoRecord]:
    """The first operation of each epoch that is known; of a single epoch too."""
    found: dict[int, IoRecord] = {}
    for record in records:
        if record.epoch:
            found.setdefault(record.epoch, record)
    return list(found.values())
