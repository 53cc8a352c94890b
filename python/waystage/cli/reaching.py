"""Options of subcommands that connect to a server: identity, trust and transport.

Arrives: options; the key that a server presents.
Leaves: a trusted key, or an error.
Must not know: the purpose of the connection.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from waystage.cli.common import ExitCode, Output, UserError
from waystage.cli.quantities import Size
from waystage.native_options.peers import Peer
from waystage.wan.config import LEAST_MEMORY, MOST_MEMORY
from waystage.wan.rates import RateError, Schedule, parse_schedule

if TYPE_CHECKING:
    from waystage._native import WanError
    from waystage.wan.trust import KnownHosts

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

FIRST_PAUSE_S, MOST_PAUSES, LONGEST_KNOCKING_S = 0.2, 5, 7.0
"""A server that turned a connection away before it said a word is tried again, as
`crates/transport/src/handshake/connect.rs` does before TLS is up."""


def memory() -> Size:
    """Bounds of the memory for data in flight at each end."""
    return Size(LEAST_MEMORY, MOST_MEMORY)


class RateSchedule(click.ParamType[Schedule]):
    """A rate, or a schedule by time of day and weekday; `@FILE` reads it from a file."""

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
            self.fail(f"{where}is not UTF-8 text", param, ctx)
        except RateError as error:
            self.fail(f"{where}{error}", param, ctx)


@dataclass(frozen=True)
class Session:
    """How a server is reached: its port, and options of the session as in `Peer`."""

    port: int
    mode: str
    rate_bytes_per_s: int | None
    udp_wait_s: float | None

    def peer(self, host: str, user: str, key: Path, trusted: str | None) -> Peer:
        """The server `host` for a session of this user."""
        return Peer(
            host=host,
            port=self.port,
            user=user,
            key=key,
            trusted=trusted,
            mode=self.mode,
            rate_bytes_per_s=self.rate_bytes_per_s,
            udp_wait_s=self.udp_wait_s,
        )


@dataclass(frozen=True)
class Trust:
    """This user's key, and which servers to trust."""

    identity: Path | None
    known_hosts: Path | None
    server_key: str | None
    trust_new: bool

    def __post_init__(self) -> None:
        # An empty key is none: the file of known hosts decides.
        if self.server_key and self.trust_new:
            raise UserError(
                "--server-key trusts a single key and --trust-new any: give one of them", ExitCode.USAGE
            )

    def hosts(self) -> KnownHosts:
        from waystage.wan.trust import KnownHosts, wan_dir

        return KnownHosts(self.known_hosts or wan_dir() / "known_hosts")

    def pinned(self) -> str | None:
        """The key given with --server-key, if it is a key and not a fingerprint."""
        return self.server_key if self.server_key and " " in self.server_key else None


def _trust_options(prefix: str) -> list[Callable[[F], F]]:
    """Options of identity and trust."""
    return [
        click.option(
            "--identity",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            metavar="FILE",
            help=f"{prefix}this user's key. Default: ~/.config/waystage/wan/key, created on first use.",
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
            help=f"{prefix}trust only this key or fingerprint, regardless of the known hosts.",
        ),
        click.option("--trust-new", is_flag=True, help=f"{prefix}trust a server that is not known yet."),
    ]


def trust_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Options of trust; the function receives `trust: Trust`."""

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
    """Give a click command the options for reaching a server; `prefix` begins their help."""
    options = [
        click.option(
            "--mode",
            type=click.Choice(["fair", "fast-start", "modest", "aggressive"]),
            default="fair",
            show_default=True,
            help=f"{prefix}congestion control; the server must grant fast-start and aggressive.",
        ),
        click.option(
            "--port",
            type=click.IntRange(1, 65535),
            default=7900,
            show_default=True,
            help=f"{prefix}the server's TCP and UDP port.",
        ),
        *_trust_options(prefix),
        click.option(
            "--udp-wait",
            type=click.FloatRange(0, 600),
            default=3.0,
            show_default=True,
            metavar="SECONDS",
            help=f"{prefix}fall back to TCP after this time without an answer over UDP; 0 disables UDP.",
        ),
    ]

    def with_options(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return with_options


class _ShowKey(click.Option):
    """Prints the public key of --identity, given before or after it, and exits."""

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        """Parse as click does, with this option last."""
        if opts.get(self.name or "") and not ctx.resilient_parsing:
            parameters = {parameter.name: parameter for parameter in ctx.command.params}
            identity, _ = parameters["identity"].handle_parse_result(ctx, opts, args)
            _print_key(
                identity if isinstance(identity, Path) else None, Output(json=bool(opts.get("as_json")))
            )
            ctx.exit()
        return super().handle_parse_result(ctx, opts, args)


def _print_key(identity: Path | None, output: Output) -> None:
    from waystage._native import wan_fingerprint, wan_read_key
    from waystage.wan.trust import own_key

    line = wan_read_key(own_key(identity))
    output.result({"key": line, "fingerprint": wan_fingerprint(line)}, line)


def show_key_option(function: F) -> F:
    """`--show-key`, for a command that has --identity."""
    option = click.option(
        "--show-key",
        cls=_ShowKey,
        is_flag=True,
        expose_value=False,
        is_eager=True,
        help="Print the public key of this user (or --identity) for a server's configuration, and exit.",
    )
    return option(function)


def believing(
    host: str, port: int, trust: Trust, output: Output, attempt: Callable[[str | None, Path], T]
) -> T:
    """The result of `attempt` with the server's known key, if any, and this user's; retried once if a new key is
    trusted.

    Also retried where the server closes the connection at once. Raises WanError.
    """
    from waystage._native import WanError
    from waystage.wan.trust import own_key

    key = own_key(trust.identity)
    known = trust.pinned() if trust.server_key else trust.hosts().find(host, port)
    turned_away, began = 0, time.monotonic()
    while True:
        try:
            return attempt(known, key)
        except WanError as error:
            if error.kind == "turned-away" and turned_away < MOST_PAUSES:
                time.sleep(FIRST_PAUSE_S * 2**turned_away)
                turned_away += 1
                if time.monotonic() - began < LONGEST_KNOCKING_S:
                    continue
            shown = believed(error, known, trust)
            if shown is None:
                raise
            known = shown
            if not trust.server_key:
                trust.hosts().add(host, port, known)
                output.note(f"{host}:{port} is now trusted: {trust.hosts().path}")


def believed(error: WanError, known: str | None, trust: Trust) -> str | None:
    """The key that the server presented, if it is to be trusted after all."""
    from waystage._native import wan_fingerprint

    if error.kind != "untrusted" or error.server_key is None or known is not None:
        return None
    if trust.server_key:
        shown = wan_fingerprint(error.server_key)
        if shown != trust.server_key.strip():
            raise UserError(f"the server presents the key {shown}, not the one given with --server-key")
        return error.server_key
    return error.server_key if trust.trust_new else None
