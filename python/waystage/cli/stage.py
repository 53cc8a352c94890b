"""`waystage stage`: submit requests to the stager, follow them, cancel them.

Arrives: source, destination, job; ids of requests.
Leaves: the request, or one sentence why there is none; exit status 8 where a request failed, 75 where time is up.
Must not know: how the stager works.
"""

from __future__ import annotations

import datetime
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from waystage.cli.common import ExitCode, Output, UserError, output_options, table
from waystage.cli.copy_expected import in_words
from waystage.cli.copy_report import size_text
from waystage.cli.quantities import Rate

COLUMNS = ("id", "job", "dir", "state", "done", "of", "files", "s", "source", "destination")

_socket = click.option(
    "--socket",
    type=click.Path(path_type=Path),
    envvar="WAYSTAGE_STAGER",
    help="Socket of the stager. Default: $WAYSTAGE_STAGER, else /run/waystage/stager.sock.",
)
_ids = click.argument("ids", nargs=-1, type=click.IntRange(1), metavar="[ID]...")
_job = click.option("--job", "job_id", metavar="ID", help="All requests of this job.")


class Instant(click.ParamType[int]):
    """A time: seconds since 1970, an ISO time in local time or with an offset, or `+90s`, `+15m`, `+2h` from now."""

    name = "time"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        relative = re.fullmatch(r"\+(\d+(?:\.\d+)?)([smhd])", value)
        if relative:
            unit = {"s": 1, "m": 60, "h": 3600, "d": 86400}[relative[2]]
            return time.time_ns() + int(float(relative[1]) * unit * 1e9)
        try:
            if re.fullmatch(r"\d{1,12}(\.\d+)?", value):
                return int(float(value) * 1e9)
            return int(datetime.datetime.fromisoformat(value).timestamp() * 1e9)
        except (ValueError, OverflowError):
            self.fail(
                f"{value!r} is no time: write 2026-12-24T18:00, +15m, or seconds since 1970", param, ctx
            )


LOOK_S = 2.0
"""How long `stage status` waits for a stager: it restarts within a second, and a person waits for the answer."""


@click.group()
def command() -> None:
    """Stage a job's data in before it starts and out after it ended.

    The requests are carried out by `waystage stager`, with the rights of the user who submits them; they outlive this
    command, the job, and restarts of the stager.

    \b
    waystage stage in  /archive/run7 /scratch/run7 --job 4711 --wait
    waystage stage in  login1:/data/set9 /scratch/set9 --job 4711 --ssh
    waystage stage out /scratch/run7/out /archive/run7/out --job 4711
    waystage stage status --job 4711 --explain
    """


