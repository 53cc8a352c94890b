"""`waystage proxy`: relay TCP connections over the wide-area protocol.

Arrives: a server, listening addresses, rules.
Leaves: a line or a JSON object for each notice; exit status 0 after SIGTERM or Ctrl-C, when all connections are closed.
Must not know: how bytes are moved.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from waystage.cli.combining import refuse
from waystage.cli.common import ExitCode, Output, UserError, output_options, take_descriptors
from waystage.cli.quantities import Rate
from waystage.cli.reaching import Session, Trust, believing, server_options, show_key_option
from waystage.cli.reporting import job_option
from waystage.cli.service import (
    Signals,
    log_format_option,
    ready_file_option,
    removed_at_exit,
    service_log,
    write_line,
    write_ready,
)
from waystage.flows import FlowDescription, FlowEnd, reported
from waystage.native_options.proxies import ProxyOptions
from waystage.task import follow
from waystage.wan.address import parse_forward, parse_listen, parse_server

if TYPE_CHECKING:
    from waystage._native import WanProxy

POLL_S = 0.1


@click.command()
@click.argument("server", metavar="[USER@]HOST")
@show_key_option
@click.option("--socks", multiple=True, metavar="[ADDRESS:]PORT", help="Listen for SOCKS 5 clients.")
@click.option(
    "--forward",
    "-L",
    multiple=True,
    metavar="[ADDRESS:]PORT:HOST:PORT",
    help="Listen here; relay to HOST:PORT as resolved by the server.",
)
@click.option(
    "--reverse",
    "-R",
    multiple=True,
    metavar="[ADDRESS:]PORT:HOST:PORT",
    help="Listen on the server; relay to HOST:PORT as resolved by this host.",
)
@click.option(
    "--redirect",
    multiple=True,
    metavar="[ADDRESS:]PORT",
    help="Listen for connections diverted by the kernel's REDIRECT.",
)
@click.option(
    "--tproxy",
    multiple=True,
    metavar="[ADDRESS:]PORT",
    help="Listen for connections diverted by the kernel's TPROXY; needs CAP_NET_ADMIN.",
)
@click.option(
    "--rule",
    multiple=True,
    metavar="RULE",
    help="`allow`, `deny` or `direct`, and HOSTS[:PORTS]. The first match decides; default allow.",
)
@click.option(
    "--rules",
    "rule_file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="File of further rules, after those of --rule, one a line; # starts a comment.",
)
@server_options()
@click.option(
    "--bandwidth-limit",
    "rate",
    type=Rate(),
    metavar="RATE",
    help="Limit the rate in bytes/s, e.g. 100M or 1.5G (docs/reference/units.md).",
)
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(0, 3600),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="While the session is down, new connections wait this long for the next.",
)
@click.option(
    "--drain",
    "drain_s",
    type=click.FloatRange(0, 86400),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="After the first signal, active connections may continue for this time.",
)
@click.option(
    "--log",
    "log_file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Log file: one line per connection, with byte counts. Default: stderr.",
)
@ready_file_option("File to write with the listening addresses when connected")
@job_option
@log_format_option
@output_options
def command(
    server: str,
    socks: tuple[str, ...],
    forward: tuple[str, ...],
    reverse: tuple[str, ...],
    redirect: tuple[str, ...],
    tproxy: tuple[str, ...],
    rule: tuple[str, ...],
    rule_file: Path | None,
    mode: str,
    port: int,
    identity: Path | None,
    known_hosts: Path | None,
    server_key: str | None,
    trust_new: bool,
    udp_wait: float,
    rate: int | None,
    wait_s: float,
    drain_s: float,
    log_file: Path | None,
    ready_file: Path | None,
    output: Output,
) -> None:
    """Relay TCP connections over a long or lossy path, until SIGTERM or Ctrl-C.

    Programs connect here (--socks, --forward, --redirect, --tproxy) or on the server (--reverse). The peer is
    `waystage serve`, whose configuration limits the destinations. SIGUSR1 prints statistics. The first SIGTERM or
    Ctrl-C stops accepting; active connections get --drain seconds. A second one resets them.
    """
    try:
        host, user = parse_server(server)
        places = [("socks", parse_listen(text), "") for text in socks]
        places += [("forward", *parse_forward(text)) for text in forward]
        places += [("redirect", parse_listen(text), "") for text in redirect]
        places += [("tproxy", parse_listen(text), "") for text in tproxy]
        wanted = ProxyOptions(
            listeners=places,
            reverse=[parse_forward(text) for text in reverse],
            rules=_rules(rule, rule_file),
            wait_s=wait_s,
        )
    except ValueError as error:
        raise UserError(str(error), ExitCode.USAGE) from None
    if not wanted.listeners and not wanted.reverse:
        raise UserError(
            "give --socks, --forward, --reverse, --redirect or --tproxy: the proxy would not listen",
            ExitCode.USAGE,
        )
    if not wanted.listeners:
        refuse(
            ["rule", "rule_file"],
            "for connections accepted here, and there are none: --reverse needs no rule",
        )
    if udp_wait == 0:
        refuse(["mode"], "for pacing datagrams, and --udp-wait 0 disables them: omit one of them")
    session = Session(port, mode, rate, udp_wait or None)
    trust = Trust(identity, known_hosts, server_key, trust_new)
    take_descriptors()
    # stderr has no log where it is to be quiet.
    with service_log(log_file) as file:
        log = None if log_file is None and output.quiet else file
        _Proxying(wanted, host, user, session, trust, output, log, ready_file, drain_s).run()


def _rules(given: Sequence[str], file: Path | None) -> list[str]:
    from waystage._native import wan_check_rule

    rules = list(given)
    if file is not None:
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"--rules {file} cannot be read: {error}", ExitCode.BAD_INPUT) from None
        bare = (line.split("#", 1)[0].strip() for line in lines)
        rules += [line for line in bare if line]
    for line in rules:
        wan_check_rule(line)
    return rules


def _moved(counts: Mapping[str, int]) -> tuple[int, int]:
    """Bytes of both directions; the total is unknown."""
    return counts["sent_bytes"] + counts["received_bytes"], 0


@dataclass
class _Proxying:
    """A running proxy."""

    wanted: ProxyOptions
    host: str
    user: str
    session: Session
    trust: Trust
    output: Output
    log: TextIO | None
    ready_file: Path | None
    drain_s: float
    signals: Signals = field(default_factory=Signals)
    asked: bool = False
    ready: bool = False
    began: float = field(default_factory=time.monotonic)

    def run(self) -> None:
        signal.signal(signal.SIGUSR1, self._ask)
        try:
            with removed_at_exit(self.ready_file):
                believing(self.host, self.session.port, self.trust, self.output, self._attempt)
        except ValueError as error:
            raise UserError(str(error), ExitCode.USAGE) from None

    def _ask(self, *_: object) -> None:
        self.asked = True

    def _attempt(self, known: str | None, key: Path) -> None:
        from waystage._native import WanProxy

        peer = self.session.peer(self.host, self.user, key, known)
        flow = FlowDescription(
            "wan", "proxy", destination=FlowEnd(peer=self.host), mode=self.session.mode, counts=_moved
        )
        with WanProxy(peer, self.wanted) as proxy, reported(proxy, flow):
            self._follow(proxy)

    def _follow(self, proxy: WanProxy) -> None:
        drained: float | None = None

        def look(_: dict[str, int]) -> None:
            nonlocal drained
            self._tell(proxy)
            if self.asked:
                self.asked = False
                self._statistics(proxy)
            if self.signals.count and drained is None:
                drained = time.monotonic()
                proxy.drain()
            if drained is not None and (self.signals.count > 1 or time.monotonic() - drained > self.drain_s):
                proxy.cancel()

        follow(proxy, look, POLL_S)
        self._tell(proxy)
        self._statistics(proxy)

    def _tell(self, proxy: WanProxy) -> None:
        for notice in proxy.notices():
            if notice["event"] == "connection":
                self._line(notice.pop("text"))
            elif notice["event"] == "session":
                self._session(proxy, notice)
            else:
                self._line(f"no session: {notice['why']}: connections wait for the next")
            if self.output.json:
                click.echo(json.dumps(notice))
        sys.stdout.flush()

    def _session(self, proxy: WanProxy, notice: dict[str, Any]) -> None:
        places = list(zip([kind for kind, _, _ in self.wanted.listeners], proxy.listening, strict=True))
        places += [("reverse", address) for address in notice["reverse"]]
        notice["listening"] = [list(place) for place in places]
        way = "UDP" if notice["udp"] else "TCP"
        for note in notice["notes"]:
            self.output.note(f"note: {note}")
        words = ", ".join(f"{kind} {address}" for kind, address in places)
        self._line(f"session with {self.host} over {way}: {words}")
        if not self.ready:
            self.ready = True
            self.output.say(f"ready: {words}; over {way}")
            write_ready(self.ready_file, "".join(f"{kind} {address}\n" for kind, address in places))

    def _line(self, text: str) -> None:
        if self.log is not None and not (self.output.json and self.log is sys.stderr):
            write_line(self.log, text)
            self.log.flush()

    def _statistics(self, proxy: WanProxy) -> None:
        counts, connection = proxy.progress(), proxy.connection()
        seconds = time.monotonic() - self.began
        value = {"event": "statistics", "seconds": round(seconds, 3), **counts, "connection": connection}
        if self.output.json:
            click.echo(json.dumps(value))
            sys.stdout.flush()
            return
        text = (
            f"{counts['connections']} connections in {seconds:.0f} s, {counts['open']} open, {counts['refused']} refused,"
            f" {counts['reset']} reset, {counts['lost']} lost with a session; {counts['sent_bytes']:,} bytes there,"
            f" {counts['received_bytes']:,} back; {counts['sessions']} sessions"
        )
        if connection.get("udp"):
            sent = max(connection["sent_packets"], 1)
            lost = 100 * connection["lost_packets"] / sent
            text += f"; round trip {connection['round_trip_ms']:.1f} ms, {lost:.2g} % of packets lost"
        self.output.note(text)
