"""The papers' figures as SVG.

Arrives: a `RunResult`, its summary and its timelines; the points of a contention study.
Leaves: SVG texts that load nothing from outside.
Must not know: HTML, files.

Numbers in the names are those of Endo et al. 2020: Fig. 11 (times by policy), Fig. 12 (by job set), Fig. 13 and 15
(bandwidth by port and class), Fig. 14 (switching time by part).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from numpy.typing import NDArray

from waystage.experiment.drawing import CLASS_COLOURS, COLOURS, STEP_COLOURS, new_figure, style, svg
from waystage.experiment.results import Point, RunResult
from waystage.experiment.summary import QUANTITIES, Estimate, Summary
from waystage.experiment.timelines import Timelines

MOST_BINS = 600
"""Of a timeline: thinner ones are less than a pixel wide."""

MOST_PORTS = 32
"""Of a figure of timelines; its time grows with the square of their number."""

SWITCHED = {"on": ("--", "paths separated"), "off": (":", "paths shared again")}
"""Line and meaning of a switch-over."""


def times_by_policy(result: RunResult, summary: Summary) -> str:
    """Fig. 11: mean job, computation and staging time per policy, with 95 % intervals, or the range of fewer than five sets."""
    figure, axes = new_figure(7.2, 3.4)
    policies = list(summary.times_s)
    width = 0.8 / max(1, len(policies))
    for i, policy in enumerate(policies):
        estimates = [summary.times_s[policy][name] for name in QUANTITIES]
        at = [x + (i - (len(policies) - 1) / 2) * width for x in range(len(estimates))]
        axes.bar(at, [e.value for e in estimates], width * 0.92, label=policy, color=_colour(result, policy))
        axes.errorbar(
            at, [e.value for e in estimates], yerr=_bounds(estimates), fmt="none", ecolor="#222", capsize=3
        )
        for x, estimate in zip(at, estimates, strict=True):
            axes.annotate(
                f"{estimate.value:.2f}",
                (x, 0),
                (0, 3),
                textcoords="offset points",
                ha="center",
                fontsize=7,
                color="white",
            )
    axes.set_xticks(range(len(QUANTITIES)), [f"{name} time" for name in QUANTITIES])
    axes.set_ylabel("seconds")
    shown = [e for times in summary.times_s.values() for e in times.values() if e.low is not None]
    if shown:
        kind = "range" if shown[0].is_range else "95 % interval"
        axes.set_title(f"mean and {kind} over {shown[0].count} sets", fontsize=9)
    axes.legend(frameon=False, fontsize=8)
    return svg(figure)


def times_by_set(result: RunResult, summary: Summary) -> str:
    """Fig. 12: mean job time of each set, per policy."""
    figure, axes = new_figure(9, 3.2)
    numbers = sorted({n for means in summary.set_means_s.values() for n in means})
    policies = [p for p, means in summary.set_means_s.items() if means]
    width = 0.8 / max(1, len(policies))
    for i, policy in enumerate(policies):
        means = summary.set_means_s[policy]
        xs = [numbers.index(n) + (i - (len(policies) - 1) / 2) * width for n in means]
        axes.bar(
            xs, [m["job"] for m in means.values()], width * 0.95, label=policy, color=_colour(result, policy)
        )
    axes.set_xticks(range(len(numbers)), [str(n + 1) for n in numbers], fontsize=7)
    axes.set_xlabel("job set")
    axes.set_ylabel("mean job time, s")
    axes.legend(frameon=False, fontsize=8, ncols=3)
    return svg(figure)


def switching_times(result: RunResult, summary: Summary) -> str:
    """Fig. 14: mean time of a switch-over by part; what the parts leave over is the event's way there and back."""
    figure, axes = new_figure(7.2, 0.9 + 0.45 * max(1, len(summary.switching)))
    labels = []
    for y, switching in enumerate(summary.switching):
        parts = {
            "processor": switching.processor_ms,
            "planner": switching.planner_ms,
            "flow entries": switching.install_ms,
        }
        rest = max(0.0, switching.total_ms.value - sum(parts.values()))
        left = 0.0
        steps = (parts | {"event's way": rest}).items()
        for (name, value), colour in zip(steps, STEP_COLOURS, strict=True):
            axes.barh(y, value, left=left, height=0.6, color=colour, label=name if y == 0 else None)
            left += value
        axes.annotate(f" {left:.1f} ms", (left, y), va="center", fontsize=8)
        labels.append(f"{switching.policy}, {'OFF to ON' if switching.to == 'on' else 'ON to OFF'}")
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds, mean")
    axes.margins(x=0.18)
    axes.legend(frameon=False, fontsize=8, ncols=4, loc="upper center", bbox_to_anchor=(0.45, -0.38))
    return svg(figure)