def _submitting(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(
        (
            click.argument("source"),
            click.argument("destination"),
            click.option("--job", "job_id", required=True, metavar="ID", help="The job whose data it is."),
            click.option("--user", default="", help="For root: submit for this user, by name or number."),
            click.option(
                "--catalog",
                type=click.Path(path_type=Path),
                metavar="DIR",
                help="List SOURCE by this catalog instead of a walk; directories changed since are read again.",
            ),
            click.option(
                "--nodes",
                metavar="LIST",
                help="The job's nodes: c1,c4 or c[1-3], in Slurm's hostlist format.",
            ),
            click.option("--verify", is_flag=True, help="Read the copy back and compare."),
            click.option(
                "--from-storage",
                is_flag=True,
                help="With --verify: read from storage, not from the page cache.",
            ),
            click.option(
                "--bandwidth-limit",
                "rate_bytes_per_s",
                type=Rate(),
                default=0,
                metavar="RATE",
                help="Limit the rate in bytes/s, e.g. 100M or 1.5G.",
            ),
            click.option(
                "--deadline",
                "due_ns",
                type=Instant(),
                default=0,
                metavar="TIME",
                help="When the data is needed: the job's expected start, e.g. 2026-12-24T18:00 or +15m.",
            ),
            click.option(
                "--key", default="", metavar="KEY", help="Submit once: a repeated KEY gives the same request."
            ),
            click.option(
                "--restart", is_flag=True, help="Discard partial files of another interrupted copy."
            ),
            click.option(
                "--mode",
                type=click.Choice(["fair", "fast-start", "modest", "aggressive"]),
                default="fair",
                show_default=True,
                help="Between hosts: congestion control.",
            ),
            click.option(
                "--port",
                type=click.IntRange(1, 65535),
                default=7900,
                show_default=True,
                help="Between hosts: the server's TCP and UDP port.",
            ),
            click.option(
                "--identity",
                type=click.Path(dir_okay=False, path_type=Path),
                metavar="FILE",
                help="Between hosts: this user's key. Default: ~/.config/waystage/wan/key.",
            ),
            click.option(
                "--server-key",
                default="",
                metavar="KEY",
                help="Between hosts: trust only this key or fingerprint.",
            ),
            click.option(
                "--trust-new", is_flag=True, help="Between hosts: trust a server that is not known yet."
            ),
            click.option("--ssh", is_flag=True, help="Between hosts: start the server over ssh."),
            click.option(
                "--connections",
                type=click.IntRange(1, 32),
                default=1,
                show_default=True,
                help="Between hosts: number of connections.",
            ),
            click.option("--wait", "waiting", is_flag=True, help="Wait until it is done."),
            click.option(
                "--dry-run",
                "-n",
                is_flag=True,
                help="Print what would move, from where, and the expected time.",
            ),
            _socket,
            output_options,
        )
    ):
        function = option(function)
    return function


@command.command("in")
@click.option(
    "--node-local",
    is_flag=True,
    help="DESTINATION is local to each of --nodes: the data is spread among them.",
)
@_submitting
def stage_in(**values: Any) -> int:
    """Stage SOURCE in to DESTINATION before job ID starts.

    One of both may be [USER@]HOST:PATH, as for `waystage copy`. Missing directories above DESTINATION are made. Prints
    the number of the request.
    """
    return _submit("in", **values)


@command.command("out")
@click.option(
    "--node-local",
    is_flag=True,
    help="SOURCE is local to each of --nodes: each copies it to DESTINATION/NODE, which all nodes reach.",
)
@_submitting
def stage_out(**values: Any) -> int:
    """Stage SOURCE out to DESTINATION; the job may have ended.

    One of both may be [USER@]HOST:PATH, as for `waystage copy`. Missing directories above DESTINATION are made. Prints
    the number of the request.
    """
    return _submit("out", **values)


def _submit(
    direction: Any,
    *,
    source: str,
    destination: str,
    nodes: str | None,
    verify: bool,
    from_storage: bool,
    identity: Path | None,
    catalog: Path | None,
    waiting: bool,
    socket: Path | None,
    output: Output,
    **values: Any,
) -> int:
    from waystage.jobs.hostlist import HostlistError, expand
    from waystage.staging.client import Client
    from waystage.staging.requests import Reach, Submission, checked

    if from_storage and not verify:
        raise UserError("--from-storage needs --verify", ExitCode.USAGE)
    try:
        names = expand(nodes) if nodes else ()
    except HostlistError as error:
        raise UserError(str(error), ExitCode.USAGE) from None
    reach = Reach(
        identity="" if identity is None else str(identity.absolute()),
        **{
            name: values.pop(name)
            for name in ("mode", "port", "server_key", "trust_new", "ssh", "connections")
        },
    )
    submission = checked(
        Submission(
            direction=direction,
            source=_absolute(source),
            destination=_absolute(destination),
            nodes=names,
            catalog="" if catalog is None else str(catalog.absolute()),
            verify=("storage" if from_storage else "cached") if verify else "none",
            reach=reach,
            **values,
        )
    )
    with Client(socket) as client:
        request = client.submit(submission)
        if submission.dry_run:
            return _planned(client.wait([request["id"]], explain=True)[0], output)
        if not waiting:
            output.result(request, f"{request['id']}")
            return ExitCode.OK
        output.note(f"request {request['id']}")
        return _follow(client, [request["id"]], None, None, output, single=True)


def _absolute(path: str) -> str:
    from waystage.wan.address import parse_remote

    if not path or parse_remote(path) is not None or path.startswith("/"):
        return path
    return os.path.join(os.getcwd(), path)


def _planned(request: dict[str, Any], output: Output) -> int:
    if request["state"] != "done":
        raise UserError(request["error"], ExitCode.BAD_INPUT)
    plan = request["plan"]
    found = plan["expected"]
    if found is None:
        expected = f"unknown: nothing was measured yet for {plan['between']}"
    else:
        whose = "" if found["own"] else " of other users"
        expected = f"{in_words(found, 'transfers' + whose)}, {plan['between']}"
    lines = [
        f"would move {size_text(plan['bytes'])} in {plan['files']:,} files: {request['source']} -> {request['destination']}",
        f"expected time: {expected}",
        *_choices(request),
    ]
    output.result(request, "\n".join(lines))
    return ExitCode.OK


def _choices(request: dict[str, Any]) -> list[str]:
    return [
        f"  {each['what']}: {each['chosen']}, because {each['why']}" for each in request.get("choices", ())
    ]


@command.command()
@_ids
@_job
@click.option("--explain", is_flag=True, help="Show what was chosen for each request, and why.")
@_socket
@output_options
def status(
    ids: tuple[int, ...], job_id: str | None, explain: bool, socket: Path | None, output: Output
) -> None:
    """Show requests: yours, those of a job, or by number.

    With --json, a list of objects.
    """
    from waystage.staging.client import Client

    with Client(socket, patience_s=LOOK_S) as client:
        found = client.status(ids or None, job_id, explain=explain)
    output.result(found, _listed(found))


def _listed(found: list[dict[str, Any]]) -> str:
    rows = [
        {
            "id": each["id"],
            "job": each["job_id"],
            "dir": each["direction"],
            "state": each["state"],
            "done": size_text(each["bytes_done"]),
            "of": size_text(each["bytes_total"]) if each["bytes_total"] else "?",
            "files": each["files_done"],
            "s": round(each["seconds"], 1),
            "source": each["source"],
            "destination": each["destination"],
        }
        for each in found
    ]
    lines = [table(rows, COLUMNS)] if rows else ["no requests"]
    for each in found:
        why = each["error"] or each["reason"]
        if why and each["state"] != "cancelled":
            lines.append(f"request {each['id']}: {why}")
        if each["warning"]:
            lines.append(f"request {each['id']}: note: {each['warning']}")
        if "choices" in each:
            lines += [f"request {each['id']}:", *_choices(each)]
    return "\n".join(lines)


@command.command()
@_ids
@_job
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Wait at most this time, then exit with 75.",
)
@_socket
@output_options
def wait(
    ids: tuple[int, ...], job_id: str | None, timeout: float | None, socket: Path | None, output: Output
) -> int:
    """Wait until requests have ended.

    Exit status 0: all are done. 8: some failed or were cancelled, each with a sentence on stderr. 75: time is up, and
    some have not ended.
    """
    from waystage.staging.client import Client

    _named(ids, job_id)
    with Client(socket, patience_s=PATIENCE_S if timeout is None else max(timeout, 1.0)) as client:
        return _follow(client, ids or None, job_id, timeout, output)


