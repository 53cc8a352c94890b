"""The report of a run: one HTML file that needs nothing from outside.

Arrives: the folder of a run.
Leaves: `report.html` in it, and the comparison table as text.
Must not know: how the run was made.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from waystage.experiment import figures, page
from waystage.experiment.results import REPORT_FILE, PortSample, RunResult, load, load_timelines
from waystage.experiment.summary import TABLE_COLUMNS, Summary, summarise, table_rows


def write_report(folder: Path) -> Path:
    """Make `report.html` anew from what is in `folder`. Raises ResultError."""
    result = load(folder)
    samples = load_timelines(folder)
    path = folder / REPORT_FILE
    page.write(path, render(result, summarise(result), samples))
    return path


def render(result: RunResult, summary: Summary, samples: Sequence[PortSample]) -> str:
    """The page. A pure function: the same run gives the same page."""
    parts = [
        f"<p>{page.text(result.experiment.description)}</p>" if result.experiment.description else "",
        _status(result),
        "<h2>Comparison</h2>",
        page.table(table_rows(result, summary), list(TABLE_COLUMNS)),
        "<p class=note>Means with 95 % intervals (Student's t) over sets; of fewer than five sets the range of their means. Policies are compared set by set: a set has the same jobs, "
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
    return page.page(result.name, parts)


def _status(result: RunResult) -> str:
    blocks = [f"<p class=invalid><b>Not valid:</b> {page.text(reason)}</p>" for reason in result.invalid]
    if result.interrupted:
        blocks.append("<p class=invalid><b>Interrupted:</b> what had finished by then is shown.</p>")
    if result.failure:
        blocks.append(f"<p class=invalid><b>Ended early:</b> {page.text(result.failure)}</p>")
    failed = [job for job in result.jobs if job.status == "failed"]
    for job in failed[:10]:
        blocks.append(
            f"<p class=invalid>Job {page.text(job.job_id)} under {page.text(job.policy)} failed: {page.text(job.cause)}</p>"
        )
    if len(failed) > 10:
        blocks.append(f"<p class=invalid>{len(failed) - 10} more jobs failed; see result.json.</p>")
    blocks += [f"<p class=note>{page.text(note)}</p>" for note in result.notes]
    return "\n".join(blocks)


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
                f"<h2>Bandwidth by core port and class, {page.text(policy)}, set {chosen + 1} (as Figs. 13, 15)</h2>",
                drawing,
            ]
    if parts:
        parts.append(
            "<p class=note>Shaded: a stage-in or stage-out under way. All sets are in timelines.parquet.</p>"
        )
    return parts


def _run(result: RunResult) -> str:
    machine = result.machine
    rows: dict[str, object] = {
        "world": result.world,
        "topology": result.experiment.topology,
        "sets": result.experiment.sets,
        "seed": result.experiment.seed,
        "Waystage": result.waystage,
    }
    if not machine:  # simulated: the same on every machine
        return page.facts(rows)
    rows |= {
        "started": result.started,
        "took": f"{result.wall_s:.0f} s",
        "machine": f"{machine.get('cores', '?')} cores, {machine.get('processor', '')}, kernel {machine.get('kernel', '?')}",
        "idle CPU": f"{result.idle_pct:.0f} % (lowest second {result.lowest_idle_pct:.0f} %)",
        "drops": f"{sum(d.cpu for d in result.drops)} for want of CPU, {sum(d.queue for d in result.drops)} at full queues",
    }
    return page.facts(rows)
