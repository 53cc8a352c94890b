"""Pictures of one set of a run: its jobs over time, and what links between switches carried.

Arrives: a `RunResult` and its timelines.
Leaves: SVG texts that load nothing from outside.
Must not know: HTML, files, policies.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from waystage.experiment.drawing import CLASS_COLOURS, WAITING_COLOUR, draw_lines, style, svg
from waystage.experiment.results import JobRecord, RunResult
from waystage.experiment.timelines import PortSample, Timelines

MOST_JOBS = 40
"""Jobs drawn; more rows would be too thin."""

MOST_SWITCHES = 64
"""Switches of a drawn topology; names of more cannot be read."""

PARTS = (
    ("in the queue", WAITING_COLOUR),
    ("stage-in and stage-out", CLASS_COLOURS["staging"]),
    ("computation", CLASS_COLOURS["mpi"]),
)


def jobs(result: RunResult, set_index: int) -> str:
    """A Gantt chart of the jobs of one set under each policy, s from the first submission."""
    by_policy = {
        policy: sorted(
            (job for job in result.jobs if job.policy == policy and job.set == set_index),
            key=lambda job: (job.started_at_s, job.index),
        )[:MOST_JOBS]
        for policy in result.policies
    }
    by_policy = {policy: found for policy, found in by_policy.items() if found}
    rows = max(len(found) for found in by_policy.values())
    figure = Figure(figsize=(9, len(by_policy) * (0.7 + 0.2 * rows) + 0.5), layout="constrained")
    FigureCanvasSVG(figure)
    grid = figure.subplots(len(by_policy), 1, sharex=True, squeeze=False).ravel()
    for axes, (policy, found) in zip(grid, by_policy.items(), strict=True):
        style(axes)
        axes.grid(axis="y", visible=False)
        start = min(_submitted(job) for job in found)
        for row, job in enumerate(found):
            for (_, colour), spans in zip(PARTS, _spans(job, start), strict=True):
                axes.broken_barh(spans, (row - 0.36, 0.72), color=colour, linewidth=0)
            if job.status == "failed":
                axes.annotate(" failed", (job.ended_at_s - start, row), fontsize=6, va="center")
        axes.set_yticks(
            range(len(found)),
            [f"{job.kind} {job.index + 1}, {len(job.nodes)} nodes" for job in found],
            fontsize=6,
        )
        axes.invert_yaxis()
        axes.set_xlim(left=0)
        axes.set_title(policy, fontsize=9, loc="left")
    grid[-1].set_xlabel("seconds", fontsize=8)
    handles = [grid[0].broken_barh([], (0, 0), color=colour, label=name) for name, colour in PARTS]
    figure.legend(handles=handles, loc="outside upper right", ncols=3, frameon=False, fontsize=8)
    return svg(figure)


def _submitted(job: JobRecord) -> float:
    return min(job.submitted_at_s, job.started_at_s) if job.submitted_at_s else job.started_at_s


def _spans(job: JobRecord, start: float) -> list[list[tuple[float, float]]]:
    """(begin, length) of each of PARTS."""
    submitted, began, ended = _submitted(job) - start, job.started_at_s - start, job.ended_at_s - start
    computes = began + job.stage_in_s
    staging = [(began, job.stage_in_s), (ended - job.stage_out_s, job.stage_out_s)]
    return [
        [(submitted, began - submitted)] if began > submitted else [],
        [span for span in staging if span[1] > 0],
        [(computes, max(0.0, ended - job.stage_out_s - computes))],
    ]


def link_loads(result: RunResult, timelines: Timelines, set_index: int) -> str | None:
    """The switches in tiers under each policy, each link with the mean rate of its busier direction; None where nothing
    is known or the switches are too many to draw."""
    chosen = timelines.where(set=set_index)
    if not chosen or len({*chosen.distinct("node"), *chosen.distinct("peer")}) > MOST_SWITCHES:
        return None
    mine = list(chosen)
    places = _places(mine)
    policies = [policy for policy in result.policies if any(s.policy == policy for s in mine)]
    loads = {policy: _mean_mbps([s for s in mine if s.policy == policy]) for policy in policies}
    most = max((rate for found in loads.values() for rate in found.values()), default=0.0) or 1.0
    figure = Figure(figsize=(9, 2.4 * len(policies)), layout="constrained")
    FigureCanvasSVG(figure)
    grid = figure.subplots(len(policies), 1, squeeze=False).ravel()
    for axes, policy in zip(grid, policies, strict=True):
        found = loads[policy]
        ends = [(places[a], places[b]) for a, b in found]
        draw_lines(axes, ends, list(found.values()), 2.5, most, "Mbit/s, mean")
        for name, (x, y) in places.items():
            axes.plot([x], [y], "s", color="#222", markersize=5)
            axes.annotate(name, (x, y), (0, 6), textcoords="offset points", ha="center", fontsize=6)
        axes.set_title(policy, fontsize=9, loc="left")
        axes.margins(0.08, 0.2)
        axes.axis("off")
    return svg(figure)


def _mean_mbps(samples: Sequence[PortSample]) -> dict[tuple[str, str], float]:
    """(switch, switch) in order -> the mean rate of the busier direction over the time of all samples."""
    seconds = sum({s.at_s: s.interval_s for s in samples}.values())
    sent: dict[tuple[str, str], dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for s in samples:
        sent[s.node, s.peer]["port" if s.traffic == "all" else "classes"] += s.bytes
    one_way = {link: 8e-6 * (by.get("port") or by["classes"]) / seconds for link, by in sent.items()}
    links = sorted({(min(link), max(link)) for link in one_way})
    return {(a, b): max(one_way.get((a, b), 0.0), one_way.get((b, a), 0.0)) for a, b in links}


def _places(samples: Sequence[PortSample]) -> dict[str, tuple[float, float]]:
    """Switches by their distance from the core, which is on top, spread evenly over the width."""
    near: dict[str, set[str]] = defaultdict(set)
    for s in samples:
        near[s.node].add(s.peer)
        near[s.peer].add(s.node)
    tier = {s.node: 0 for s in samples if s.core}
    front = sorted(tier)
    while front:
        front = sorted({n for name in front for n in near[name] if n not in tier})
        depth = max(tier.values()) + 1
        tier |= dict.fromkeys(front, depth)
    places = {}
    for depth in sorted(set(tier.values())):
        names = sorted((n for n, d in tier.items() if d == depth), key=lambda n: (len(n), n))
        for i, name in enumerate(names):
            places[name] = ((i + 0.5) / len(names), float(-depth))
    return places
