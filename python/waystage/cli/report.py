"""`waystage report`: print the results of a run and rewrite its report.

Arrives: the directory of a run.
Leaves: its `report.html`, rewritten, and the comparison as a table.
Must not know: which world ran it.
"""

from __future__ import annotations

from pathlib import Path

import click

from waystage.cli.common import ExitCode, Output, UserError, output_options
from waystage.cli.folders import writing


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--perfetto",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Also write the run to FILE as a trace for Perfetto (ui.perfetto.dev).",
)
@output_options
def command(folder: Path, perfetto: Path | None, output: Output) -> None:
    """Rewrite report.html in FOLDER from its records, and print the comparison.

    FOLDER is the output of `waystage run`. For a sweep, only the comparison is printed. Exit status 7 if the
    result of the run is invalid.
    """
    from waystage.cli.results import describe
    from waystage.experiment.results import ResultError, RunResult, read

    try:
        if perfetto is not None:
            _write_trace(folder, perfetto)
        result = read(folder)
        with writing(folder):
            answer = describe(folder, result)
    except ResultError as error:
        raise UserError(str(error), ExitCode.BAD_INPUT) from None
    output.result(answer.value, answer.text)
    if isinstance(result, RunResult) and not result.valid:
        click.get_current_context().exit(ExitCode.INVALID)


def _write_trace(folder: Path, file: Path) -> None:
    from waystage.outputs import write_whole
    from waystage.view.perfetto import trace

    data = trace(folder)
    try:
        write_whole(file, data)
    except OSError as error:
        raise UserError(f"cannot write {file}: {error.strerror}") from None
