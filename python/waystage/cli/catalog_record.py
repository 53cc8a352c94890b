"""`waystage catalog record -- PROGRAM`: record the file operations of a program in a catalog.

Arrives: a command line after `--`.
Leaves: the program's output and exit status, and a catalog.
Must not know: how operations are intercepted.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from waystage.cli.common import Output

if TYPE_CHECKING:
    from waystage.recorder import Ran

SHOWN_UNSEEN = 10


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "--catalog",
    "-c",
    "target",
    type=click.Path(path_type=Path, file_okay=False),
    default="waystage.catalog",
    show_default=True,
    help="Catalog to update, or to create if it does not exist.",
)
@click.option(
    "--tree",
    type=click.Path(path_type=Path),
    help="Tree of a new catalog. Default: the working directory.",
)
@click.option(
    "--exclude",
    "-x",
    multiple=True,
    metavar="PATTERN",
    help="Exclude PATTERN from a new catalog (repeatable).",
)
@click.option("--one-file-system", is_flag=True, help="Do not cross file system boundaries in a new catalog.")
@click.option("--no-layouts", is_flag=True, help="Do not query the layout of files for a new catalog.")
@click.option(
    "--stat",
    "tell_stat",
    is_flag=True,
    help="Stat each file in the program when it closes the file, where a later stat is slow.",
)
@click.option(
    "--workers",
    "threads",
    type=click.IntRange(1, 1024),
    help="Number of threads. Default: four per core, at most 32.",
)
@click.option("--cc", metavar="PROGRAM", help="C compiler. Default: $CC or cc.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on the last line of stderr.")
@click.option("--quiet", "-q", is_flag=True, help="Print only warnings about incomplete records.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True)
def record(
    target: Path,
    tree: Path | None,
    exclude: tuple[str, ...],
    one_file_system: bool,
    no_layouts: bool,
    tell_stat: bool,
    threads: int | None,
    cc: str | None,
    as_json: bool,
    quiet: bool,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND and record its file operations in a catalog.

    The program needs no change: waystage catalog record -c run.catalog -- ./program. Its output and exit status are
    passed through. When it ends, each path that it created, wrote, renamed, linked, truncated or removed is checked.
    Static programs, Go programs, set-user-ID programs, programs with a cleared environment and io_uring cannot be
    recorded: a warning names them, the catalog counts them as gaps, and `refresh` finds their changes.
    """
    from waystage.catalog import BuildOptions
    from waystage.recorder import RecordOptions
    from waystage.recorder import record as run_recorded

    options = BuildOptions(threads, exclude, one_file_system, layouts=None if no_layouts else "each")
    ran = run_recorded(command, target, tree, RecordOptions(options, tell_stat, cc))
    _say(ran, target, Output(quiet=quiet), as_json)
    click.get_current_context().exit(ran.status)


def _say(ran: Ran, target: Path, output: Output, as_json: bool) -> None:
    from waystage.catalog.store import explain
    from waystage.display import display

    gaps = ran.applied.gaps if ran.applied is not None else {}
    if as_json:
        value: dict[str, Any] = {
            "catalog": str(target),
            "status": ran.status,
            "counts": ran.counts,
            "gaps": gaps,
            "unseen": [display(name) for name in ran.unseen],
        }
        if ran.applied is not None:
            value |= {
                "entries": ran.applied.entries,
                "looked_at": ran.applied.looked_at,
                "seconds": round(ran.applied.seconds, 3),
            }
        else:
            value["error"] = ran.problem
        click.echo(json.dumps(value), err=True)
        return
    if ran.applied is None:
        click.echo(f"waystage: warning: nothing was recorded: {ran.problem}", err=True)
        return
    if gaps:
        named = ", ".join(display(name) for name in ran.unseen[:SHOWN_UNSEEN])
        more = ", ..." if len(ran.unseen) > SHOWN_UNSEEN else ""
        of = f" ({named}{more})" if ran.unseen else ""
        click.echo(
            f"waystage: warning: {target} may miss {explain(gaps)}{of}: run 'waystage catalog refresh {target}'",
            err=True,
        )
    output.note(
        f"catalog: {target}: {ran.applied.entries:,} entries, {ran.applied.looked_at:,} of them checked"
        f" in {ran.applied.seconds:.1f} s"
    )
