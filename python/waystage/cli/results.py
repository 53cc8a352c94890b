"""Folders of results, for people and for programs.

Arrives: a folder that `waystage run` wrote.
Leaves: its report made anew where its records suffice; the answer as JSON and as text.
Must not know: how the run was made.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from waystage.cli.common import ExitCode, Output, table

if TYPE_CHECKING:
    from waystage.experiment.results import AnyResult, ContentionResult, RunResult, SweepResult
    from waystage.experiment.sweep_summary import Combined

MAX_ROWS = 40
"""Combinations in the terminal: the first and the best; all are in the report and in result.json."""

MAX_FAILURES = 5
"""Failures in the terminal; all are in result.json."""


class Answer(NamedTuple):
    """What a command prints, as JSON or as text, and how it ends."""

    value: dict[str, Any]
    text: str
    status: ExitCode


def show(folder: Path, output: Output) -> ExitCode:
    """Print what `folder` holds; the exit status. Nothing where the run ended before its first result.

    With --json the answer of a run that ended early is its error alone.
    """
    from waystage.experiment import results

    if not (folder / results.RESULT_FILE).exists():
        return ExitCode.OK
    result = results.read(folder)
    if isinstance(result, results.RunResult) and not result.jobs:
        return ExitCode.INVALID if result.invalid else ExitCode.OK
    answer = describe(folder, result)
    if not output.json or not (answer.value.get("interrupted") or answer.value.get("failure")):
        output.result(answer.value, answer.text)
    return answer.status


def describe(folder: Path, result: AnyResult) -> Answer:
    """Raises ResultError where a file beside `result.json` is broken."""
    from waystage.experiment.page import REPORT_FILE
    from waystage.experiment.report import write_report
    from waystage.experiment.results import ContentionResult, SweepResult

    # A sweep's report is drawn from its clusters, which its records do not hold.
    if isinstance(result, SweepResult):
        answer = _sweep(result)
    else:
        write_report(folder, result)
        answer = _contention(result) if isinstance(result, ContentionResult) else _policies(result)
    report = str(folder / REPORT_FILE)
    head = {"name": result.name, "world": "sim", "folder": str(folder), "report": report}
    return Answer(head | answer.value, f"{answer.text}\nreport: {report}", answer.status)


def _policies(result: RunResult) -> Answer:
    import msgspec

    from waystage.experiment.summary import TABLE_COLUMNS, summarise, table_rows

    summary = summarise(result)
    value = {
        "world": result.world,
        "valid": result.valid,
        "invalid": result.invalid,
        "interrupted": result.interrupted,
        "failure": result.failure,
        "idle_pct": result.idle_pct,
        "summary": msgspec.to_builtins(summary),
    }
    lines = [table(table_rows(result, summary), list(TABLE_COLUMNS)), ""]
    lines += [f"NOT VALID: {reason}" for reason in result.invalid]
    if result.interrupted:
        lines.append("interrupted: only finished job sets are shown")
    if result.failure:
        lines.append(f"ended early: {result.failure}")
    failed = [job for job in result.jobs if job.status == "failed"]
    lines += _failures("jobs", [f"job {job.job_id} failed: {job.cause}" for job in failed])
    if result.machine:  # a simulated run is the same on every machine
        lines.append(f"machine: {result.idle_pct:.0f} % idle (lowest second {result.lowest_idle_pct:.0f} %)")
    invalid = ExitCode.OK if result.valid else ExitCode.INVALID
    return Answer(value, "\n".join(lines), ExitCode.FAILED if failed else invalid)


def _sweep(result: SweepResult) -> Answer:
    import msgspec

    from waystage.experiment.sweep_summary import columns, summarise, table_rows

    rows = summarise(result)
    value = {
        "interrupted": result.interrupted,
        "planned": result.planned,
        "runs": len(result.runs),
        "summary": [msgspec.to_builtins(row) for row in rows],
    }
    lines: list[str] = []
    if rows:
        chosen = rows
        if len(rows) > MAX_ROWS:
            best = sorted(rows, key=_goodness)
            chosen = [rows[0], *(row for row in best if row is not rows[0])][:MAX_ROWS]
            lines.append(f"the first and the best {MAX_ROWS - 1} of {len(rows)} combinations:")
        shown = table_rows(chosen, result.mode, columns(rows))
        lines += [table(shown, list(shown[0])), ""]
    failed = result.failed
    lines += _failures("runs", [f"run {record.number} failed: {record.cause}" for record in failed])
    lines.append(f"{len(result.runs)} of {result.planned} runs")
    return Answer(value, "\n".join(lines), ExitCode.FAILED if failed else ExitCode.OK)


def _contention(result: ContentionResult) -> Answer:
    import msgspec

    from waystage.experiment.summary import contention_rows

    rows = contention_rows(result.points)
    value = {
        "best_loaders": result.best_loaders,
        "points": [msgspec.to_builtins(point) for point in result.points],
    }
    text = f"{table(rows, list(rows[0]))}\n\nbest number of loaders on a target: {result.best_loaders}"
    return Answer(value, text, ExitCode.OK)


def _failures(what: str, failures: list[str]) -> list[str]:
    more = [f"{len(failures) - MAX_FAILURES} more {what} failed: see result.json"]
    return failures[:MAX_FAILURES] + more[: len(failures) > MAX_FAILURES]


def _goodness(row: Combined) -> tuple[bool, float]:
    """What fails comes last; loads on different topologies are compared with their own first combination."""
    return (row.failed == len(row.runs), row.max_load_bytes if row.relative is None else row.relative)
