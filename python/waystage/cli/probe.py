"""`waystage probe`: measure each direction of the path to another host.

Arrives: a host that runs `waystage serve`, what to measure.
Leaves: RTT, loss, reordering, damage, path MTU, rate and bottleneck as text or one JSON object; exit status 8 if UDP
is blocked in a direction, 7 if a host rather than the path lost packets.
Must not know: how the path is measured.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click

from waystage.cli.combining import given, refuse
from waystage.cli.common import ExitCode, Output, UserError, output_options
from waystage.cli.quantities import BitRate
from waystage.cli.reaching import Trust, believing, show_key_option, trust_options
from waystage.cli.reporting import job_option
from waystage.flows import FlowDescription, FlowEnd, reported
from waystage.native_options.peers import Peer
from waystage.wan.address import DEFAULT_PORT
from waystage.wan.probing.plan import PARTS, Direction, Part, Plan

if TYPE_CHECKING:
    from waystage.task import Progress
    from waystage.wan.probing.report import Report

LEAST_BPS = 32_000
"""Ten packets of 400 bytes a second."""

QUICK_S = 2.0
"""The duration of --quick."""


@click.command()
@click.argument("host", metavar="[USER@]HOST[:PORT]")
@click.option(
    "--direction",
    type=click.Choice(["up", "down", "both"]),
    default="both",
    show_default=True,
    help="From here to the server, back, or both in turn.",
)
@click.option(
    "--duration",
    type=click.FloatRange(0.2, 600),
    metavar="SECONDS",
    help="Time to measure the loss of each direction; scales the other steps.  [default: 10]",
)
@click.option("--quick", is_flag=True, help=f"The same as --duration {QUICK_S:g}.")
@click.option(
    "--max-rate",
    type=BitRate(LEAST_BPS),
    default="1Gbit",
    show_default=True,
    metavar="RATE",
    help="Maximum rate in bit/s, e.g. 100Mbit (docs/reference/units.md). The server may allow less.",
)
@click.option(
    "--rate",
    type=BitRate(LEAST_BPS),
    metavar="RATE",
    help="Rate of the loss measurement.  [default: 40 % of the rate found, at most 10,000 packets/s]",
)
@click.option(
    "--only",
    multiple=True,
    type=click.Choice(get_args(Part)),
    help="Measure only this (repeatable).",
)
@click.option("--no-tcp", is_flag=True, help="Skip the comparison with TCP.")
@click.option(
    "--udp-wait",
    type=click.FloatRange(0.1, 30),
    default=3.0,
    show_default=True,
    metavar="SECONDS",
    help="Report UDP as blocked after this time without an answer.",
)
@click.option("--no-plot", is_flag=True, help="Skip the plot of the rates tried.")
@show_key_option
@trust_options
@job_option
@output_options
def command(
    host: str,
    direction: str,
    duration: float | None,
    quick: bool,
    max_rate: float,
    rate: float | None,
    only: tuple[Part, ...],
    no_tcp: bool,
    udp_wait: float,
    no_plot: bool,
    trust: Trust,
    output: Output,
) -> int:
    """Measure the path to HOST, where `waystage serve` runs and permits this user to probe.

    For each direction: loss, duplication, reordering, damage, path MTU, capacity and bottleneck, queueing delay, and
    the goodput of TCP; the RTT of both together. It fills the path for seconds at a time and disturbs other traffic.

    Exit status 8: UDP is blocked in a direction. 7: one of the hosts, not the path, lost packets.
    """
    user, name, port = parse_host(host)
    _refuse_idle(only, no_tcp, max_rate, rate)
    directions: tuple[Direction, ...] = ("up", "down") if direction == "both" else (_direction(direction),)
    parts = tuple(p for p in PARTS if (not only or p in only) and not (no_tcp and p == "tcp"))
    plan = Plan(
        directions=directions,
        parts=parts,
        duration_s=duration if duration is not None else (QUICK_S if quick else 10.0),
        most_bps=max(max_rate, rate or 0.0),
        loss_bps=rate,
        udp_wait_s=udp_wait,
    )
    with output.progress() as progress:
        report = _probe(user, name, port, plan, trust, output, progress)
    from waystage.wan.probing.report import in_words

    text = in_words(report)
    if not no_plot:
        text += _plots(report)
    output.result(report.as_json(), text)
    if report.blocked or report.udp is False:
        return ExitCode.PARTIAL
    return ExitCode.INVALID if report.invalid else ExitCode.OK


def _refuse_idle(only: tuple[Part, ...], no_tcp: bool, max_rate: float, rate: float | None) -> None:
    """Refuse options without effect. Raises UserError."""
    if "tcp" in only and no_tcp:
        raise UserError("--only tcp and --no-tcp exclude each other: give one of them", ExitCode.USAGE)
    if given(["quick"]):
        refuse(["duration"], "and --quick is --duration 2: give one of them")
    if only and "loss" not in only:
        refuse(["rate"], "for the loss measurement, and --only excludes it")
    if rate is not None and rate > max_rate and given(["max_rate"]):
        raise UserError("--rate is above --max-rate: lower it", ExitCode.USAGE)


def parse_host(text: str) -> tuple[str, str, int]:
    """`[USER@]HOST[:PORT]`; an IPv6 address is in brackets. Raises UserError."""
    found = re.fullmatch(r"(?:([^@/]+)@)?(\[[0-9A-Fa-f:.%]+\]|[^\[\]@/:]+)(?::(\d{1,5}))?", text)
    port = int(found[3] or DEFAULT_PORT) if found else 0
    if found is None or not 0 < port < 1 << 16:
        raise UserError(
            f"{text!r} is not a host: give one such as far.example.org, ada@far.example.org:{DEFAULT_PORT} or [2001:db8::1]",
            ExitCode.USAGE,
        )
    return found[1] or "", found[2].removeprefix("[").removesuffix("]"), port


def _direction(text: str) -> Direction:
    return "up" if text == "up" else "down"


def _probe(
    user: str, host: str, port: int, plan: Plan, trust: Trust, output: Output, progress: Progress
) -> Report:
    from waystage._native import WanProbe
    from waystage.wan.probing import Report, measure

    def attempt(known: str | None, key: Path) -> Report:
        session = WanProbe(Peer(host=host, port=port, user=user, key=key, trusted=known))
        report = Report()
        flow = FlowDescription("wan", "probe", destination=FlowEnd(peer=host))
        try:
            with reported(session, flow):
                measure(session, plan, report, progress)
        finally:
            # So that the server ends the session too, also after an error or Ctrl-C.
            session.close()
        return report

    return believing(host, port, trust, output, attempt)


def _plots(report: Report) -> str:
    from waystage.wan.probing.plot import plot
    from waystage.wan.probing.report import WORDS

    width = min(120, shutil.get_terminal_size((100, 24)).columns)
    return "".join(
        f"\n\n{WORDS[name]}\n{plot(way.sweep, way.base_ns or 0, width)}"
        for name, way in report.ways.items()
        if way.sweep
    )
