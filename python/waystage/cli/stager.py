"""`waystage stager`: the staging daemon, in the foreground, for systemd or a user.

Arrives: limits, a state directory, a socket.
Leaves: one line when ready; exit status 0 after SIGTERM or SIGINT.
Must not know: how requests are carried out.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
from pathlib import Path
from typing import Any

import click

from waystage.cli.common import Output, UserError, output_options, take_descriptors
from waystage.cli.connecting import configuration
from waystage.cli.quantities import Size
from waystage.cli.service import log_format_option, start_logging, tell_systemd, write_ready
from waystage.outputs import remove_written


@click.command()
@click.option(
    "--state-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of the queue. Default: /var/lib/waystage-stager, or ~/.local/state/waystage/stager.",
)
@click.option(
    "--socket",
    type=click.Path(path_type=Path),
    help="Socket for `waystage stage`. Default: /run/waystage/stager.sock, or one in $XDG_RUNTIME_DIR.",
)
@click.option(
    "--submitter",
    "submitters",
    multiple=True,
    metavar="USER",
    help="Let USER submit for other users, as root may (repeatable), e.g. slurm.",
)
@click.option(
    "--engines", type=click.IntRange(1, 1000), default=8, show_default=True, help="Concurrent engines."
)
@click.option(
    "--engines-per-user",
    type=click.IntRange(1, 1000),
    default=4,
    show_default=True,
    help="Concurrent engines of one user.",
)
@click.option(
    "--requests-per-user",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    help="Unfinished requests of one user.",
)
@click.option(
    "--bytes-per-user",
    type=Size(1),
    metavar="SIZE",
    help="Bytes of one user's unfinished requests together, e.g. 20T. Default: no limit.",
)
@click.option(
    "--retry-for",
    type=click.FloatRange(min=0),
    default=86400.0,
    show_default=True,
    metavar="SECONDS",
    help="Wait for a far end or another copy's lock for this time without any progress.",
)
@click.option(
    "--retain",
    type=click.FloatRange(min=0),
    default=7 * 86400.0,
    show_default=True,
    metavar="SECONDS",
    help="Show finished requests for this time.",
)
@click.option(
    "--rsh",
    default="ssh -o BatchMode=yes",
    show_default=True,
    metavar="COMMAND",
    help="Command that starts a program on a host, for `stage --ssh` and node-local destinations.",
)
@click.option(
    "--remote-waystage",
    default="waystage",
    show_default=True,
    metavar="COMMAND",
    help="The waystage command on other hosts.",
)
@click.option(
    "--catalog",
    "catalogs",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="List sources by this catalog instead of a walk, where it contains them and the user may read it"
    " (repeatable).",
)
@click.option(
    "--endpoint",
    envvar="WAYSTAGE_ENDPOINT",
    help="Publish staging events to the controller at this endpoint [or $WAYSTAGE_ENDPOINT].",
)
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="WAYSTAGE_CONFIG",
    help="YAML file with endpoints and certificates of the controllers [or $WAYSTAGE_CONFIG].",
)
@click.option(
    "--ready-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to write when ready; removed at exit.",
)
@log_format_option
@output_options
def command(ready_file: Path | None, output: Output, **options: Any) -> None:
    """Run the stager until SIGTERM or Ctrl-C.

    As root it serves all users, and starts each engine with the rights of the request's user; as another user it
    serves that user alone. Its queue survives kills: started again with the same --state-dir, it resumes every
    request. Prints one line when ready and notifies systemd (Type=notify). Logs to stderr.
    """
    from waystage.local_client import LocalRpcError
    from waystage.staging.daemon import Stager

    start_logging(quiet=output.quiet)
    take_descriptors()
    stager = Stager(_settings(options))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stager.stop())

    def ready() -> None:
        about = {"socket": str(stager.settings.socket), "pid": os.getpid(), "uid": os.geteuid()}
        output.result(about, f"ready: stager at {about['socket']}")
        sys.stdout.flush()
        if ready_file is not None:
            write_ready(ready_file, f"{os.getpid()}\n")
        tell_systemd("READY=1")

    try:
        stager.run(ready)
    except LocalRpcError as error:
        raise UserError(str(error)) from None
    finally:
        if ready_file is not None:
            remove_written(ready_file)


def _settings(options: dict[str, Any]) -> Any:
    from waystage.staging.client import SITE_SOCKET, own_socket
    from waystage.staging.daemon import Settings
    from waystage.staging.schedule import Limits
    from waystage.staging.users import account_named

    root = os.geteuid() == 0
    state = Path("/var/lib/waystage-stager") if root else _own_state()
    socket = options["socket"] or (SITE_SOCKET if root else own_socket())
    if root and options["socket"] is None:
        _make_runtime(socket.parent)
    controllers = None
    if options["endpoint"] is not None or options["config"] is not None:
        controllers = configuration(options["endpoint"], options["config"])
    return Settings(
        state_dir=(options["state_dir"] or state).absolute(),
        socket=socket.absolute(),
        submitters=frozenset(account_named(name).uid for name in options["submitters"]),
        controllers=controllers,
        rsh=tuple(shlex.split(options["rsh"])),
        remote_waystage=options["remote_waystage"],
        catalogs=tuple(str(path.absolute()) for path in options["catalogs"]),
        limits=Limits(
            engines=options["engines"],
            engines_per_user=options["engines_per_user"],
            requests_per_user=options["requests_per_user"],
            bytes_per_user=options["bytes_per_user"] or 0,
            retain_s=options["retain"],
            retry_for_s=options["retry_for"],
        ),
    )


def _own_state() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "waystage" / "stager"


def _make_runtime(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o755, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: {error.strerror}: give --socket") from None
