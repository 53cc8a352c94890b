"""The reports of comparisons of policies and of contention studies, as one HTML page each.

Arrives: a result, and the timelines of its folder.
Leaves: `report.html`, and the plots of a study as files.
Must not know: how the run was made.

`simulate.report` makes that of a sweep, for which it needs the clusters.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from waystage.experiment import figures, operations, page, pictures
from waystage.experiment.results import (
    EXPERIMENT_FILE,
    ContentionResult,
    RunResult,
    load_timelines,
)
from waystage.experiment.summary import TABLE_COLUMNS, Summary, contention_rows, summarise, table_rows
from waystage.experiment.timelines import PortSample, Timelines
from waystage.experiment.verdict import verdict

ENDO, ISAILA, SWIFTLOAD = "Endo et al. 2020", "Isaila et al., CLARISSE", "Kim et al., SwiftLoad"

PAPERS = {
    ENDO: (
        "Endo et al. 2020: A. Endo et al., \u201cDynamic Traffic Control of Staging Traffic on the Interconnect of the"
        " HPC Cluster System\u201d, IEEE Access 8, 2020, doi:10.1109/ACCESS.2020.3035158."
    ),
    ISAILA: (
        "Isaila et al., CLARISSE: F. Isaila et al., \u201cCLARISSE: A Middleware for Data-Staging Coordination and"
        " Control on Large-Scale HPC Platforms\u201d, CCGrid 2016."
    ),
}
"""Papers by the name that headings give them."""


def write_report(folder: Path, result: RunResult | ContentionResult) -> Path:
    """Make the report of `result` anew from what `folder` holds. Raises ResultError."""
    if isinstance(result, ContentionResult):
        plots = figures.contention(result.points)
        return page.write_report(folder, render_contention(result, plots), plots)
    # Without the folder's name: the same run gives the same page anywhere.
    command = f"waystage run {EXPERIMENT_FILE} --on {result.world}"
    known = (folder / EXPERIMENT_FILE).exists()
    content = render(result, summarise(result), load_timelines(folder), command if known else None)
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
    parts.append(page.note("Panels a to d are those of Fig. 7 of Kim et al., \u201cSwiftLoad\u201d."))
    return page.page(study.name, parts)


def render(
    result: RunResult, summary: Summary, samples: Sequence[PortSample], command: str | None = None
) -> str:
    """The page: verdict, figures, tables. A pure function: the same run gives the same page. `command` repeats it."""
    good = result.valid and not result.failure and not result.interrupted
    timelines = Timelines.of(samples)
    parts = [
        page.verdict(verdict(result, summary), good=good),
        f"<p>{page.text(result.experiment.description)}</p>" if result.experiment.description else "",
        _status(result),
    ]
    if summary.times_s:
        drawing = figures.times_by_policy(result, summary)
        parts.append(page.section(f"Times by policy (as Fig. 11 of {ENDO})", drawing))
    if any(len(means) > 1 for means in summary.set_means_s.values()):
        drawing = figures.times_by_set(result, summary)
        parts.append(page.section(f"Mean job time by set (as Fig. 12 of {ENDO})", drawing))
    parts += _one_set(result, timelines)
    parts += _operations(result)
    if summary.switching:
        drawing = figures.switching_times(result, summary)
        parts.append(page.section(f"Switching time by part (as Fig. 14 of {ENDO})", drawing))
        parts.append(
            page.note(
                "From the publication of the event to the answer of the last barrier. The paper: 2,200 ms "
                "OFF to ON (processor 8.5, path searcher 170, flow entries 2,010), 310 ms ON to OFF."
            )
        )
    parts += [
        page.section("Comparison", page.table(table_rows(result, summary), list(TABLE_COLUMNS))),
        page.note(
            "Means with 95 % intervals (Student's t) over sets; of fewer than five sets the range of their means. "
            "Policies are compared set by set: a set has the same jobs, arrival times and hash seed under each policy. "
            "The paper measured on another cluster, at 1 Gbit/s."
        ),
        page.section("Run", _run(result)),
    ]
    if command is not None:
        parts.append(page.section("Repeat, in the folder of this page", page.command(command)))
    parts.append(
        page.note(" ".join(source for name, source in PAPERS.items() if any(name in p for p in parts)))
    )
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


def _one_set(result: RunResult, timelines: Timelines) -> list[str]:
    """Jobs, loads of links and use of ports of one set, the first that every policy ran, under each policy."""
    sets = {p: {job.set for job in result.jobs if job.policy == p} for p in result.policies}
    common = set.intersection(*sets.values()) if sets else set()
    chosen = min(common, default=None)
    parts: list[str] = []
    if chosen is not None:
        parts.append(page.section(f"Jobs of set {chosen + 1}", pictures.jobs(result, chosen)))
        parts.append(page.note("Times from the first submission of the set."))
        drawing = pictures.link_loads(result, timelines, chosen)
        if drawing is not None:
            parts.append(page.section(f"Mean load of the links between switches, set {chosen + 1}", drawing))
    return parts + _timelines(result, timelines)


def _operations(result: RunResult) -> list[str]:
    """Collective operations of the first set of each policy."""
    parts = []
    for policy in result.policies:
        sets = [record.set for record in result.io if record.policy == policy]
        if not sets:
            continue
        heading = f"Collective operations, {policy}, set {min(sets) + 1} (as Figs. 10 and 16 of {ISAILA})"
        parts.append(page.section(heading, operations.timeline(result, policy, min(sets))))
    if parts:
        parts.append(
            page.note(
                "Pale: waiting for a grant. Number of aggregators below where an epoch begins. All sets are in result.json."
            )
        )
    return parts


def _timelines(result: RunResult, timelines: Timelines) -> list[str]:
    """One set, the first that every policy ran, under each policy in turn."""
    parts: list[str] = []
    sets = {policy: set(timelines.where(policy=policy).distinct("set")) for policy in result.policies}
    common = set.intersection(*sets.values()) if sets else set()
    for policy in result.policies:
        chosen = min(common or sets[policy], default=None)
        if chosen is None:
            continue
        drawing = figures.port_timelines(result, timelines, policy, chosen)
        if drawing is not None:
            heading = (
                f"Bandwidth by core port and class, {policy}, set {chosen + 1} (as Figs. 13 and 15 of {ENDO})"
            )
            parts.append(page.section(heading, drawing))
    if parts:
        parts.append(
            page.note(
                "Classes are stacked: together they are the port's rate, which its own counter confirms (line). "
                "Shaded: a stage-in or stage-out in progress. Upright lines: the moments, to the millisecond, at which "
                "all switches had changed paths, between two readings of the counters. Of many ports those that sent most "
                "are drawn. All ports and sets are in timelines.parquet."
            )
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