def port_timelines(result: RunResult, timelines: Timelines, policy: str, set_index: int) -> str | None:
    """Figs. 13 and 15: bandwidth per core port and class over one set, with stagings and the moments at which paths
    were separated and shared again; None without samples.

    A bin is a reading of the counters; of a long set as many readings as leave MOST_BINS. Of many ports those that
    sent most are drawn, MOST_PORTS; where stagings are more than bins, none is.
    """
    chosen = timelines.where(policy=policy, set=set_index, core=True)
    if not len(chosen):
        return None
    at_s, interval_s = chosen.numbers("at_s"), chosen.numbers("interval_s")
    start = float(np.min(at_s - interval_s))
    bins = _Bins.of(at_s, interval_s)
    ports = chosen.busiest(MOST_PORTS)
    stagings = _stagings(result, policy, set_index, start)
    xs = [0.0, *(bins.ends_s - start)]
    columns = 2
    rows = math.ceil(len(ports) / columns)
    # Neither shared axes nor a layout by constraints: the time of both grows with the square of the plots.
    height = 1.9 * rows + 0.9
    figure = Figure(figsize=(9, height))
    FigureCanvasSVG(figure)
    figure.subplots_adjust(0.08, 0.45 / height, 0.985, 1 - 0.65 / height, wspace=0.04, hspace=0.3)
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    highest = 0.0
    for axes, key in zip(grid, ports, strict=False):
        style(axes)
        of_port = chosen.where(node=key[0], port=key[1], peer=key[2])
        # A class without a sample had nothing on this port then.
        rates = {t: bins.mbps(of_port.where(traffic=t)) for t in sorted(of_port.distinct("traffic"))}
        floor = np.zeros(len(bins.ends_s))
        for traffic in (t for t in rates if t != "all"):
            top = floor + rates[traffic]
            steps = {"step": "pre", "color": CLASS_COLOURS.get(traffic, "#000"), "linewidth": 0}
            axes.fill_between(xs, [floor[0], *floor], [top[0], *top], label=traffic, **steps)
            floor = top
        highest = max(highest, *(float(np.max(rate)) for rate in (floor, *rates.values())))
        if "all" in rates:
            axes.step(
                xs, [rates["all"][0], *rates["all"]], color="#222", label="port's counter", linewidth=0.7
            )
        for low, high in stagings if len(stagings) <= MOST_BINS else ():
            axes.axvspan(low, high, color=CLASS_COLOURS["staging"], alpha=0.10, linewidth=0, zorder=0)
        for over in result.switch_overs:
            if (over.policy, over.set) == (policy, set_index):
                dashes, label = SWITCHED[over.to]
                axes.axvline(over.at_s - start, color="#222", linewidth=0.8, linestyle=dashes, label=label)
        axes.set_title(f"port {key[1]} on {key[0]}, to {key[2]}", fontsize=8)
    for number, axes in enumerate(grid):
        axes.set_visible(number < len(ports))
        axes.set_xlim(0.0, xs[-1])
        axes.set_ylim(0.0, 1.05 * highest or 1.0)
        below, first = number + columns < len(ports), number % columns == 0
        axes.tick_params(labelbottom=not below, labelleft=first)
        axes.set_xlabel("" if below else "seconds", fontsize=8)
        axes.set_ylabel("Mbit/s" if first else "", fontsize=8)
    handles: dict[str, Any] = {}
    for axes in grid:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    figure.legend(handles.values(), handles.keys(), loc="upper right", ncols=4, frameon=False, fontsize=8)
    return svg(figure)


