"""`waystage notify`: notifications from a scheduler's hooks.

Arrives: a job id and its change.
Leaves: one event, journalled by the controller, or an error.
Must not know: policies, paths, other subscribers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from waystage import events
from waystage.cli.common import ExitCode, Output, UserError
from waystage.cli.connecting import configuration, connection_options

if TYPE_CHECKING:
    from waystage.backplane import Backplane


MOST_SHOWN = 8
"""Hosts that an error lists."""

STATE_PATIENCE_S = 1.0
"""How long to wait for the controller's topology."""


def _options(function: Callable[..., None]) -> Callable[..., None]:
    """The job id and the controllers' address, common to all notifications."""
    return connection_options(click.argument("job_id")(function))


_DIRECTION = click.option(
    "--direction",
    type=click.Choice(["in", "out"]),
    default="in",
    show_default=True,
    help="in: storage to the job's nodes; out: nodes to storage.",
)
_BYTES = click.option(
    "--bytes",
    "amount",
    default="0",
    metavar="AMOUNT",
    help="Amount of data, e.g. 8000000 or '8 GB' (docs/reference/units.md).",
)


@click.group()
def command() -> None:
    """Notify the controllers that a job, its staging or its I/O starts or ends.

    For the hooks of a scheduler. A command returns when the controller has the notification on disk. Notifications
    may be repeated and reordered.
    """


@command.command("job-start")
@click.option(
    "--nodes",
    required=True,
    metavar="LIST",
    help="The job's nodes, head node first: c1,c4 or c[1-3], in Slurm's hostlist format.",
)
@click.option(
    "--user",
    default="",
    metavar="NAME",
    help="The job's owner: flows of other users do not count as the job's.",
)
@_options
def job_start(job_id: str, nodes: str, user: str, **common: Any) -> None:
    """Job JOB_ID starts on --nodes."""
    names = _nodes(nodes)
    _notify(events.JobStarted(job_id=job_id, nodes=names, user=user), **common)


@command.command("job-end")
@_options
def job_end(job_id: str, **common: Any) -> None:
    """Job JOB_ID has ended. The end of an unknown job has no effect."""
    _notify(events.JobFinished(job_id=job_id), **common)


@command.command("staging-start")
@_DIRECTION
@_BYTES
@click.option("--nodes", metavar="LIST", help="The job's nodes, if staging begins before the job.")
@_options
def staging_start(job_id: str, direction: Any, amount: str, nodes: str | None, **common: Any) -> None:
    """A stage-in or stage-out of job JOB_ID begins."""
    names = _nodes(nodes) if nodes is not None else ()
    count = _amount(amount)
    event = events.StagingStarted(job_id=job_id, direction=direction, bytes=count, nodes=names)
    _notify(event, **common)


@command.command("staging-end")
@_DIRECTION
@_options
def staging_end(job_id: str, direction: Any, **common: Any) -> None:
    """A stage-in or stage-out of job JOB_ID has ended."""
    _notify(events.StagingFinished(job_id=job_id, direction=direction), **common)


@command.command("io-start")
@_BYTES
@_options
def io_start(job_id: str, amount: str, **common: Any) -> None:
    """Running job JOB_ID begins to use the global file system."""
    count = _amount(amount)
    _notify(events.IoStarted(job_id=job_id, bytes=count), **common)


@command.command("io-end")
@_options
def io_end(job_id: str, **common: Any) -> None:
    """Running job JOB_ID no longer uses the global file system."""
    _notify(events.IoFinished(job_id=job_id), **common)


def _nodes(text: str) -> tuple[str, ...]:
    from waystage.jobs.hostlist import HostlistError, expand

    try:
        return expand(text)
    except HostlistError as error:
        raise UserError(str(error), ExitCode.USAGE) from None


def _amount(text: str) -> int:
    from waystage.experiment.units import parse_bytes

    try:
        return parse_bytes(text)
    except ValueError as error:
        raise UserError(f"--bytes {error}", ExitCode.USAGE) from None


def _notify(event: events.Event, endpoint: str | None, config: Path | None, output: Output) -> None:
    from waystage.backplane import Backplane, BackplaneError
    from waystage.jobs.notify import Notifier, checked

    try:
        checked(event)  # what is wrong with the event is said whether or not a controller answers
        backplane = Backplane.open(configuration(endpoint, config))
        with Notifier(backplane) as notifier:
            if isinstance(event, events.JobStarted | events.StagingStarted):
                _refuse_unknown(event.nodes, backplane)
            item = notifier.send(event)
    except events.EventError as error:
        raise UserError(str(error), ExitCode.USAGE) from None
    except BackplaneError as error:
        raise UserError(str(error), ExitCode.FAILED) from None
    output.result({"event": type(event).__name__, "event_id": item.event_id, "time_ns": item.time_ns})


def _refuse_unknown(nodes: Sequence[str], backplane: Backplane) -> None:
    """Raise UserError for nodes that the controller's topology lacks.

    Any node is accepted where the controller has no topology, or lets this client not see its state.
    """
    from waystage.backplane import BackplaneError
    from waystage.state import State

    try:
        topology = State.restore(bytes(backplane.snapshot(STATE_PATIENCE_S).state)).topology
    except BackplaneError:
        return
    known = [] if topology is None else [host.name for host in topology.hosts]
    unknown = sorted(set(nodes) - set(known))
    if known and unknown:
        raise UserError(
            f"the controller's topology has no host {_some(unknown)}: its hosts are {_some(known)}",
            ExitCode.BAD_INPUT,
        )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:MOST_SHOWN]) + (", ..." if len(names) > MOST_SHOWN else "")
