"""The report of a run: one HTML file that needs nothing from outside.

Arrives: the folder of a run.
Leaves: `report.html` in it, and the comparison table as text.
Must not know: how the run was made.
"""

from __future__ import annotations

import html
import os
from collections.abc import Sequence
from pathlib import Path

from waystage.experiment import figures
from waystage.experiment.results import REPORT_FILE, PortSample, RunResult, load, load_timelines
from waystage.experiment.summary import TABLE_COLUMNS, Summary, summarise, table_rows

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
h1 { font-size: 1.6rem } h2 { font-size: 1.15rem; margin-top: 2.2rem }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { text-align: left; padding: .25rem .9rem .25rem 0; border-bottom: 1px solid #ddd }
td:nth-child(3), td:nth-child(4), td:nth-child(5) { white-space: nowrap }
.invalid { background: #fde8e4; border-left: 4px solid #d0402b; padding: .6rem 1rem }
.note { color: #555 } svg { max-width: 100%; height: auto } code { font-size: .92em }
"""


def write_report(folder: Path) -> Path:
    """Make `report.html` anew from what is in `folder`. Raises ResultError."""
    result = load(folder)
    samples = load_timelines(folder)
    page = render(result, summarise(result), samples)
    path = folder / REPORT_FILE
    part = path.with_suffix(".part")
    part.write_text(page, encoding="utf-8")
    os.replace(part, path)
    return path


def render(result: RunResult, summary: Summary, samples: Sequence[PortSample]) -> str:
    """The page. A pure function: the same run gives the same page."""
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{_text(result.name)}: results</title>",
        f"<style>{_STYLE}</style>",
        f"<h1>{_text(result.name)}</h1>",
        f"<p>{_text(result.experiment.description)}</p>" if result.experiment.description else "",
        _status(result),
        "<h2>Comparison</h2>",
        _table(result, summary),
        "<p class=note>Means with 95 % bootstrap intervals. Policies are compared set by set: a set has the same jobs, "
        "arrival times and hash seed under each policy. The paper's numbers are those of its own cluster at 1 Gbit/s.</p>",
    ]
    if summary.times_s:
        parts += ["<h2>Times per policy (as Fig. 11)</h2>", figures.times_by_policy(result, summary)]
    if any(summary.set_means_s.values()):
        parts += ["<h2>Mean job time per set (as Fig. 12)</h2>", figures.times_by_set(result, summary)]
    parts += _timelines(result, samples)
    if summary.switching:
        parts += [
            "<h2>Switching time by part (as Fig. 14)</h2>",
            figures.switching_times(result, summary),
            "<p class=note>From the publication of the event to the answer of the last barrier. The paper: 2,200 ms "
            "OFF to ON (processor 8.5, path searcher 170, flow entries 2,010), 310 ms ON to OFF.</p>",
        ]
    parts += ["<h2>Run</h2>", _run(result)]
    return "\n".join(part for part in parts if part) + "\n</html>\n"


def _status(result: RunResult) -> str:
    blocks = [f"<p class=invalid><b>Not valid:</b> {_text(reason)}</p>" for reason in result.invalid]
    if result.interrupted:
        blocks.append("<p class=invalid><b>Interrupted:</b> what had finished by then is shown.</p>")
    if result.failure:
        blocks.append(f"<p class=invalid><b>Ended early:</b> {_text(result.failure)}</p>")
    failed = [job for job in result.jobs if job.status == "failed"]
    for job in failed[:10]:
        blocks.append(
            f"<p class=invalid>Job {_text(job.job_id)} under {_text(job.policy)} failed: {_text(job.cause)}</p>"
        )
    if len(failed) > 10:
        blocks.append(f"<p class=invalid>{len(failed) - 10} more jobs failed; see result.json.</p>")
    blocks += [f"<p class=note>{_text(note)}</p>" for note in result.notes]
    return "\n".join(blocks)


def _table(result: RunResult, summary: Summary) -> str:
    head = "".join(f"<th>{_text(name)}</th>" for name in TABLE_COLUMNS)
    rows = []
    for row in table_rows(result, summary):
        rows.append("<tr>" + "".join(f"<td>{_text(str(row[name]))}</td>" for name in TABLE_COLUMNS) + "</tr>")
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>"


def _timelines(result: RunResult, samples: Sequence[PortSample]) -> list[str]:
    """One set, the first that every policy ran, under each policy in turn."""
    parts: list[str] = []
    sets = {policy: {s.set for s in samples if s.policy == policy} for policy in result.policies}
    common = set.intersection(*sets.values()) if sets else set()
    for policy in result.policies:
        chosen = min(common or sets[policy], default=None)
        if chosen is None:
            continue
        drawing = figures.port_timelines(result, samples, policy, chosen)
        if drawing is not None:
            parts += [
                f"<h2>Bandwidth by core port and class, {_text(policy)}, set {chosen + 1} (as Figs. 13, 15)</h2>",
                drawing,
            ]
    if parts:
        parts.append(
            "<p class=note>Shaded: a stage-in or stage-out under way. All sets are in timelines.parquet.</p>"
        )
    return parts


def _run(result: RunResult) -> str:
    machine = result.machine
    rows = {
        "world": result.world,
        "started": result.started,
        "took": f"{result.wall_s:.0f} s",
        "topology": result.experiment.topology,
        "sets": result.experiment.sets,
        "seed": result.experiment.seed,
        "machine": f"{machine.get('cores', '?')} cores, {machine.get('processor', '')}, kernel {machine.get('kernel', '?')}",
        "idle CPU": f"{result.idle_pct:.0f} % (lowest second {result.lowest_idle_pct:.0f} %)",
        "drops": f"{sum(d.cpu for d in result.drops)} for want of CPU, {sum(d.queue for d in result.drops)} at full queues",
        "Waystage": result.waystage,
    }
    cells = "".join(f"<tr><td>{_text(k)}</td><td>{_text(str(v))}</td></tr>" for k, v in rows.items())
    return f"<table>{cells}</table>"


def _text(text: str) -> str:
    return html.escape(text, quote=True)
