"""The report of a sweep: one HTML file that needs nothing from outside, and its figures as files.

Arrives: a sweep's result, the clusters, the loads of its runs.
Leaves: `report.html`, `plots/*.svg`.
Must not know: how runs are made.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from waystage.experiment import page
from waystage.experiment.results import RunRecord, SweepResult
from waystage.experiment.sweep_summary import Combined, columns, summarise, table_rows
from waystage.experiment.units import format_bytes
from waystage.simulate import figures
from waystage.simulate.cluster import BITS_PER_BYTE
from waystage.simulate.combinations import combinations
from waystage.simulate.loading import Loaded
from waystage.simulate.positions import positions_of
from waystage.simulate.records import FinishedRun
from waystage.simulate.results import best_runs
from waystage.simulate.store import Store
from waystage.topology import format_rate

MOST_ROWS = 500
"""Rows of the page's table; all are in result.json."""

CURVES = 6
"""Runs whose load distributions are drawn beside one another."""


def write_report(loaded: Loaded, folder: Path, result: SweepResult) -> Path:
    """Make the report and the plots from what the folder holds."""
    rows = summarise(result)
    plots: dict[str, str] = {}
    parts = [
        f"<p>{page.text(result.description)}</p>" if result.description else "",
        *(page.alert(text) for text in loaded.warnings),
        *_status(result),
        page.section("Combinations", _table(rows, result.mode)),
        page.note(_explained(result)),
    ]
    if any(row.max_load_bytes for row in rows):
        plots["largest-loads"] = figures.largest_loads(rows)
        heading = "Largest load by combination (as Figs. 2.11 and 2.12 of Takahashi 2019)"
        parts.append(page.section(heading, plots["largest-loads"]))
    for label in loaded.labels:
        parts += _topology(loaded, folder, result, label, plots)
    parts.append(page.section("Sweep", page.facts(_facts(loaded, result))))
    return page.write_report(folder, page.page(result.name, parts), plots)


def _status(result: SweepResult) -> list[str]:
    shown = f"{len(result.runs)} of {result.planned} runs are shown; the same command makes the others."
    blocks = [page.alert(shown, "Interrupted")] if result.interrupted else []
    return blocks + page.alerts(
        "runs", [f"Run {run.number} ({run_name(run)}): {run.cause}" for run in result.failed]
    )


def run_name(run: RunRecord) -> str:
    """All that was chosen."""
    return f"{run.scheduler}, {run.host_selector}, {run.process_mapper}, {run.router}, seed {run.seed}"


def _table(rows: Sequence[Combined], mode: str) -> str:
    shown = table_rows(rows, mode, columns(rows))
    if not shown:
        return "<p>No run has finished.</p>"
    more = len(shown) - MOST_ROWS
    note = page.note(f"{more} more combinations are in result.json.") if more > 0 else ""
    return page.table(shown[:MOST_ROWS], list(shown[0])) + note


def _explained(result: SweepResult) -> str:
    what = (
        "what crossed the busiest link between two switches"
        if result.mode == "time"
        else "the most that all jobs running at the same time send over one link between two switches"
    )
    return (
        f"Max load: {what}; bound: what no routing over the same kind of paths (shortest ones, or all for valiant, ugal and "
        "your own) can beat with the same jobs on the same hosts; gap: how far above it. "
        "Relative: to the first combination. Imbalance: the busiest link by the mean. "
        "The spread is over seeds: a 95 % interval (Student's t) of five or more, the range of fewer. "
        "Every combination has the same jobs, arrivals and lengths under the same seed."
    )


def _topology(
    loaded: Loaded, folder: Path, result: SweepResult, label: str, plots: dict[str, str]
) -> list[str]:
    """The first and the best run of a topology, coloured, and the distributions of some."""
    runs = [r for r in result.runs if r.topology == label and r.status == "done" and r.metrics.started]
    if not runs:
        return []
    best = [r for r in best_runs(result) if r.topology == label]
    few = sorted(runs, key=lambda r: (r.metrics.max_load_bytes, r.number))[: CURVES - 1]
    wanted = {r.number: r for r in [runs[0], *best, *few]}
    loads = _peaks(loaded, folder, set(wanted))
    cluster = loaded.clusters[loaded.labels.index(label)]
    differing = columns(summarise(result))
    names = {
        n: " ".join(str(getattr(r, c)) for c in differing)
        + (f" seed {r.seed}" if len(result.seeds) > 1 else "")
        for n, r in wanted.items()
    }
    curves = {names[n]: loads[n].peak_loads() for n in sorted(wanted) if n in loads}
    suffix = "" if len(loaded.labels) == 1 else f"-{label}"
    plots[f"load-distribution{suffix}"] = figures.load_distribution(
        cluster, curves, f"Load of every link, {label}"
    )
    parts = [page.section(f"Load distribution, {label}", plots[f"load-distribution{suffix}"])]
    choice = loaded.sweep.topology[loaded.labels.index(label)]
    positions = positions_of(cluster, choice.kind, choice.params)
    for run, what in dict.fromkeys([(runs[0], "the first run"), (best[0], "the best run")]):
        drawing = figures.coloured_topology(
            cluster,
            loads[run.number].peak_loads(),
            positions,
            names[run.number] if "topology" in differing else f"{label}: {names[run.number]}",
            run.metrics.bound_bytes,
        )
        if drawing is not None:
            plots[f"topology{suffix}-run-{run.number}"] = drawing
            parts.append(page.section(f"{label} in {what}: {names[run.number]}", drawing))
            if run.number == best[0].number:
                break
        else:
            parts.append(page.note(f"{label} has too many links to draw."))
            break
    return parts


def _peaks(loaded: Loaded, folder: Path, numbers: set[int]) -> dict[int, FinishedRun]:
    store = Store(folder, loaded)
    found = {}
    for which in combinations(loaded):
        if which.number in numbers:
            run = store.get(which)
            if run is not None:
                found[which.number] = run
    return found


def _facts(loaded: Loaded, result: SweepResult) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "mode": result.mode,
        "simulated time": f"{result.duration_s:g} s",
        "seeds": ", ".join(map(str, result.seeds[:20])) + (", ..." if len(result.seeds) > 20 else ""),
        "runs": f"{len(result.runs)} of {result.planned}",
    }
    for topology, cluster in zip(result.topologies, loaded.clusters, strict=True):
        rates = sorted({format_rate(rate) for rate in (cluster.capacity * BITS_PER_BYTE).tolist()})
        facts[f"topology {topology.label}"] = (
            f"{topology.hosts} hosts with {topology.slots} slots for jobs, {topology.switches} switches, "
            f"{topology.links} links of {', '.join(rates[:4])}{' and other rates' if len(rates) > 4 else ''}"
        )
    for source in result.sources:
        facts[f"jobs {source.name}"] = f"{source.ranks} ranks, {format_bytes(source.bytes)}"
    facts["Waystage"] = result.waystage
    return facts
