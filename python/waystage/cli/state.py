"""`waystage state`: show, save and compare the state of a controller.

Arrives: the snapshot of a running controller, or a file of one.
Leaves: a summary, a file, or the fields that differ.
Must not know: how the state came about.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from waystage.cli.common import ExitCode, Output, UserError, output_options
from waystage.cli.connecting import configuration, connection_options
from waystage.outputs import write_whole


@click.group()
def command() -> None:
    """Show, save and compare the state of a controller."""


@command.command("show")
@connection_options
def show(endpoint: str | None, config: Path | None, output: Output) -> None:
    """Show jobs, topology and plans of the running controller; with --json, the complete state."""
    import msgspec

    from waystage.state import State

    state = State.restore(_snapshot(endpoint, config))
    topology = state.topology
    lines = [
        f"events      {state.events}",
        f"topology    {topology.name if topology else 'none'}",
        f"jobs        {len(state.jobs)} ({len(state.running_jobs)} running, {len(state.staging_jobs)} staging)",
        f"down        {', '.join([*state.down_switches, *state.down_links]) or 'nothing'}",
        f"requested   {_plan(state.requested)}",
        f"in force    {_plan(state.in_force)}",
    ]
    output.result(msgspec.to_builtins(state), "\n".join(lines))


@command.command("save")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@connection_options
def save(file: Path, endpoint: str | None, config: Path | None, output: Output) -> None:
    """Write the state of the running controller to FILE."""
    data = _snapshot(endpoint, config)
    try:
        write_whole(file, data)
    except OSError as error:
        raise UserError(f"cannot write {file}: {error.strerror}") from None
    output.result({"file": str(file), "bytes": len(data)}, f"saved to {file}")


@command.command("compare")
@click.argument("first", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("second", type=click.Path(dir_okay=False, path_type=Path))
@output_options
def compare(first: Path, second: Path, output: Output) -> None:
    """List the fields that differ between two saved states; exit status 1 if any do."""
    differing = _read(first).difference(_read(second))
    output.result({"equal": not differing, "differing": differing}, ", ".join(differing) or "equal")
    if differing:
        raise click.exceptions.Exit(int(ExitCode.FAILED))


def _snapshot(endpoint: str | None, config: Path | None) -> bytes:
    from waystage.backplane import Backplane, BackplaneError

    try:
        with Backplane.open(configuration(endpoint, config)) as backplane:
            return bytes(backplane.snapshot().state)
    except BackplaneError as error:
        raise UserError(str(error), ExitCode.FAILED) from None


def _read(path: Path) -> Any:
    from waystage.events import EventError
    from waystage.state import State

    try:
        return State.restore(path.read_bytes())
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}", ExitCode.BAD_INPUT) from None
    except EventError as error:
        raise UserError(f"{path}: {error}", ExitCode.BAD_INPUT) from None


def _plan(plan: Any) -> str:
    if plan is None:
        return "none"
    return f"{plan.style}, {'separated' if plan.separated else 'shared'} cores"
