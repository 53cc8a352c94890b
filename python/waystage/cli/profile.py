"""`waystage profile -- mpirun ... PROGRAM`: record the communication between its ranks.

Arrives: a command line after `--`.
Leaves: the program's output and exit status, and a pattern file.
Must not know: how messages are intercepted.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from waystage.cli.common import ExitCode, Output, UserError

if TYPE_CHECKING:
    from waystage.profiler.launch import Profiled

SHOWN_RANKS = 10


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "--output",
    "-o",
    "target",
    type=click.Path(path_type=Path, dir_okay=False),
    default="waystage.pattern",
    show_default=True,
    help="Pattern file to write.",
)
@click.option(
    "--interval",
    type=click.FloatRange(0, 1e9),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Length of a phase; 0 for a single phase.",
)
@click.option("--mpicc", metavar="PROGRAM", help="MPI compiler. Default: the one beside the launcher.")
@click.option(
    "--through-network",
    is_flag=True,
    help="MPICH: also send messages within a host through the network layer, to record them. This changes how the "
    "program communicates; the result notes it.",
)
@click.option("--quiet", "-q", is_flag=True, help="Print only errors of the profiler.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True)
def command(
    target: Path,
    interval: float,
    mpicc: str | None,
    through_network: bool,
    quiet: bool,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND, an MPI program or its launcher, and record the communication between its ranks.

    The program needs no change: waystage profile -- mpirun -np 4 ./program. Its output and exit status are
    passed through. `waystage pattern show` shows the result.
    """
    from waystage.profiler import ProfilerError, profile
    from waystage.profiler.errors import CompilerMissing

    output = Output(quiet=quiet)
    try:
        done = profile(command, target, interval_s=interval, mpicc=mpicc, through_network=through_network)
    except CompilerMissing as error:
        raise UserError(str(error), ExitCode.MISSING) from None
    except ProfilerError as error:
        raise UserError(str(error), ExitCode.FAILED) from None
    say(done, output)
    for world in done.spawned:
        say(world, output)
    click.get_current_context().exit(done.status)


def say(done: Profiled, output: Output) -> None:
    """Where the pattern file is, and what is missing from it."""
    if done.problem is not None:
        click.echo(f"waystage: warning: no profile: {done.problem}", err=True)
    elif done.complete:
        output.note(f"profile: {done.output}")
    else:
        told = [(done.early, "ended before MPI_Finalize"), (done.missing, "left nothing")]
        how = "; ".join(f"{_ranks(ranks)} {what}" for ranks, what in told if ranks)
        output.note(f"profile: {done.output}, of an incomplete run: {how}")


def _ranks(ranks: tuple[int, ...]) -> str:
    listed = ", ".join(map(str, ranks[:SHOWN_RANKS])) + (", ..." if len(ranks) > SHOWN_RANKS else "")
    return f"{'rank' if len(ranks) == 1 else f'{len(ranks)} ranks:'} {listed}"
