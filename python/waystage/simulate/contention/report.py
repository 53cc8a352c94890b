"""The report of a study: the four panels of SwiftLoad's Fig. 7, and a table.

Arrives: a result.
Leaves: `report.html`, `plots/*.svg`.
Must not know: how the numbers came about.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from waystage.experiment import page
from waystage.experiment.drawing import COLOURS, new_figure, svg
from waystage.simulate.contention.run import ContentionResult, Point

REPORT_FILE = "report.html"
PLOTS_FOLDER = "plots"


def write_report(result: ContentionResult, out: Path) -> Path:
    """Make the page and the plots."""
    plots = {
        "imbalance": _imbalance(result.points),
        "stragglers": _stragglers(result.points),
        "file-against-object": _against(result.points),
        "loaders-chosen": _chosen(result.points),
    }
    titles = {
        "imbalance": "Contention imbalance by loaders a target (Fig. 7a)",
        "stragglers": "Stragglers by contention imbalance (Fig. 7b)",
        "file-against-object": "File level and ideal object level (Fig. 7c)",
        "loaders-chosen": "Object level, with all loaders and with as many as are best (Fig. 7d)",
    }
    model = result.study.contention
    parts = [
        f"<p>{page.text(result.study.description)}</p>" if result.study.description else "",
        *(f"<h2>{page.text(titles[name])}</h2>{drawing}" for name, drawing in plots.items()),
        "<h2>Figures</h2>",
        page.table(table_rows(result.points), list(table_rows(result.points)[0])),
        "<p class=note>Times are in units in which one loader alone reads one object. Means over "
        f"{len(result.study.seeds)} placements of files.</p>",
        "<h2>Study</h2>",
        page.facts(
            {
                "targets": model.targets,
                "files": f"{model.files:,}",
                "objects": ", ".join(f"{n:,}" for n in result.objects),
                "best number of loaders on a target": result.best_loaders,
                "files are dealt": {"queue": "from a queue", "cyclic": "in turn"}[model.dealing],
                "seeds": ", ".join(map(str, result.study.seeds)),
                "waystage": result.waystage,
            }
        ),
    ]
    folder = out / PLOTS_FOLDER
    folder.mkdir(exist_ok=True)
    for name, drawing in plots.items():
        page.write(folder / f"{name}.svg", '<?xml version="1.0" encoding="utf-8"?>\n' + drawing)
    path = out / REPORT_FILE
    page.write(path, page.page(result.study.name, parts))
    return path


def table_rows(points: Sequence[Point]) -> list[Mapping[str, Any]]:
    """A row for each ratio, as the report and the terminal show it."""
    return [
        {
            "ratio": f"{p.ratio}:1",
            "imbalance": f"{p.imbalance:.3f}",
            "stragglers": f"{p.straggler_ratio:.3f}",
            "file level": f"{p.file_level:,.0f}",
            "ideal object level": f"{p.ideal_object_level:,.0f}",
            "object level": f"{p.object_level:,.0f}",
            "loaders chosen": f"{p.chosen:,.0f}",
        }
        for p in points
    ]


def _plot(points: Sequence[Point], curves: Mapping[str, Sequence[float]], what: str, *, log: bool) -> str:
    figure, axes = new_figure(7, 3.2)
    ratios = [p.ratio for p in points]
    for i, (name, values) in enumerate(curves.items()):
        axes.plot(ratios, values, marker="o", markersize=3, linewidth=1.3, color=COLOURS[i], label=name)
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


def _imbalance(points: Sequence[Point]) -> str:
    return _plot(points, {"CI": [p.imbalance for p in points]}, "contention imbalance", log=False)


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
        # Names of points that lie on one another cannot be read.
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


def _against(points: Sequence[Point]) -> str:
    curves = {
        "file level": [p.file_level for p in points],
        "ideal object level": [p.ideal_object_level for p in points],
    }
    return _plot(points, curves, "time, units", log=True)


def _chosen(points: Sequence[Point]) -> str:
    curves = {
        "object level, all loaders": [p.object_level for p in points],
        "object level, loaders chosen": [p.chosen for p in points],
    }
    return _plot(points, curves, "time, units", log=True)
