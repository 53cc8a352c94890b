"""`waystage copy` to or from another host.

Arrives: source and destination, one of them `[user@]host:path`; which keys to trust.
Leaves: a finished copy; its bottleneck in words.
Must not know: how bytes are moved.
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
"""Delay between reconnection attempts: initial, and maximum."""

LIMITS = {
    "source": "reading the source",
    "destination": "writing at the destination",
    "cap": "the rate set or granted",
    "path": "the network path",
    "memory": "the memory for data in flight",
    "processor": "the CPU of the sender",
}
"""Bottleneck of a transfer -> text."""


@dataclass(frozen=True)
class FarEnds:
    """Source and destination; `push` if the source is local."""

    local: Path
    remote: Remote
    push: bool


def remote_ends(source: str, destination: str) -> FarEnds | None:
    """The ends if one is on another host; None for a local copy."""
    there = parse_remote(source), parse_remote(destination)
    if there[0] is not None and there[1] is not None:
        raise UserError(
            f"{source!r} and {destination!r} are both remote: one of them must be local; write ./NAME for a local path"
            " with a colon",
            ExitCode.USAGE,
        )
    if there[0] is not None:
        return FarEnds(Path(destination), there[0], push=False)
    if there[1] is not None:
        return FarEnds(Path(source), there[1], push=True)
    return None


BETWEEN = ("mode", "port", "identity", "known_hosts", "server_key", "trust_new", "by_ssh", "rsh", "remote_waystage",
           "udp_wait", "connections", "memory", "retry_for")  # fmt: skip
"""Options for copies between hosts."""

AT_A_SERVER = ("port", "identity", "known_hosts", "server_key", "trust_new")
"""Options for reaching a running server."""


def refuse_idle(ends: FarEnds | None, by_ssh: bool) -> None:
    """Refuse options without effect. Raises UserError."""
    if ends is None:
        why = "for copies between hosts, and this copy is local: omit it, or give HOST:PATH"
        return refuse(BETWEEN, why)
    if by_ssh:
        refuse(
            AT_A_SERVER,
            "for a running `waystage serve`, and ssh starts a server with a new key: give ssh's port and key in --rsh,"
            " e.g. --rsh 'ssh -p 2222 -i key'",
        )
        return None
    refuse(["remote_waystage"], "the command that ssh runs: give --ssh or --rsh too")
    if click.get_current_context().params.get("udp_wait") == 0:
        refuse(["mode"], "for pacing datagrams, and --udp-wait 0 disables them: omit one of them")
    return None


def refuse_unknown(update: str, dry_run: str | None) -> None:
    """Refuse what copies between hosts do not support. Raises UserError."""
    if update == "content" and dry_run is not None:
        raise UserError(
            "--dry-run between hosts reads at most one end, and --update content reads both: omit one of them",
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
    """Copy, and return the finished copy. Raises UserError if it failed."""
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
    """The copy, restarted after a lost connection, for at most `retry_for` seconds after each loss.

    `attempt` receives whether it resumes an earlier attempt. Raises UserError.
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
            output.note(f"note: {error}; retrying for {until - now:.0f} s")
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


@contextmanager
def begun_by_ssh(
    ends: FarEnds, shell: Shell, output: Output
) -> Iterator[tuple[FarEnds, int, Trust, dict[str, Any]]]:
    """Arguments of `copy_far` for a server started over ssh for this copy only."""
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
    """Statistics of the connection, as JSON and as text."""
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
        words += f"; bottleneck: {LIMITS.get(limit, limit)}"
    return value, words