class _Bins(msgspec.Struct, frozen=True):
    """Readings of counters at `at_s`, in order, and the number of the bin of each; by bin when it ends, and its length."""

    at_s: NDArray[np.float64]
    numbers: NDArray[np.int64]
    ends_s: NDArray[np.float64]
    lengths_s: NDArray[np.float64]

    @classmethod
    def of(cls, at_s: NDArray[np.float64], interval_s: NDArray[np.float64]) -> _Bins:
        """Of samples: when each ends, and its interval."""
        moments, first = np.unique(at_s, return_index=True)
        numbers = np.arange(len(moments)) // math.ceil(len(moments) / MOST_BINS)
        ends = moments[np.flatnonzero(np.diff(numbers, append=-1))]
        lengths: NDArray[np.float64] = np.bincount(numbers, interval_s[first]).astype(np.float64)
        return cls(moments, numbers, ends, lengths)

    def mbps(self, samples: Timelines) -> NDArray[np.float64]:
        """The rate of some samples in each bin."""
        numbers = self.numbers[np.searchsorted(self.at_s, samples.numbers("at_s"))]
        sent = np.bincount(numbers, samples.numbers("bytes"), len(self.ends_s))
        return np.divide(sent * 8 / 1e6, self.lengths_s, out=np.zeros_like(sent), where=self.lengths_s > 0)


def _stagings(result: RunResult, policy: str, set_index: int, start: float) -> list[tuple[float, float]]:
    spans = []
    for job in result.jobs:
        if job.policy == policy and job.set == set_index:
            spans.append((job.started_at_s - start, job.started_at_s + job.stage_in_s - start))
            spans.append((job.ended_at_s - job.stage_out_s - start, job.ended_at_s - start))
    return [(low, high) for low, high in spans if high > low]


def _colour(result: RunResult, policy: str) -> str:
    return COLOURS[result.policies.index(policy) % len(COLOURS)]


def _bounds(estimates: Sequence[Estimate]) -> list[list[float]]:
    lows = [e.value - e.low if e.low is not None else 0.0 for e in estimates]
    highs = [e.high - e.value if e.high is not None else 0.0 for e in estimates]
    return [lows, highs]


# -- contention: the four panels of SwiftLoad's Fig. 7 -------------------------------------------------------

CONTENTION_TITLES = {
    "imbalance": "Contention imbalance by loaders a target (Fig. 7a)",
    "stragglers": "Stragglers by contention imbalance (Fig. 7b)",
    "file-against-object": "File level and ideal object level (Fig. 7c)",
    "loaders-chosen": "Object level, with all loaders and with as many as are best (Fig. 7d)",
}


def contention(points: Sequence[Point]) -> dict[str, str]:
    """The panels by name."""
    time = "time, units"
    return {
        "imbalance": _curves(points, {"CI": "imbalance"}, "contention imbalance", log=False),
        "stragglers": _stragglers(points),
        "file-against-object": _curves(
            points, {"file level": "file_level", "ideal object level": "ideal_object_level"}, time, log=True
        ),
        "loaders-chosen": _curves(
            points,
            {"object level, all loaders": "object_level", "object level, loaders chosen": "chosen"},
            time,
            log=True,
        ),
    }


def _curves(points: Sequence[Point], curves: Mapping[str, str], what: str, *, log: bool) -> str:
    """A curve by label for each field of the points."""
    figure, axes = new_figure(7, 3.2)
    ratios = [p.ratio for p in points]
    for (label, field), colour in zip(curves.items(), COLOURS, strict=False):
        values = [getattr(p, field) for p in points]
        axes.plot(ratios, values, marker="o", markersize=3, linewidth=1.3, color=colour, label=label)
    axes.set_xscale("log", base=2)
    axes.set_xticks(ratios, [f"{r}:1" for r in ratios], fontsize=7)
    if log:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.set_xlabel("loaders to targets", fontsize=8)
    axes.set_ylabel(what, fontsize=8)
    if len(curves) > 1:
        axes.legend(frameon=False, fontsize=7)
    return svg(figure)


def _stragglers(points: Sequence[Point]) -> str:
    figure, axes = new_figure(7, 3.2)
    ordered = sorted(points, key=lambda p: p.imbalance)
    axes.plot(
        [p.imbalance for p in ordered],
        [p.straggler_ratio for p in ordered],
        marker="o",
        markersize=3,
        linewidth=1.3,
        color=COLOURS[0],
    )
    height = max(p.straggler_ratio for p in points) - min(p.straggler_ratio for p in points)
    named: list[Point] = []
    for p in ordered:
        # Overlapping names cannot be read.
        if all(
            abs(p.imbalance - q.imbalance) > 0.05
            or abs(p.straggler_ratio - q.straggler_ratio) > 0.05 * height
            for q in named
        ):
            axes.annotate(f" {p.ratio}:1", (p.imbalance, p.straggler_ratio), fontsize=6, va="bottom")
            named.append(p)
    axes.set_xlabel("contention imbalance", fontsize=8)
    axes.set_ylabel("longest loader to shortest", fontsize=8)
    return svg(figure)
