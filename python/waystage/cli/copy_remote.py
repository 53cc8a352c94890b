"""What `waystage copy` does where one end is on another host.

Arrives: two ends, one of them `[user@]host:path`; whom to believe.
Leaves: a copy that has ended; what limited it, in words.
Must not know: how bytes move.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from waystage.cli.combining import refuse
from waystage.cli.common import ExitCode, Output, UserError
from waystage.cli.reaching import Trust, Unreached, believing
from waystage.wan.address import Remote, parse_remote

if TYPE_CHECKING:
    from waystage._native import WanCopy
    from waystage.wan.ssh import Shell


PAUSE_S, LONGEST_PAUSE_S = 0.5, 15.0
"""Between two tries to reach the other end again: at first, and at most."""

LIMITS = {
    "source": "reading the source",
    "destination": "writing at the destination",
    "cap": "the rate that was set or granted",
    "path": "the network path",
    "memory": "the memory for what is underway",
    "processor": "the processor of the sending end",
}
"""What limited a transfer, in words."""


@dataclass(frozen=True)
class FarEnds:
    """Where from and to: `push` where this machine's end is the source."""

    local: Path
    remote: Remote
    push: bool


def remote_ends(source: str, destination: str) -> FarEnds | None:
    """The ends, where one is on another host; None where both are here."""
    there = parse_remote(source), parse_remote(destination)
    if there[0] is not None and there[1] is not None:
        raise UserError(
            f"{source!r} and {destination!r} are both on other hosts: one end has to be here; write ./NAME for a local"
            " path with a colon",
            ExitCode.USAGE,
        )
    if there[0] is not None:
        return FarEnds(Path(destination), there[0], push=False)
    if there[1] is not None:
        return FarEnds(Path(source), there[1], push=True)
    return None


BETWEEN = ("mode", "port", "identity", "known_hosts", "server_key", "trust_new", "by_ssh", "rsh", "remote_waystage",
           "udp_wait", "connections", "memory", "retry_for")  # fmt: skip
"""Options of copies between hosts alone."""

AT_A_SERVER = ("port", "identity", "known_hosts", "server_key", "trust_new")
"""Those that say how a server is reached which runs already."""


def refuse_idle(ends: FarEnds | None, by_ssh: bool) -> None:
    """Options that would do nothing. Raises UserError."""
    if ends is None:
        why = "of copies between hosts, and both ends are on this one: leave it out, or write an end as HOST:PATH"
        return refuse(BETWEEN, why)
    if by_ssh:
        refuse(
            AT_A_SERVER,
            "for a `waystage serve` that runs, and ssh starts one with a key of its own: ssh's port and key are"
            " options of --rsh, such as --rsh 'ssh -p 2222 -i key'",
        )
        return None
    refuse(["remote_waystage"], "what ssh calls at the other end: give --ssh or --rsh too")
    if click.get_current_context().params.get("udp_wait") == 0:
        refuse(["mode"], "how datagrams are paced, and --udp-wait 0 does without them: leave one of both out")
    return None


def refuse_unknown(update: str, dry_run: str | None) -> None:
    """What copies between hosts do not do."""
    if update == "content" and dry_run is not None:
        raise UserError(
            "--dry-run between hosts reads one end at most, and --update content wants both read: leave one of them out",
            ExitCode.USAGE,
        )


def copy_far(
    ends: FarEnds,
    port: int,
    trust: Trust,
    output: Output,
    follow: Callable[[WanCopy], None],
    options: dict[str, Any],
) -> WanCopy:
    """Copy; the copy, which has ended. Raises UserError where it could not go on."""
    from waystage._native import WanCopy

    host = ends.remote.host

    def attempt(known: str | None, key: Path) -> WanCopy:
        copying = WanCopy(
            ends.local,
            ends.remote.path,
            push=ends.push,
            host=host,
            port=port,
            user=ends.remote.user,
            key=key,
            trusted=known,
            **options,
        )
        try:
            follow(copying)
            return copying
        finally:
            # At its end, at an error, at Ctrl-C: its threads are gone.
            copying.stop()
            for note in copying.notes():
                output.note(f"note: {note}")

    return believing(host, port, trust, output, attempt)


def persisting(attempt: Callable[[bool], WanCopy], retry_for: float, output: Output) -> WanCopy:
    """The copy, begun again where its connection was lost, for at most `retry_for` seconds after each loss.

    `attempt` is told whether it goes on with what an earlier one has begun. Raises UserError.
    """
    until: float | None = None
    pause_s = PAUSE_S
    while True:
        try:
            return attempt(until is not None)
        except Unreached as error:
            now = time.monotonic()
            if error.lost:
                until, pause_s = now + retry_for, PAUSE_S
            if until is None or now + pause_s >= until:
                raise
            output.note(f"note: {error}; trying again for {until - now:.0f} s")
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


@contextmanager
def begun_by_ssh(
    ends: FarEnds, shell: Shell, output: Output
) -> Iterator[tuple[FarEnds, int, Trust, dict[str, Any]]]:
    """What `copy_far` wants to copy by a server that is started now, by ssh, and ends afterwards."""
    from waystage.wan.errors import WanConfigError
    from waystage.wan.ssh import started

    remote = ends.remote
    try:
        with started(remote, shell) as server:
            options: dict[str, Any] = {"known_as": f"{remote.user}@{remote.host}"}
            if server.through_ssh:
                output.note(f"note: {server.through_ssh}")
                options["udp_wait_s"] = None
            far = FarEnds(ends.local, Remote(server.host, "", remote.path), ends.push)
            yield far, server.port, Trust(server.identity, None, server.key, False), options
    except WanConfigError as error:
        raise Unreached(str(error)) from None


def about_connection(copying: WanCopy, dry_run: str | None) -> tuple[dict[str, Any], str]:
    """How the connection did: for programs, and in words."""
    numbers, limit = copying.connection()
    # The one sends hardly anything, the other does nothing but read.
    limit = {"plan": "", "disk": "source"}.get(dry_run or "", limit)
    sent = max(numbers.get("sent_packets", 0), 1)
    way = "UDP" if numbers.get("udp") else "TCP"
    value = {
        "digest": copying.digest(),
        "limited_by": limit or None,
        "notes": copying.notes(),
        "connection": {key: round(number, 3) for key, number in numbers.items()} | {"way": way},
    }
    words = f"; over {way}"
    if numbers.get("udp"):
        lost = 100 * numbers["lost_packets"] / sent
        words += f", round trip {numbers['round_trip_ms']:.1f} ms, {lost:.2g} % of packets lost"
    if limit:
        words += f"; what limited it: {LIMITS.get(limit, limit)}"
    return value, words
