"""`waystage report`: print the results of a run and rewrite its report.

Arrives: the directory of a run.
Leaves: its `report.html`, rewritten, and the comparison as a table.
Must not know: which world ran it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from waystage.cli.common import ExitCode, Output, UserError, output_options, table
from waystage.cli.folders import writing

if TYPE_CHECKING:
    from waystage.experiment.results import RunResult


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@output_options
def command(folder: Path, output: Output) -> None:
    """Rewrite report.html in FOLDER from its records, and print the comparison.

    FOLDER is the output of `waystage run`. For a scenario, only the comparison is printed. Exit status 7 if the
    result of the run is invalid.
    """
    from waystage.cli.run_scenario import describe_scenario
    from waystage.experiment.results import ResultError, load
    from waystage.simulate.results import load as load_scenario

    try:
        scenario = load_scenario(folder)
        if scenario is not None:
            output.result(*describe_scenario(folder, scenario))
            return
        with writing(folder):
            value, text = describe(folder)
        result = load(folder)
    except ResultError as error:
        raise UserError(str(error), ExitCode.BAD_INPUT) from None
    output.result(value, text)
    if not result.valid:
        click.get_current_context().exit(ExitCode.INVALID)


def describe(folder: Path) -> tuple[dict[str, Any], str]:
    """Write the report; returns the result as JSON and as text. Raises ResultError."""
    import msgspec

    from waystage.experiment.report import write_report
    from waystage.experiment.results import load
    from waystage.experiment.summary import TABLE_COLUMNS, summarise, table_rows

    result = load(folder)
    summary = summarise(result)
    path = write_report(folder)
    value = {
        "name": result.name,
        "world": result.world,
        "folder": str(folder),
        "report": str(path),
        "valid": result.valid,
        "invalid": result.invalid,
        "interrupted": result.interrupted,
        "failure": result.failure,
        "idle_pct": result.idle_pct,
        "summary": msgspec.to_builtins(summary),
    }
    lines = [
        table(table_rows(result, summary), list(TABLE_COLUMNS)),
        "",
        *_remarks(result),
        f"report: {path}",
    ]
    return value, "\n".join(lines)


def _remarks(result: RunResult) -> list[str]:
    lines = [f"NOT VALID: {reason}" for reason in result.invalid]
    if result.interrupted:
        lines.append("interrupted: only finished job sets are shown")
    if result.failure:
        lines.append(f"ended early: {result.failure}")
    failed = [job for job in result.jobs if job.status == "failed"]
    for job in failed[:5]:
        lines.append(f"job {job.job_id} failed: {job.cause}")
    if len(failed) > 5:
        lines.append(f"{len(failed) - 5} more jobs failed: see result.json")
    if result.machine:  # a simulated run is the same on every machine
        lines.append(f"machine: {result.idle_pct:.0f} % idle (lowest second {result.lowest_idle_pct:.0f} %)")
    return lines
