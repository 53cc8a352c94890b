"""The reports of comparisons of policies and of contention studies, as one HTML page each.

Arrives: a result, and the timelines of its folder.
Leaves: `report.html`, and the plots of a study as files.
Must not know: how the run was made.

`simulate.report` makes that of a sweep, for which it needs the clusters.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from waystage.experiment import figures, operations, page
from waystage.experiment.results import ContentionResult, PortSample, RunResult, load_timelines
from waystage.experiment.summary import TABLE_COLUMNS, Summary, contention_rows, summarise, table_rows


def write_report(folder: Path, result: RunResult | ContentionResult) -> Path:
    """Make the report of `result` anew from what `folder` holds. Raises ResultError."""
    if isinstance(result, ContentionResult):
        plots = figures.contention(result.points)
        return page.write_report(folder, render_contention(result, plots), plots)
    content = render(result, summarise(result), load_timelines(folder))
    return page.write_report(folder, content, {})


def render_contention(result: ContentionResult, plots: dict[str, str]) -> str:
    """The page of a study. A pure function."""
    study, model = result.study, result.study.contention
    rows = contention_rows(result.points)
    facts = {
        "targets": model.targets,
        "files": f"{model.files:,}",
        "objects": ", ".join(f"{n:,}" for n in result.objects),
        "best number of loaders on a target": result.best_loaders,
        "files are dealt": {"queue": "from a queue", "cyclic": "in turn"}[model.dealing],
        "seeds": ", ".join(map(str, study.seeds)),
        "Waystage": result.waystage,
    }
    unit = "Times are in units in which one loader alone reads one object. Means over"
    parts = [
        f"<p>{page.text(study.description)}</p>" if study.description else "",
        *(page.section(figures.CONTENTION_TITLES[name], drawing) for name, drawing in plots.items()),
        page.section("Figures", page.table(rows, list(rows[0]))),
        page.note(f"{unit} {len(study.seeds)} placements of files."),
        page.section("Study", page.facts(facts)),
    ]
    return page.page(study.name, parts)


def render(result: RunResult, summary: Summary, samples: Sequence[PortSample]) -> str:
    """The page. A pure function: the same run gives the same page."""
    parts = [
        f"<p>{page.text(result.experiment.description)}</p>" if result.experiment.description else "",
        _status(result),
        page.section("Comparison", page.table(table_rows(result, summary), list(TABLE_COLUMNS))),
        page.note(
            "Means with 95 % intervals (Student's t) over sets; of fewer than five sets the range of their means. "
            "Policies are compared set by set: a set has the same jobs, arrival times and hash seed under each policy. "
            "The paper measured on another cluster, at 1 Gbit/s."
        ),
    ]
    if summary.times_s:
        drawing = figures.times_by_policy(result, summary)
        parts.append(page.section("Times per policy (as Fig. 11)", drawing))
    if any(summary.set_means_s.values()):
        drawing = figures.times_by_set(result, summary)
        parts.append(page.section("Mean job time per set (as Fig. 12)", drawing))
    parts += _operations(result)
    parts += _timelines(result, samples)
    if summary.switching:
        drawing = figures.switching_times(result, summary)
        parts.append(page.section("Switching time by part (as Fig. 14)", drawing))
        parts.append(
            page.note(
                "From the publication of the event to the answer of the last barrier. The paper: 2,200 ms "
                "OFF to ON (processor 8.5, path searcher 170, flow entries 2,010), 310 ms ON to OFF."
            )
        )
    parts.append(page.section("Run", _run(result)))
    return page.page(result.name, parts)


def _status(result: RunResult) -> str:
    blocks = [page.alert(reason, "Not valid") for reason in result.invalid]
    if result.interrupted:
        blocks.append(page.alert("what had finished by then is shown.", "Interrupted"))
    if result.failure:
        blocks.append(page.alert(result.failure, "Ended early"))
    failed = [job for job in result.jobs if job.status == "failed"]
    blocks += page.alerts(
        "jobs", [f"Job {job.job_id} under {job.policy} failed: {job.cause}" for job in failed]
    )
    return "\n".join([*blocks, *(page.note(note) for note in result.notes)])


def _operations(result: RunResult) -> list[str]:
    """Collective operations of the first set of each policy."""
    parts = []
    for policy in result.policies:
        sets = [record.set for record in result.io if record.policy == policy]
        if not sets:
            continue
        heading = f"Collective operations, {policy}, set {min(sets) + 1} (as Figs. 10, 16 of CLARISSE)"
        parts.append(page.section(heading, operations.timeline(result, policy, min(sets))))
    if parts:
        parts.append(
            page.note(
                "Pale: waiting for a grant. Number of aggregators below where an epoch begins. All sets are in result.json."
            )
        )
    return parts


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
            heading = f"Bandwidth by core port and class, {policy}, set {chosen + 1} (as Figs. 13, 15)"
            parts.append(page.section(heading, drawing))
    if parts:
        parts.append(
            page.note("Shaded: a stage-in or stage-out in progress. All sets are in timelines.parquet.")
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
