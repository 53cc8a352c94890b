"""What `waystage run` does with a scenario of the simulator.

Arrives: a scenario file and the options of `waystage run`.
Leaves: a folder of results, its report, and the comparison of all combinations as a table.
Must not know: how runs are made.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from waystage.cli.common import ExitCode, Output, UserError, table
from waystage.cli.folders import check_folder, default_folder, writing

if TYPE_CHECKING:
    from waystage.simulate.loading import Loaded
    from waystage.simulate.results import ScenarioResult
    from waystage.simulate.summary import Row

KEPT = "finished runs are kept, and the same command makes those that are missing"

MOST_ROWS = 40
"""Combinations in the terminal: the first and the best; all are in the report and in result.json."""


def run_scenario(
    path: Path, out: Path | None, seed: int | None, processes: int | None, agreed: bool, output: Output
) -> None:
    """Make the runs that are not there yet, write the results, print the table."""
    import msgspec

    from waystage.experiment.problems import ExperimentError
    from waystage.simulate.loading import load
    from waystage.simulate.results import save
    from waystage.simulate.runner import TooManyRuns, check_size, count, run

    try:
        loaded = load(path)
    except ExperimentError as error:
        raise UserError(str(error), ExitCode.BAD_INPUT) from None
    if seed is not None:
        import dataclasses

        loaded = dataclasses.replace(loaded, scenario=msgspec.structs.replace(loaded.scenario, seeds=(seed,)))
    try:
        check_size(loaded, agreed)
    except TooManyRuns as error:
        if not sys.stdin.isatty() or output.json or output.quiet:
            raise UserError(str(error), ExitCode.USAGE) from None
        click.confirm(
            f"{loaded.scenario.name} is {count(loaded):,} runs. Make them all?", abort=True, err=True
        )
        agreed = True
    folder = out or _folder(loaded, path)
    _check_folder(folder)
    for text in loaded.warnings:
        output.note(f"warning: {text}")
    try:
        with output.progress() as progress, writing(folder, KEPT):
            run(loaded, folder, progress, processes=processes, agreed=agreed)
    except KeyboardInterrupt:
        # With --json the answer to what was interrupted is the error alone.
        with writing(folder, KEPT):
            _show(loaded, folder, save(loaded, folder), Output(quiet=output.quiet or output.json))
        output.note(f"interrupted; the same command with --out {folder} makes the runs that are missing")
        raise
    with writing(folder, KEPT):
        result = save(loaded, folder)
        _show(loaded, folder, result, output)
    failed = [record for record in result.runs if record.status == "failed"]
    if failed and output.quiet and not output.json:  # else the table has said so
        text = f"{len(failed)} of {result.planned} runs failed, the first because {failed[0].cause}"
        raise UserError(text, ExitCode.FAILED)
    if failed:
        click.get_current_context().exit(ExitCode.FAILED)


def _folder(loaded: Loaded, path: Path) -> Path:
    """The file's `output`, beside the file as with PFSim; else a new folder under results."""
    if loaded.scenario.output is not None:
        return path.parent / loaded.scenario.output
    return default_folder(loaded.scenario.name)


def _check_folder(folder: Path) -> None:
    """A folder with runs of a scenario is gone on with; one with anything else is left alone."""
    from waystage.simulate.store import RUNS_FOLDER

    if not (folder / RUNS_FOLDER).is_dir():
        check_folder(folder)


def _show(loaded: Loaded, folder: Path, result: ScenarioResult, output: Output) -> None:
    from waystage.simulate.report import write_report

    write_report(loaded, folder, result)
    output.result(*describe_scenario(folder, result))


def describe_scenario(folder: Path, result: ScenarioResult) -> tuple[dict[str, Any], str]:
    """The answer for programs, and for people."""
    import msgspec

    from waystage.experiment.results import REPORT_FILE
    from waystage.simulate.summary import summarise

    rows = summarise(result)
    value = {
        "name": result.name,
        "world": "sim",
        "folder": str(folder),
        "report": str(folder / REPORT_FILE),
        "interrupted": result.interrupted,
        "planned": result.planned,
        "runs": len(result.runs),
        "summary": [msgspec.to_builtins(row) for row in rows],
    }
    return value, _text(rows, result, folder / REPORT_FILE)


def _goodness(row: Row) -> tuple[bool, float]:
    """What fails comes last; loads on different topologies are compared with their own first combination."""
    return (row.failed == len(row.runs), row.max_load_bytes if row.relative is None else row.relative)


def _text(rows: list[Row], result: ScenarioResult, report: Path) -> str:
    from waystage.simulate.summary import columns, table_rows

    lines: list[str] = []
    if rows:
        chosen = rows
        if len(rows) > MOST_ROWS:
            best = sorted(rows, key=_goodness)
            chosen = [rows[0], *(row for row in best if row is not rows[0])][:MOST_ROWS]
            lines.append(f"the first and the best {MOST_ROWS - 1} of {len(rows)} combinations:")
        shown: list[dict[str, Any]] = table_rows(chosen, result.mode, columns(rows))
        lines += [table(shown, list(shown[0])), ""]
    failed = [record for record in result.runs if record.status == "failed"]
    lines += [f"run {record.number} failed: {record.cause}" for record in failed[:5]]
    if len(failed) > 5:
        lines.append(f"{len(failed) - 5} more runs failed: see result.json")
    lines.append(f"{len(result.runs)} of {result.planned} runs")
    lines.append(f"report: {report}")
    return "\n".join(lines)
