"""`waystage lab wan`: start, inspect, change and remove an emulated wide-area path.

Arrives: a path's name, a profile, properties of the path, a command to run at an end.
Leaves: a path that runs until `down`, or a relay until Ctrl-C; its counters.
Must not know: how packets are carried.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from waystage.cli.common import ExitCode, Output, UserError, needs_root, output_options, table

if TYPE_CHECKING:
    from waystage.worlds.lab.wan.profile import Profile, Way

DEFAULT_NAME = "wan"

LATE_HINT = "lower the rate, reduce the load of this machine, or raise --late if the delay allows it"

F = TypeVar("F", bound=Callable[..., Any])

_PROPERTIES = {
    "rate": (
        "RATE",
        "Rate in bit/s, counting complete IP packets, e.g. 100Mbit, or none (docs/reference/units.md).",
    ),
    "delay": ("TIME", "One-way delay of each direction, e.g. 10ms; the RTT is twice that."),
    "jitter": ("TIME", "Maximum additional random delay of a packet; reorders packets."),
    "buffer": ("SIZE", "Size of the queue: bytes, e.g. 64kB, or '0.5 BDP'.  [default: 1 BDP]"),
    "policer": ("RATE,BUCKET", "Token bucket before the queue: what exceeds it is lost, e.g. 100Mbit,30kB."),
    "aqm": ("NAME", "Queue management: codel, or red,MIN,MAX with shares of the buffer, e.g. red,10%,30%."),
    "ecn": ("aqm|SIZE", "ECN marks: where --aqm would drop, or above a queue, e.g. 30kB or '0.1 BDP'."),
    "loss": ("SHARE", "Random loss, e.g. 1%."),
    "bursts": ("BEGIN,END[,LOSS]", "Burst loss (Gilbert-Elliott), e.g. 0.1%,5%."),
    "reorder": ("SHARE,BY", "Share of packets delayed by a further time, e.g. 25%,5ms."),
    "duplicate": ("SHARE", "Share of duplicated packets."),
    "corrupt": ("SHARE", "Share of packets with a bit error in the payload."),
    "mtu": ("BYTES", "Largest IP packet.  [default: 1500]"),
}


def _properties(function: F) -> F:
    """One option for each property of a path."""
    for name, (metavar, text) in reversed(_PROPERTIES.items()):
        function = click.option(f"--{name}", metavar=metavar, help=text)(function)
    return function


def _take(options: dict[str, Any]) -> dict[str, str]:
    """Take the given properties out of a command's options."""
    found = {name: options.pop(name) for name in _PROPERTIES}
    return {name: text for name, text in found.items() if text is not None}


