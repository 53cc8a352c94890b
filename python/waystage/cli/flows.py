"""`waystage flows`: list running flows, and pace them.

Arrives: the snapshot of the controller, or what the flow agent of this node knows; a flow and settings for it.
Leaves: a table or JSON; a request to the flow agent, which knows its sender's user.
Must not know: how engines obey.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from waystage.cli.common import ExitCode, Output, UserError, output_options, table
from waystage.cli.connecting import configuration
from waystage.cli.quantities import RateOrOff

if TYPE_CHECKING:
    from waystage.state import FlowInfo

MODES = ("fair", "fast-start", "modest", "aggressive")
COLUMNS = ("flow", "class", "job", "user", "engine", "rate", "done", "limited by", "settings")


@click.group(invoke_without_command=True)
@click.option("--job", metavar="ID", help="Only flows of this job.")
@click.option(
    "--class", "traffic", type=click.Choice(["mpi", "staging", "io", "wan"]), help="Only this class."
)
@click.option("--local", is_flag=True, help="Ask the flow agent of this node: your own flows; all for root.")
@click.option(
    "--watch", is_flag=True, help="Repeat every second until Ctrl-C; with --json, a line each time."
)
@click.option(
    "--endpoint",
    envvar="WAYSTAGE_ENDPOINT",
    help="Endpoint of a controller [default: unixsock-stream//run/waystage/backplane.sock, or $WAYSTAGE_ENDPOINT].",
)
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="WAYSTAGE_CONFIG",
    help="YAML file with endpoints and certificates [or $WAYSTAGE_CONFIG].",
)
@output_options
@click.pass_context
def command(
    context: click.Context,
    job: str | None,
    traffic: str | None,
    local: bool,
    watch: bool,
    endpoint: str | None,
    config: Path | None,
    output: Output,
) -> None:
    """List running flows: what every engine moves, for which job, how fast, what limits it and what it is asked to keep
    to.

    All flows that the controller knows; with --local, those that the flow agent of this node knows.
    """
    if context.invoked_subcommand is not None:
        return
    while True:
        rows = _local() if local else _known(endpoint, config)
        rows = [row for row in rows if job in (None, row["job_id"]) and traffic in (None, row["traffic"])]
        output.result({"flows": rows}, _text(rows))
        if not watch:
            return
        time.sleep(1.0)


@command.command("set")
@click.argument("flow_id", metavar="ID")
@click.option(
    "--bandwidth-limit",
    "limit",
    type=RateOrOff(),
    metavar="RATE|off",
    help="Limit of the rate, e.g. 100M; off lifts it.",
)
@click.option("--mode", type=click.Choice(MODES), help="Wide-area mode.")
@click.option("--loaders", type=click.IntRange(1, 4096), help="Loaders for each storage target.")
@output_options
def set_(flow_id: str, limit: int | None, mode: str | None, loaders: int | None, output: Output) -> None:
    """Ask a running flow to keep to a rate, mode or number of loaders.

    On the node where it runs: your own flows, any as root; as root on the global controller's machine: any flow. A
    policy's lower rate still holds.
    """
    wanted: dict[str, Any] = {}
    if limit is not None:
        wanted["rate_bps"] = limit * 8 or None
    if mode is not None:
        wanted["mode"] = mode
    if loaders is not None:
        wanted["loaders"] = loaders
    if not wanted:
        raise UserError("nothing to set: give --bandwidth-limit, --mode or --loaders", ExitCode.USAGE)
    _change(flow_id, wanted, "asked to change", output)


@command.command("pause")
@click.argument("flow_id", metavar="ID")
@output_options
def pause(flow_id: str, output: Output) -> None:
    """Pause a running flow until `waystage flows resume`."""
    _change(flow_id, {"paused": True}, "asked to pause", output)


@command.command("resume")
@click.argument("flow_id", metavar="ID")
@output_options
def resume(flow_id: str, output: Output) -> None:
    """Let a flow paused by `waystage flows pause` go on, unless a policy pauses it too."""
    _change(flow_id, {"paused": False}, "asked to go on", output)


def _change(flow_id: str, wanted: dict[str, Any], done: str, output: Output) -> None:
    _ask({"type": "change", "flow_id": flow_id} | wanted)
    output.result({"flow_id": flow_id, "asked": wanted}, f"{flow_id}: {done}")


def _ask(message: dict[str, Any]) -> dict[str, Any]:
    """The flow agent's answer. Raises UserError."""
    from waystage.flows import socket_path
    from waystage.local_client import LocalClient, LocalRpcError

    path = socket_path()
    if path is None:
        raise UserError(
            "$WAYSTAGE_FLOWS is none: unset it to reach the flow agent of this node", ExitCode.USAGE
        )
    try:
        with LocalClient(path) as client:
            client.send(json.dumps(message).encode())
            line = client.receive(10.0)
    except LocalRpcError as error:
        raise UserError(str(error), ExitCode.MISSING) from None
    except (OSError, EOFError) as error:
        raise UserError(f"{path}: the flow agent has disconnected: {error}") from None
    if line is None:
        raise UserError(
            f"{path}: the flow agent did not answer within 10 s: is its controller busy?", ExitCode.BUSY
        )
    answer: dict[str, Any] = json.loads(line)
    if answer["type"] == "refused":
        raise UserError(f"{answer['why']}", ExitCode.BAD_INPUT)
    return answer


def _local() -> list[dict[str, Any]]:
    import pwd

    rows: list[dict[str, Any]] = _ask({"type": "show"})["flows"]
    for row in rows:
        uid = row.pop("uid")
        try:
            row["user"] = row["user"] or pwd.getpwuid(uid).pw_name
        except KeyError:
            row["user"] = str(uid)
    return rows


def _known(endpoint: str | None, config: Path | None) -> list[dict[str, Any]]:
    from waystage.backplane import Backplane, BackplaneError
    from waystage.state import State

    try:
        with Backplane.open(configuration(endpoint, config)) as backplane:
            state = State.restore(bytes(backplane.snapshot().state))
    except BackplaneError as error:
        raise UserError(f"{error}; --local asks the flow agent of this node") from None
    return [_row(flow) for flow in state.flows.values()]


def _row(flow: FlowInfo) -> dict[str, Any]:
    import msgspec

    row: dict[str, Any] = msgspec.to_builtins(flow)
    for name in ("wanted", "asked", "heard_ns"):
        row.pop(name, None)
    return row | {"settings": msgspec.to_builtins(flow.settings)}


def _text(rows: list[dict[str, Any]]) -> str:
    import msgspec

    from waystage.events import FlowSettings
    from waystage.view.describe import settings_text

    if not rows:
        return "no flows"
    shown = [
        {
            "flow": row["flow_id"],
            "class": row["traffic"],
            "job": row.get("job_id") or "-",
            "user": row["user"],
            "engine": row["engine"],
            "rate": f"{row['rate_bps'] / 8e6:,.1f} MB/s",
            "done": _done(row["bytes_done"], row["bytes"]),
            "limited by": row["limited_by"] or "-",
            "settings": settings_text(msgspec.convert(row["settings"], FlowSettings)),
        }
        for row in sorted(rows, key=lambda row: (row.get("job_id") or "", row["flow_id"]))
    ]
    return table(shown, COLUMNS)


def _done(done: int, total: int) -> str:
    share = f" of {total / 1e6:,.0f} MB ({done / total:.0%})" if total > 0 else " MB"
    return f"{done / 1e6:,.0f}{share}"
