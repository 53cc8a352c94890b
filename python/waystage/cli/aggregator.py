"""`waystage aggregator`: the process of collective I/O of a node.

Arrives: a socket, an address; the token of the launch in the environment.
Leaves: the served process; exit status 0 after its last rank has gone, or after SIGTERM or Ctrl-C.
Must not know: how bytes are moved.
"""

from __future__ import annotations

import os
import socket as sockets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from waystage.cli.common import ExitCode, Output, UserError, output_options, take_descriptors
from waystage.cli.quantities import Size
from waystage.cli.service import Signals, ready_file_option, removed_at_exit, write_ready
from waystage.native_options.aggregators import AggregatorOptions

if TYPE_CHECKING:
    from waystage._native import CouplingService

POLL_S = 0.5
"""A bounded wait, since a signal only counts."""


@click.command()
@click.option(
    "--socket",
    type=click.Path(path_type=Path),
    envvar="WAYSTAGE_IO_SOCKET",
    show_envvar=True,
    required=True,
    help="Unix socket for the ranks of this node, in a directory of mode 0700.",
)
@click.option(
    "--listen",
    metavar="ADDRESS:PORT",
    help="Address for the aggregators of other nodes; port 0: any. Default: its address on the default route, else its first.",
)
@click.option(
    "--network",
    metavar="NETWORK",
    help="Listen at any port of this host's address in NETWORK, an interface (ib0) or an IPv4 prefix (10.1.0.0/16).",
)
@click.option(
    "--name", metavar="NAME", help="Name of the aggregator, HOST or HOST/n. Default: this host's name."
)
@click.option(
    "--memory",
    type=Size(),
    default="256Mi",
    show_default=True,
    metavar="SIZE",
    help="Memory shared with the ranks: all buffers of this process (docs/reference/units.md).",
)
@click.option(
    "--coupling-memory",
    type=Size(),
    default="16Gi",
    show_default=True,
    metavar="SIZE",
    help="Most memory of arrays that coupled applications hold here.",
)
@click.option(
    "--lease",
    "lease_s",
    type=click.FloatRange(1, 3600),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="An aggregator of which nothing is heard for this long is lost.",
)
@click.option(
    "--storage-timeout",
    "storage_timeout_s",
    type=click.FloatRange(0.1, 86400),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="A request that the storage has not ended after this long fails its operation.",
)
@click.option(
    "--linger",
    "linger_s",
    type=click.FloatRange(0, 86400),
    metavar="SECONDS",
    help="End when the last rank has been gone for this long. Default: never.",
)
@click.option("--parent", type=click.IntRange(1), metavar="PID", help="End when this process has ended.")
@click.option(
    "--inject-delay-us",
    type=click.IntRange(0, 10_000_000),
    default=0,
    metavar="US",
    hidden=True,
    help="Sleep before each window, for tests and benchmarks.",
)
@ready_file_option("File to write with the address for other nodes")
@output_options
def command(
    socket: Path,
    listen: str | None,
    network: str | None,
    name: str | None,
    memory: int,
    coupling_memory: int,
    lease_s: float,
    storage_timeout_s: float,
    linger_s: float | None,
    parent: int | None,
    inject_delay_us: int,
    ready_file: Path | None,
    output: Output,
) -> None:
    """Gather the collective I/O of this node's ranks, and write file domains for all nodes.

    A launcher starts one for each node and job. WAYSTAGE_IO_TOKEN has the token of the launch, which ranks and other
    aggregators must know; WAYSTAGE_IO_APP the name of the application. SIGTERM ends it: operations in progress fail.
    """
    from waystage._native import Aggregator
    from waystage.collective import NetworkError, own_address, reported

    token = os.environ.get("WAYSTAGE_IO_TOKEN", "")
    if not token:
        raise UserError(
            "WAYSTAGE_IO_TOKEN is not set: the launcher sets it to the token of the launch", ExitCode.USAGE
        )
    if listen and network:
        raise UserError("--listen and --network exclude each other: both say where to listen", ExitCode.USAGE)
    try:
        listen = listen or f"{own_address(network)}:0"
    except NetworkError as error:
        raise UserError(f"--network: {error}", ExitCode.USAGE) from None
    # For tests: %h is the name of the host, since a launcher gives all nodes the same variables.
    delay_file = os.environ.get("WAYSTAGE_IO_DELAY_FILE", "").replace("%h", sockets.gethostname()) or None
    wanted = AggregatorOptions(
        socket=os.fspath(socket),
        listen=listen,
        name=name or sockets.gethostname(),
        token=token,
        app=os.environ.get("WAYSTAGE_IO_APP", "") or f"app-{os.getpid()}",
        memory=memory,
        lease_s=lease_s,
        storage_timeout_s=storage_timeout_s,
        linger_s=linger_s,
        parent=parent,
        delay_us=inject_delay_us,
        delay_file=delay_file,
    )
    take_descriptors()
    signals = Signals()
    try:
        process = Aggregator(wanted)
    except ValueError as error:
        raise UserError(str(error), ExitCode.USAGE) from None
    with (
        process,
        reported(process, wanted.name),
        removed_at_exit(ready_file),
        _coupling(wanted, coupling_memory) as coupling,
    ):
        output.note(f"ready: ranks at {socket}, aggregators at {process.address}")
        write_ready(ready_file, f"{process.address}\n")
        while not process.wait(POLL_S) and not signals.count:
            pass
        # Applications may still exchange arrays by name, which are no ranks of a file.
        while coupling.clients and not signals.count and (parent is None or _is_alive(parent)):
            time.sleep(POLL_S)


@contextmanager
def _coupling(wanted: AggregatorOptions, memory: int) -> Iterator[CouplingService]:
    """Holds arrays of coupled names, at the ranks' socket with `.coupling` behind it."""
    from waystage._native import CouplingService

    service = CouplingService(
        Path(f"{wanted.socket}.coupling"),
        wanted.token,
        listen=f"{wanted.listen.rpartition(':')[0]}:0",
        lease_s=wanted.lease_s,
        memory_bytes=memory,
    )
    try:
        yield service
    finally:
        service.stop()


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
