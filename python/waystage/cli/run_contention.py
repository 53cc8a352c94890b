"""What `waystage run` does with a study of storage contention.

Arrives: a study file and the options of `waystage run`.
Leaves: a folder of results, its report, and a table of all ratios.
Must not know: how a study is simulated.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from waystage.cli.common import ExitCode, Output, UserError, table


def run_contention(
    path: Path, world: str, out: Path | None, seed: int | None, unused: Mapping[str, object], output: Output
) -> None:
    """Run the study, write the results, print the table. `unused` are options that only experiments have."""
    import msgspec

    from waystage.cli.folders import check_folder, default_folder, writing
    from waystage.experiment.problems import ExperimentError
    from waystage.simulate.contention.report import REPORT_FILE, table_rows
    from waystage.simulate.contention.run import save, simulate
    from waystage.simulate.contention.study import load

    if world != "sim":
        raise UserError(f"{path.name} is a study of the simulator: run it with --on sim", ExitCode.USAGE)
    for name, value in unused.items():
        if value:
            raise UserError(f"{name}: {path.name} is a contention study, which has none", ExitCode.USAGE)
    try:
        study = load(path)
    except ExperimentError as error:
        raise UserError(str(error), ExitCode.BAD_INPUT) from None
    if seed is not None:
        study = msgspec.structs.replace(study, seeds=(seed,))
    folder = out or default_folder(study.name)
    check_folder(folder)
    with output.progress() as progress:
        result = simulate(study, progress)
    with writing(folder):
        save(result, folder)
    report = folder / REPORT_FILE
    rows = table_rows(result.points)
    lines = [
        table(rows, list(rows[0])),
        "",
        f"best number of loaders on a target: {result.best_loaders}",
        f"report: {report}",
    ]
    value = {
        "name": study.name,
        "world": "sim",
        "folder": str(folder),
        "report": str(report),
        "best_loaders": result.best_loaders,
        "points": [msgspec.to_builtins(point) for point in result.points],
    }
    output.result(value, "\n".join(lines))
