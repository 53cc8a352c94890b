"""`waystage mpi --io --paths -- mpirun ... PROGRAM`: collective I/O through aggregators, paths for collectives, a profile.

Arrives: a command line after `--`.
Leaves: the program's output and exit status, and with --profile a pattern file.
Must not know: how I/O or messages are intercepted.
"""

from __future__ import annotations

import os
from pathlib import Path

import click

from waystage.cli.common import ExitCode, Output, UserError
from waystage.cli.profile import say
from waystage.cli.quantities import Size


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "--io", is_flag=True, help="Send collective MPI-IO, also of HDF5 and PnetCDF, through aggregators."
)
@click.option(
    "--profile",
    "profile",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Record the communication between ranks in a pattern file, as `waystage profile` does.",
)
@click.option(
    "--paths",
    "paths",
    is_flag=True,
    help="Let the policy collective-paths choose paths for collectives, before their first byte.",
)
@click.option(
    "--rank-order",
    "rank_order",
    is_flag=True,
    help="With --paths: let large collectives go in an order of ranks that keeps heavy steps under one switch.",
)
@click.option(
    "--rank-order-floats",
    is_flag=True,
    help="The same for sums of floating-point numbers too, whose last bits depend on the order.",
)
@click.option(
    "--tags", is_flag=True, help="Let packets carry primitive, ranks, communicator and job of their message."
)
@click.option(
    "--multicast",
    is_flag=True,
    help="Let switches copy the data of MPI_Bcast and MPI_Allgather, where that is measured to be faster.",
)
@click.option("--job", metavar="ID", help="Job that the program belongs to. Default: Slurm's.")
@click.option(
    "--memory", type=Size(), metavar="SIZE", help="Memory of each node's aggregator for data, e.g. 256M."
)
@click.option(
    "--network",
    metavar="NETWORK",
    help="Network between aggregators: an interface (ib0) or an IPv4 prefix (10.1.0.0/16). Default: each node's default route.",
)
@click.option(
    "--storage-timeout",
    type=click.FloatRange(0.1, 86400),
    metavar="SECONDS",
    help="A request that the storage has not ended after this long fails its operation. Default: 600.",
)
@click.option(
    "--write-behind",
    is_flag=True,
    help="Let writes return once two aggregators have the data, before they are in the file.",
)
@click.option("--mpicc", metavar="PROGRAM", help="MPI compiler. Default: the one beside the launcher.")
@click.option(
    "--verbose", "-v", is_flag=True, help="Say once for each file what does not go through aggregators."
)
@click.option("--quiet", "-q", is_flag=True, help="Print only errors.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True)
def command(
    io: bool,
    paths: bool,
    rank_order: bool,
    rank_order_floats: bool,
    profile: Path | None,
    tags: bool,
    multicast: bool,
    job: str | None,
    memory: int | None,
    network: str | None,
    storage_timeout: float | None,
    write_behind: bool,
    mpicc: str | None,
    verbose: bool,
    quiet: bool,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND, an MPI program or its launcher, with Waystage's MPI-IO, or paths for its messages.

    The program needs no change: waystage mpi --io -- mpirun -n 64 ./program. Its output and exit status are
    passed through. Open MPI, MPICH and srun are known.
    """
    from waystage.collective import NetworkError, checked_network
    from waystage.mpi_io import Missing, MpiIoError, Options, run

    if not (io or paths or tags or multicast) and profile is None:
        raise UserError(
            "nothing to do: give --io, --paths, --tags, --multicast or --profile FILE", ExitCode.USAGE
        )
    if (rank_order or rank_order_floats) and not paths:
        raise UserError("an order of ranks comes with the paths for them: give --paths too", ExitCode.USAGE)
    if network is not None:
        if not io:
            raise UserError("--network is for aggregators: give --io too", ExitCode.USAGE)
        if os.environ.get("WAYSTAGE_IO_LISTEN"):
            raise UserError("--network and WAYSTAGE_IO_LISTEN exclude each other: unset it", ExitCode.USAGE)
        try:
            checked_network(network)
        except NetworkError as error:
            raise UserError(f"--network: {error}", ExitCode.USAGE) from None
    options = Options(
        io=io,
        paths=paths,
        rank_order="floats" if rank_order_floats else "exact" if rank_order else None,
        tags=tags,
        multicast=multicast,
        profile=profile,
        verbose=verbose,
        job=job,
        memory=memory,
        network=network,
        storage_timeout_s=storage_timeout,
        write_behind=write_behind,
        mpicc=mpicc,
    )
    try:
        done = run(command, options)
    except Missing as error:
        raise UserError(str(error), ExitCode.MISSING) from None
    except MpiIoError as error:
        raise UserError(str(error), ExitCode.FAILED) from None
    if done.untagged and not quiet:
        Output(quiet=quiet).note(f"packets got no tags: {done.untagged}")
    if done.not_multicast and not quiet:
        Output(quiet=quiet).note(f"broadcasts are not by multicast: {done.not_multicast}")
    if done.profiled is not None:
        say(done.profiled, Output(quiet=quiet))
        for world in done.profiled.spawned:
            say(world, Output(quiet=quiet))
    click.get_current_context().exit(done.status)