PATIENCE_S = 60.0
"""How long `wait` waits for a stager that is being restarted."""


def _follow(
    client: Any,
    ids: Any,
    job_id: str | None,
    timeout: float | None,
    output: Output,
    *,
    single: bool = False,
) -> int:
    with output.progress() as progress:

        def report(found: list[dict[str, Any]]) -> None:
            total = sum(each["bytes_total"] for each in found)
            done = sum(each["bytes_done"] for each in found)
            files = sum(each["files_done"] for each in found)
            waiting = next(
                (each["reason"] for each in found if each["state"] == "queued" and each["reason"]), ""
            )
            progress(
                f"{files:,} files, {size_text(done)}" + (f"; {waiting}" if waiting else ""),
                min(done / total, 0.99) if total else 0.0,
            )

        found = client.wait(ids, job_id, timeout_s=timeout, report=report)
    output.result(found[0] if single else found, _listed(found))
    bad = [each for each in found if each["state"] in ("failed", "cancelled")]
    if not output.json or not single:
        for each in bad:
            click.echo(f"waystage: error: request {each['id']}: {each['error']}", err=True)
    if any(each["state"] in ("queued", "running") for each in found):
        left = [str(each["id"]) for each in found if each["state"] in ("queued", "running")]
        click.echo(f"waystage: error: not ended within {timeout:g} s: request {', '.join(left)}", err=True)
        return ExitCode.TIMED_OUT
    return ExitCode.PARTIAL if bad else ExitCode.OK


@command.command()
@_ids
@_job
@_socket
@output_options
def cancel(ids: tuple[int, ...], job_id: str | None, socket: Path | None, output: Output) -> None:
    """Cancel requests that have not ended.

    What was copied stays: the same request, submitted again, resumes it.
    """
    from waystage.staging.client import Client

    _named(ids, job_id)
    with Client(socket) as client:
        found = client.cancel(ids or None, job_id)
    output.result(found, _listed(found))


def _named(ids: tuple[int, ...], job_id: str | None) -> None:
    if bool(ids) == bool(job_id):
        raise UserError("give either numbers of requests or --job ID", ExitCode.USAGE)
