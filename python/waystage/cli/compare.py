"""`waystage compare`: compare two trees, or a predicted run with a measured one.

Arrives: two trees or catalogs, or the directories of two runs of one experiment.
Leaves: differences of the trees, or errors by policy, job and link; as text or as one JSON object.
Must not know: which worlds ran them, how trees are read.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from waystage.cli.common import ExitCode, Output, UserError, output_options, table
from waystage.cli.compare_many import compare_many
from waystage.cli.many_nodes import nodes_options
from waystage.cli.paths import null_option, refuse_both
from waystage.cli.reporting import job_option
from waystage.cli.trees import compare_trees

if TYPE_CHECKING:
    from waystage.experiment.compare import Difference, LinkError, RunComparison, TimeError
    from waystage.nodes import Where

SHOWN = 8
"""Jobs and links shown as text; --json gives all."""


@click.command()
@click.argument("first", metavar="A", type=click.Path(path_type=Path))
@click.argument("second", metavar="B", type=click.Path(path_type=Path))
@click.argument("more", metavar="[C]...", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--top",
    type=click.IntRange(min=1),
    default=SHOWN,
    show_default=True,
    help="Maximum number of lines of each kind.",
)
@click.option(
    "--content", is_flag=True, help="Trees: read files of the same size and compare their contents."
)
@click.option("--xattrs", is_flag=True, help="Trees: compare extended attributes and access control lists.")
@click.option(
    "--ignore",
    multiple=True,
    type=click.Choice(["mtime", "mode", "uid", "gid", "links"]),
    help="Trees: ignore this attribute (repeatable).",
)
@click.option(
    "--exclude", "-x", multiple=True, metavar="PATTERN", help="Trees: exclude PATTERN (repeatable)."
)
@click.option(
    "--workers",
    "threads",
    type=click.IntRange(1, 1024),
    help="Trees: number of threads. Default: two per core, at most 16.",
)
@null_option("Trees: print only missing or different paths, each ended by a NUL, for copy --files-from - -0.")
@job_option
@nodes_options
@output_options
def command(
    first: Path,
    second: Path,
    more: tuple[Path, ...],
    top: int,
    content: bool,
    xattrs: bool,
    ignore: tuple[str, ...],
    exclude: tuple[str, ...],
    threads: int | None,
    null: bool,
    nodes: Where | None,
    output: Output,
) -> int:
    """Compare A with B: two trees, or two runs of an experiment.

    Trees are directories, or catalogs, whose trees are not walked. Entries are compared by existence, type, size,
    mtime, mode, owner, hard links and the target of symbolic links, with --xattrs and --content also by extended
    attributes and contents. Exit status 1 if anything differs. Hard links are compared if both names are in the tree.
    Holes are not read.

    If A and B are outputs of `waystage run`, A, e.g. of the simulator, is compared with B, the measurement. Errors are
    relative to B. Both must be runs of one experiment: the same jobs at the same times. Sweeps and contention studies
    are compared by combination or ratio. Of more than two runs, such as those of the simulator, the lab and a cluster,
    the last is the measurement, and the mean times of all stand side by side.
    """
    from waystage.experiment.results import RESULT_FILE

    refuse_both(null, output)
    for path in (first, second, *more):
        if not path.exists():
            raise UserError(f"{path} does not exist: give two trees, catalogs or runs", ExitCode.BAD_INPUT)
    if not any((path / RESULT_FILE).is_file() for path in (first, second)) and (
        first.is_dir() and second.is_dir() and not more
    ):
        from waystage.trees import Wanted

        return compare_trees(
            first, second, Wanted(content, xattrs, ignore, exclude, threads), top, null, nodes, output
        )
    if content or xattrs or ignore or exclude or threads or null or nodes:
        raise UserError(
            "options for trees, and A and B are not both trees: give two directories", ExitCode.USAGE
        )
    if more:
        compare_many((first, second, *more), output)
    else:
        _compare_runs(first, second, top, output)
    return ExitCode.OK


def _compare_runs(predicted: Path, measured: Path, top: int, output: Output) -> None:
    from waystage.experiment import results
    from waystage.experiment.compare import CompareError, compare, differences

    try:
        first, second = results.read(predicted), results.read(measured)
        if isinstance(first, results.RunResult) and isinstance(second, results.RunResult):
            samples = [results.load_timelines(folder) for folder in (predicted, measured)]
            found = compare(first, second, *samples)
            output.result(_value(found), _text(found, top))
            return
        if isinstance(first, results.RunResult) or isinstance(second, results.RunResult):
            raise CompareError(
                "the two runs are of experiments of different kinds: compare runs of one experiment"
            )
        rows = [_row(difference) for difference in differences(first, second)]
    except (results.ResultError, CompareError) as error:
        raise UserError(str(error), ExitCode.BAD_INPUT) from None
    output.result({"differences": rows}, f"Largest differences\n{table(rows[:top], _columns(rows, ()))}")


def _value(found: RunComparison) -> dict[str, Any]:
    return {
        "max_link_error_pct": found.max_link_error_pct,
        "max_job_error_pct": found.max_job_error_pct,
        "max_mean_job_error_pct": found.max_mean_error_pct,
        "max_operation_error_pct": found.max_operation_error_pct,
        "same_order": found.same_order,
        "order_predicted": found.order_predicted,
        "order_measured": found.order_measured,
        "jobs_compared": found.jobs_compared,
        "notes": found.notes,
        "means": [_row(e) for e in found.means],
        "jobs": [_row(e) for e in found.jobs],
        "links": [_row(e) for e in found.links],
    }


def _text(found: RunComparison, top: int) -> str:
    means = [_row(e) for e in found.means]
    jobs = [_row(e) for e in found.jobs if e.quantity == "job_s"][:top]
    links = [_row(e) for e in found.links if e.traffic == "all" and not e.small][:top]
    counted = sum(e.traffic == "all" and not e.small for e in found.links)
    parts = [f"note: {note}" for note in found.notes]
    parts += [
        "Mean times by policy, predicted and measured",
        table(means, _columns(means, ("set", "index"))),
        "",
    ]
    parts += [
        f"Largest errors of job times, of {found.jobs_compared} jobs",
        table(jobs, _columns(jobs, ("quantity",))),
        "",
    ]
    if links:
        parts += [f"Largest errors of bytes by link, of {counted} that carried at least 1 % of the busiest"]
        parts += [table(links, _columns(links, ("traffic",))), ""]
    order = " < ".join(found.order_measured)
    same = "the same" if found.same_order else f"not the same: predicted {' < '.join(found.order_predicted)}"
    parts.append(f"order of policies by mean job time, measured: {order}; {same}")
    parts.append(
        f"largest errors: links {found.max_link_error_pct:.1f} %, jobs {found.max_job_error_pct:.1f} %, "
        f"mean job times {found.max_mean_error_pct:.1f} %"
        + (f", mean collective operations {found.max_operation_error_pct:.1f} %" if _has_io(found) else "")
    )
    return "\n".join(parts)


def _has_io(found: RunComparison) -> bool:
    return any(error.quantity == "operation_s" for error in found.means)


def _row(error: TimeError | LinkError | Difference) -> dict[str, Any]:
    """The fields of an error, its value behind the amounts that it compares, as JSON holds them."""
    import msgspec

    fields = msgspec.structs.asdict(error)
    small = {"small": fields.pop("small")} if "small" in fields else {}
    rounded = {name: round(value, 6) if isinstance(value, float) else value for name, value in fields.items()}
    return rounded | {"error_pct": _finite(error.error_pct)} | small


def _finite(value: float) -> float | None:
    """None for infinity, which JSON lacks: something was predicted and nothing measured."""
    return None if value == float("inf") else round(value, 3)


def _columns(rows: list[dict[str, Any]], without: tuple[str, ...]) -> list[str]:
    return [name for name in (rows[0] if rows else {}) if name not in (*without, "small")]
