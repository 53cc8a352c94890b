"""What subcommands share that reach a server on another host: whom to believe, by which way, as whom.

Arrives: options; what a server showed.
Leaves: a key that is believed, or one clear sentence.
Must not know: what is done there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from waystage.cli.common import ExitCode, Output, UserError
from waystage.wan.config import LEAST_MEMORY, MOST_MEMORY
from waystage.wan.rates import RateError, Schedule, parse_rate, parse_schedule

if TYPE_CHECKING:
    from waystage._native import WanError
    from waystage.wan.trust import KnownHosts

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

STATUS = {
    "busy": ExitCode.BUSY,
    "ends": ExitCode.BAD_INPUT,
    "other-journal": ExitCode.BAD_INPUT,
    "input": ExitCode.BAD_INPUT,
}
"""Exit statuses of failures that have one of their own."""


class Unreached(UserError):
    """The other end was lost, cannot be reached, or has no room at the moment: a later try may do better. `lost` where it had been reached."""

    def __init__(self, message: str, exit_code: ExitCode = ExitCode.FAILED, *, lost: bool = False) -> None:
        super().__init__(message, exit_code)
        self.lost = lost


class Rate(click.ParamType[int]):
    """`100M`, bytes a second."""

    name = "bytes/s"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return parse_rate(str(value))
        except RateError as error:
            self.fail(str(error), param, ctx)


class Memory(click.ParamType[int]):
    """`256Mi`, bytes of memory for what is underway."""

    name = "bytes"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            found = parse_rate(str(value))
        except RateError:
            found = 0
        if not LEAST_MEMORY <= found <= MOST_MEMORY:
            self.fail(f"{value!r} is no memory from 16Mi to 4Gi, such as 512Mi", param, ctx)
        return found


class RateSchedule(click.ParamType[Schedule]):
    """A rate, or one by time of day and day of the week; `@FILE` for what a file says."""

    name = "bytes/s"

    def convert(
        self, value: str | Schedule, param: click.Parameter | None, ctx: click.Context | None
    ) -> Schedule:
        if isinstance(value, Schedule):
            return value
        where = ""
        try:
            if value.startswith("@"):
                where = f"{value[1:]}: "
                value = Path(value[1:]).read_text(encoding="utf-8")
            return parse_schedule(value)
        except OSError as error:
            self.fail(f"{where}cannot be read: {error.strerror}", param, ctx)
        except UnicodeDecodeError:
            self.fail(f"{where}is no text", param, ctx)
        except RateError as error:
            self.fail(f"{where}{error}", param, ctx)


@dataclass(frozen=True)
class Trust:
    """This user's key, and which servers to believe."""

    identity: Path | None
    known_hosts: Path | None
    server_key: str | None
    trust_new: bool

    def hosts(self) -> KnownHosts:
        from waystage.wan.trust import KnownHosts, wan_dir

        return KnownHosts(self.known_hosts or wan_dir() / "known_hosts")

    def pinned(self) -> str | None:
        """The key that was given with --server-key, where it is a whole key and no fingerprint."""
        return self.server_key if self.server_key and " " in self.server_key else None


def _trust_options(prefix: str) -> list[Callable[[F], F]]:
    """As whom, and whom to believe."""
    return [
        click.option(
            "--identity",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            metavar="FILE",
            help=f"{prefix}this user's key. Default: ~/.config/waystage/wan/key, made at first.",
        ),
        click.option(
            "--known-hosts",
            type=click.Path(dir_okay=False, path_type=Path),
            metavar="FILE",
            help=f"{prefix}the servers' keys. Default: ~/.config/waystage/wan/known_hosts.",
        ),
        click.option(
            "--server-key",
            metavar="KEY",
            help=f"{prefix}believe a server only with this key or fingerprint, whatever the file of known hosts says.",
        ),
        click.option("--trust-new", is_flag=True, help=f"{prefix}believe a server that is not known yet."),
    ]


def trust_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Whom to believe, as options; the function receives `trust: Trust`."""

    @functools.wraps(function)
    def with_trust(
        *args: Any,
        identity: Path | None,
        known_hosts: Path | None,
        server_key: str | None,
        trust_new: bool,
        **kwargs: Any,
    ) -> Any:
        return function(*args, trust=Trust(identity, known_hosts, server_key, trust_new), **kwargs)

    wrapped: Callable[..., Any] = with_trust
    for option in reversed(_trust_options("")):
        wrapped = option(wrapped)
    return wrapped


def server_options(prefix: str = "") -> Callable[[F], F]:
    """Give a click command the options by which a server is reached; `prefix` begins their help."""
    options = [
        click.option(
            "--mode",
            type=click.Choice(["fair", "fast-start", "modest", "aggressive"]),
            default="fair",
            show_default=True,
            help=f"{prefix}how fast to send beside others; the server grants fast-start and aggressive.",
        ),
        click.option(
            "--port",
            type=click.IntRange(1, 65535),
            default=7900,
            show_default=True,
            help=f"{prefix}the server's, of TCP and UDP.",
        ),
        *_trust_options(prefix),
        click.option(
            "--udp-wait",
            type=click.FloatRange(0, 600),
            default=3.0,
            show_default=True,
            metavar="SECONDS",
            help=f"{prefix}go over TCP where nothing comes back over UDP for so long; 0 does without UDP.",
        ),
    ]

    def with_options(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return with_options


def show_key(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """Callback of --show-key: print this user's line and end."""
    if not value or ctx.resilient_parsing:
        return
    from waystage._native import WanError, wan_read_key
    from waystage.wan.trust import own_key

    try:
        click.echo(wan_read_key(own_key(None)))
    except WanError as error:
        raise UserError(str(error), ExitCode.BAD_INPUT) from None
    ctx.exit()


def believing(
    host: str, port: int, trust: Trust, output: Output, attempt: Callable[[str | None, Path], T]
) -> T:
    """What `attempt` gives for the server's key, if one is known, and this user's; once more where a new one is believed. Raises UserError."""
    from waystage._native import WanError
    from waystage.wan.errors import WanConfigError
    from waystage.wan.trust import own_key

    try:
        key = own_key(trust.identity)
        known = trust.pinned() if trust.server_key else trust.hosts().find(host, port)
        while True:
            try:
                return attempt(known, key)
            except WanError as error:
                shown = believed(error, known, trust)
                if shown is None:
                    raise
                known = shown
                if not trust.server_key:
                    trust.hosts().add(host, port, known)
                    output.note(f"{host}:{port} is believed from now on: {trust.hosts().path}")
    except WanConfigError as error:
        raise UserError(str(error), ExitCode.BAD_INPUT) from None
    except WanError as error:
        status = STATUS.get(error.kind, ExitCode.FAILED)
        if error.kind in ("lost", "unreachable", "busy"):
            raise Unreached(str(error), status, lost=error.kind == "lost") from None
        raise UserError(str(error), status) from None


def believed(error: WanError, known: str | None, trust: Trust) -> str | None:
    """The key that the server showed, if it is to be believed after all."""
    from waystage._native import wan_fingerprint

    if error.kind != "untrusted" or error.server_key is None or known is not None:
        return None
    if trust.server_key:
        shown = wan_fingerprint(error.server_key)
        if shown != trust.server_key.strip():
            raise UserError(f"the server shows the key {shown}, not the one given with --server-key")
        return error.server_key
    return error.server_key if trust.trust_new else None