def _complete_profile(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from waystage.worlds.lab.wan import shipped

    names = [CompletionItem(n, help=h) for n, h in shipped().items() if n.startswith(incomplete)]
    return names or [CompletionItem(incomplete, type="file")]


_profile_options = (
    click.option("--profile", "source", shell_complete=_complete_profile, help="Profile file, or name of a shipped profile."),
    click.option("--rtt", metavar="TIME", help="RTT without queueing; each direction's --delay is half of it."),
    click.option("--seed", type=click.IntRange(min=0), help="Seed of all random decisions.  [default: 1]"),
    click.option("--forward", multiple=True, metavar="NAME=VALUE", help="Property of the forward direction, e.g. rate=10Mbit (repeatable)."),
    click.option("--back", multiple=True, metavar="NAME=VALUE", help="Property of the return direction (repeatable)."),
    click.option("--tick", metavar="TIME", help="Polling interval under load.  [default: from the delay]"),
    click.option("--late", metavar="TIME", help="Lateness above which a packet counts as late.  [default: 1ms]"),
)  # fmt: skip


def _with_profile(function: F) -> F:
    for option in reversed(_profile_options):
        function = option(function)
    return _properties(function)


@click.group()
def wan() -> None:
    """Emulate a wide-area path: rate, delay, loss and the rest, for any program.

    `up` connects two network namespaces, `left` and `right`, for any IP traffic; it needs root. `relay` forwards UDP
    datagrams and needs no privileges. Each decision is a function of the seed and the packet number. Packets that this
    machine handles too late are counted; above 0.1 % the run is invalid.
    """


@wan.command()
@click.argument("name", default=DEFAULT_NAME)
@_with_profile
@click.option(
    "--device-mtu",
    type=click.IntRange(68, 65535),
    help="MTU of the devices in the namespaces.  [default: the path's]",
)
@output_options
def up(name: str, device_mtu: int | None, output: Output, **options: Any) -> None:
    """Start path NAME (default: wan). It runs until `waystage lab wan down`.

    `forward` is from left to right. Without options, the path has no limits and no delay.
    """
    needs_root("a path between namespaces")
    with _usage():
        from waystage.worlds.lab.wan import paths

        profile = _profile(options)
        began = time.monotonic()
        with output.progress() as progress:
            progress("creating the path", 0.0)
            paths.up(name, profile, device_mtu=device_mtu)
            progress("up", 1.0)
        found = paths.status(name)
    seconds = round(time.monotonic() - began, 2)
    lines = [f"path '{name}' is up after {seconds} s"]
    lines += [f"  {way}: {d['is']}" for way, d in found["directions"].items()]
    lines.append(f"  left is {paths.IPV4['left']}, right {paths.IPV4['right']}")
    lines.append(f"try: waystage lab wan exec {name} left -- ping -c 3 {paths.IPV4['right']}")
    output.result(found | {"up_s": seconds, "addresses": paths.IPV4}, "\n".join(lines))


@wan.command()
@click.argument("name", default=DEFAULT_NAME)
@output_options
def down(name: str, output: Output) -> None:
    """Remove path NAME, or the remains of a killed one. Succeeds if there is none."""
    with _usage():
        from waystage.worlds.lab.wan import paths

        found = paths.down(name)
    output.result(
        {"path": name, "removed": found}, f"path '{name}' is down" if found else f"no path '{name}'"
    )


@wan.command()
@click.argument("name", required=False)
@output_options
def status(name: str | None, output: Output) -> None:
    """Show the counters of path NAME, or list all paths.

    Exit status 7 if this machine delayed or lost more than 0.1 % of the packets, 1 if the process of the path has died.
    """
    with _usage():
        from waystage.worlds.lab.wan import paths

        if name is None:
            rows = [
                {"path": p.name, "kind": r.kind, "state": _state(r.up, paths.alive(p)), "is": r.about}
                for p, r in paths.known()
            ]
            output.result({"paths": rows}, table(rows, list(rows[0])) if rows else "no path is up")
            return
        found = paths.status(name)
    _show(found, output)


@wan.command("set", no_args_is_help=True)
@click.argument("name", default=DEFAULT_NAME)
@click.option(
    "--direction",
    type=click.Choice(["both", "forward", "back"]),
    default="both",
    show_default=True,
    help="Direction to change.",
)
@_properties
@output_options
def set_(name: str, direction: str, output: Output, **options: Any) -> None:
    """Change properties of path NAME while it runs; others are kept.

    Packets in flight keep their departure times. Seed and packet numbers continue.
    """
    said = _take(options)
    if not said:
        raise UserError("nothing to change: give a property, such as --loss 1%", ExitCode.USAGE)
    with _usage():
        from waystage.worlds.lab.wan import paths
        from waystage.worlds.lab.wan.profile import WAYS
        from waystage.worlds.lab.wan.profile import said as read

        read(said)
        ways: tuple[Way, ...] = (
            WAYS if direction == "both" else ("forward" if direction == "forward" else "back",)
        )
        found = paths.change(name, said, ways)
    output.result(found, "\n".join(f"{way}: {d['is']}" for way, d in found["directions"].items()))


@wan.command(
    "exec",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    # The options of the command are its own.
    options_metavar="",
)
@click.argument("name")
@click.argument("side", type=click.Choice(["left", "right"]))
@click.argument("argv", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
def exec_(name: str, side: str, argv: tuple[str, ...]) -> None:
    """Run COMMAND at an end of path NAME in this terminal; exits with its status."""
    needs_root("entering an end of a path")
    with _usage():
        from waystage.worlds.lab.commands import environment
        from waystage.worlds.lab.wan import paths

        words = paths.enter(name, side)
    if argv[0] == "--":
        argv = argv[1:]
    if not argv:
        raise UserError(f"no command to run: waystage lab wan exec {name} {side} -- COMMAND", ExitCode.USAGE)
    os.execve(words[0], [*words, *argv], environment())


@wan.command()
@click.option(
    "--listen", required=True, metavar="ADDRESS:PORT", help="Address for clients; port 0 chooses a free port."
)
@click.option("--to", required=True, metavar="ADDRESS:PORT", help="Address of the target.")
@click.option("--name", default="relay", show_default=True, help="For status, set and down.")
@_with_profile
@output_options
def relay(listen: str, to: str, name: str, output: Output, **options: Any) -> None:
    """Forward UDP datagrams over an emulated path, without root, until Ctrl-C or `waystage lab wan down`.

    `forward` is from the clients to the target; all clients share the path. Prints the final counters.
    """
    with _usage():
        from waystage.worlds.lab.wan import relays

        profile = _profile(options)

        def ready(where: str) -> None:
            output.note(f"relay '{name}' listens at {where} and sends to {to}: Ctrl-C ends it")

        found = relays.run(name, listen, to, profile, ready)
    _show(found, output)


def _profile(options: dict[str, Any]) -> Profile:
    """The profile of the file, overridden by the command line."""
    import msgspec

    from waystage.experiment.problems import Problem
    from waystage.worlds.lab.wan import units
    from waystage.worlds.lab.wan.profile import Profile, check, load, said

    both = _take(options)
    if options["rtt"] is not None:
        if "delay" in both:
            raise UserError("--delay is one way and --rtt both ways: give one of them", ExitCode.USAGE)
        try:
            both["delay"] = f"{units.time_ns(options['rtt']) / 2e6:.6f} ms"
        except ValueError as error:
            raise UserError(f"--rtt: {error}", ExitCode.USAGE) from None
    profile = Profile() if options["source"] is None else load(options["source"])
    # What is said of both directions here is over what the file says of one.
    profile = profile.changed(("forward", "back"), said(both))
    for way in ("forward", "back"):
        pairs = dict(_pair(way, text) for text in options[way])
        profile = profile.changed((way,), said(pairs))
    changes: dict[str, Any] = {} if options["seed"] is None else {"seed": options["seed"]}
    for key, least, most in (("tick", 1_000, 100_000_000), ("late", 1_000, 10**9)):
        if options[key] is not None:
            try:
                changes[key] = units.time_ns(options[key])
            except ValueError as error:
                raise Problem((key,), str(error)) from None
            if not least <= changes[key] <= most:
                raise Problem(
                    (key,), f"{options[key]} is not from {units.time_text(least)} to {units.time_text(most)}"
                )
    profile = msgspec.structs.replace(profile, **changes)
    check(profile)
    return profile


def _pair(way: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UserError(f"--{way} {text}: write NAME=VALUE, such as rate=10Mbit", ExitCode.USAGE)
    return name.strip(), value.strip()


def _state(was_up: bool, alive: bool) -> str:
    return ("up" if was_up else "starting") if alive else "dead"


def _show(found: dict[str, Any], output: Output) -> None:
    invalid = why_invalid(found)
    output.result(found | {"invalid": invalid}, shown(found))
    if invalid is not None:
        output.note(f"not valid: {invalid}")
        click.get_current_context().exit(ExitCode.INVALID)


def why_invalid(found: dict[str, Any]) -> str | None:
    """Why the counters are invalid; None if they are valid."""
    for way, d in found["directions"].items():
        if d["ended"] is not None:
            return f"{way} has failed: {d['ended']}"
        if not d["valid"]:
            late, lost = d["late"] + d["read_late"], d["overflow"]
            return (
                f"of {d['in']:,} packets {way} {late:,} were late and {lost:,} lost by this machine, "
                f"{100 * d['wrong_share']:.2f} % together, more than 0.1 %: {LATE_HINT}"
            )
    return None


def shown(found: dict[str, Any]) -> str:
    """A path's status as text."""
    rows = []
    for key, label in (
        ("in", "packets in"),
        ("out", "packets out"),
        ("lost_random", "lost at random"),
        ("lost_burst", "lost in bursts"),
        ("lost_buffer", "lost: buffer full"),
        ("lost_policer", "lost: policer"),
        ("lost_early", "lost: RED or CoDel"),
        ("marked", "ECN marks"),
        ("too_large", "lost: too large"),
        ("duplicated", "duplicated"),
        ("corrupted", "corrupted"),
        ("reordered", "reordered"),
        ("under_way", "in flight"),
        ("queued_bytes", "bytes queued"),
        ("most_queued_bytes", "bytes queued at most"),
        ("late", "late"),
        ("read_late", "read late"),
        ("overflow", "overflow"),
    ):
        rows.append({"": label} | {way: d[key] for way, d in found["directions"].items()})
    for key, label in (("p50_us", "median"), ("p99_us", "p99"), ("most_us", "most")):
        values = {way: round(d["lateness"][key], 1) for way, d in found["directions"].items()}
        rows.append({"": f"lateness, {label}, us"} | values)
    head = [f"path '{found['name']}', seed {found['seed']}, {found['seconds']:.1f} s"]
    head += [f"  {way}: {d['is']}" for way, d in found["directions"].items()]
    return "\n".join([*head, "", table(rows, list(rows[0]))])


@contextmanager
def _usage() -> Iterator[None]:
    """Map errors in options to usage errors."""
    from waystage.experiment.problems import Problem

    try:
        yield
    except Problem as problem:
        raise UserError(f"{'.'.join(map(str, problem.key))}: {problem.text}", ExitCode.USAGE) from problem
