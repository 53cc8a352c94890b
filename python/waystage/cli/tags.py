"""`waystage tags`: the service that lets packets of MPI messages carry tags, and a decoder.

Arrives: a topology, interfaces; or addresses.
Leaves: the served process; or what tags say.
Must not know: how packets get tags.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

import click

from waystage.cli.common import ExitCode, Output, UserError, needs_root, output_options, table
from waystage.cli.service import Signals, ready_file_option, removed_at_exit, write_ready

if TYPE_CHECKING:
    from waystage.interconnect.tags import Layout
    from waystage.topology import Topology

KEY_BYTES = 32

_topology_option = click.option(
    "--topology",
    required=True,
    metavar="TOPOLOGY",
    help="The cluster's GraphML file, or the name of a shipped topology: it gives tags their layout.",
)


@click.group()
def command() -> None:
    """Let packets of MPI messages carry what they belong to, and decode it."""


@command.command()
@_topology_option
@click.option(
    "--interface",
    "interfaces",
    multiple=True,
    required=True,
    help="Interface to the fabric, or NAMESPACE/INTERFACE; repeatable.",
)
@click.option(
    "--socket",
    type=click.Path(path_type=Path),
    default="/run/waystage/tags.sock",
    show_default=True,
    help="Unix socket for the programs of this node.",
)
@click.option(
    "--key-file",
    type=click.Path(path_type=Path),
    default="/etc/waystage/tags.key",
    show_default=True,
    help="32 bytes, the same on all nodes, for root alone; made if it is missing.",
)
@click.option(
    "--numbers",
    metavar="FIRST-LAST",
    help="Numbers that this node gives to jobs started here. Nodes that start jobs need separate ranges. "
    "Default: all.",
)
@ready_file_option("File that is written when programs may ask")
@output_options
def serve(
    topology: str,
    interfaces: tuple[str, ...],
    socket: Path,
    key_file: Path,
    numbers: str | None,
    ready_file: Path | None,
    output: Output,
) -> None:
    """Run the tag service of this node until a signal.

    Needs root for its program in the kernel; the MPI programs do not: waystage mpi --tags -- mpirun ./program.
    """
    needs_root("the tag service")
    _, layout = _read(topology)
    key = _key(key_file)
    most = (1 << layout.job) - 1
    first, last = _range(numbers, most) if numbers else (0, most - 1)
    signals = Signals()
    socket.parent.mkdir(parents=True, exist_ok=True)
    from waystage._native import TagService

    widths = [getattr(layout, field) for field in layout.__struct_fields__]
    try:
        service = TagService(list(interfaces), socket, widths, list(key), (first, last - first + 1))
    except OSError as error:
        raise UserError(str(error)) from None
    with removed_at_exit(ready_file):
        write_ready(ready_file, f"{socket}\n")
        output.note(f"tags on packets of {', '.join(interfaces)}; programs ask at {socket}")
        signals.wait()
    service.close()


@command.command()
@_topology_option
@click.argument("addresses", nargs=-1, required=True, metavar="ADDRESS...")
@output_options
def show(topology: str, addresses: tuple[str, ...], output: Output) -> None:
    """Decode destination MAC addresses, such as 76:57:00:00:40:1a."""
    from waystage.interconnect import labels

    cluster, layout = _read(topology)
    rows = []
    for address in addresses:
        try:
            tag = layout.decode(labels.parse_mac(address))
        except ValueError as error:
            raise UserError(str(error), ExitCode.USAGE) from None
        row: dict[str, object] = {"address": address}
        if tag is not None:
            edges = cluster.edge_switches
            hosts = cluster.hosts_at[edges[tag.edge_index]] if tag.edge_index < len(edges) else ()
            row |= {
                "host": hosts[tag.position] if tag.position < len(hosts) else "",
                "primitive": tag.primitive,
                "source": tag.source,
                "destination": tag.destination,
                "communicator": tag.communicator,
                "job": tag.job,
            }
        rows.append(row)
    columns = ["address", "host", "primitive", "source", "destination", "communicator", "job"]
    output.result({"addresses": rows}, table([dict.fromkeys(columns, "") | row for row in rows], columns))


def _read(source: str) -> tuple[Topology, Layout]:
    from waystage.interconnect.graphml import read_topology
    from waystage.interconnect.tags import layout_of
    from waystage.topology import TopologyError

    try:
        topology = read_topology(source)
    except TopologyError as error:
        raise UserError(str(error)) from None
    layout = layout_of(topology)
    if layout is None:
        raise UserError(f"topology {topology.name} is too large for tags: its labels leave no room for them")
    return topology, layout


def _range(text: str, most: int) -> tuple[int, int]:
    first, _, last = text.partition("-")
    if first.isdecimal() and last.isdecimal() and int(first) <= int(last) < most:
        return int(first), int(last)
    raise UserError(
        f"--numbers {text}: write FIRST-LAST with numbers from 0 to {most - 1}, as many as the topology's tags have "
        "room for",
        ExitCode.USAGE,
    )


def _key(path: Path) -> bytes:
    """The cluster's key. Its readers can make tickets, so only root may."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            pass
        else:
            with open(made, "wb") as file:
                file.write(secrets.token_bytes(KEY_BYTES))
        with path.open("rb") as file:
            status, key = os.fstat(file.fileno()), file.read(KEY_BYTES + 1)
    except OSError as error:
        raise UserError(f"--key-file {path}: {error.strerror}") from None
    if status.st_uid != 0 or status.st_mode & 0o077:
        raise UserError(f"--key-file {path} is not root's alone: chown root and chmod 600 it")
    if len(key) != KEY_BYTES:
        raise UserError(f"--key-file {path} must have {KEY_BYTES} bytes: remove it, and a new one is made")
    return key
