"""`waystage copy` to or from another host.

Arrives: source and destination, one of them `[user@]host:path`; which keys to trust.
Leaves: a finished copy; its bottleneck in words.
Must not know: how bytes are moved.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from waystage.cli.combining import refuse
from waystage.cli.common import ExitCode, Output, UserError
from waystage.cli.reaching import Session, Trust, believing
from waystage.native_options.copies import RemoteCopyOptions
from waystage.wan.address import Remote, parse_remote

if TYPE_CHECKING:
    from waystage._native import RemoteCopy
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


TRANSIENT = ("lost", "unreachable", "turned-away", "busy")
"""Kinds of errors after which a later attempt may succeed."""


class SshFailed(UserError):
    """The server could not be started over ssh: a later attempt may succeed."""


@dataclass(frozen=True)
class FarEnds:
    """Source and destination; `push` if the source is local."""

    local: str
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
        return FarEnds(destination, there[0], push=False)
    if there[1] is not None:
        return FarEnds(source, there[1], push=True)
    return None


BETWEEN = ("mode", "port", "identity", "known_hosts", "server_key", "trust_new", "by_ssh", "rsh", "remote_waystage",
           "udp_wait", "connections", "memory", "compress", "retry_for")  # fmt: skip
"""Options for copies between hosts."""

AT_A_SERVER = ("port", "identity", "known_hosts", "server_key", "trust_new")
"""Options for reaching a running server."""


ON_ONE_MACHINE = ("order", "readers_per_target")
"""Options for reads from a mounted file system."""


def refuse_idle(ends: FarEnds | None, by_ssh: bool) -> None:
    """Refuse options without effect. Raises UserError."""
    if ends is not None:
        refuse(ON_ONE_MACHINE, "for copies on one machine, and this copy is between hosts: omit it")
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


def refuse_unknown(update: str, dry_run: str | None, *, pulls: bool, copy_links: bool) -> None:
    """Refuse what copies between hosts do not support. Raises UserError."""
    if pulls and copy_links:
        raise UserError(
            "--copy-links: a server follows no symbolic links, as they may lead out of what it shares: start the copy"
            " there, or omit it",
            ExitCode.USAGE,
        )
    if update == "content" and dry_run is not None:
        raise UserError(
            "--dry-run between hosts reads at most one end, and --update content reads both: omit one of them",
            ExitCode.USAGE,
        )


def copy_far(
    ends: FarEnds,
    session: Session,
    trust: Trust,
    output: Output,
    follow: Callable[[RemoteCopy], None],
    options: RemoteCopyOptions,
) -> RemoteCopy:
    """Copy, and return the finished copy. Raises WanError if it failed."""
    from waystage._native import RemoteCopy

    host, port = ends.remote.host, session.port

    def attempt(known: str | None, key: Path) -> RemoteCopy:
        peer = session.peer(host, ends.remote.user, key, known)
        copying = RemoteCopy(ends.local, ends.remote.path, peer, options, push=ends.push)
        try:
            with copying:
                follow(copying)
            return copying
        finally:
            for note in copying.notes():
                output.note(f"note: {note}")

    return believing(host, port, trust, output, attempt)


def persisting(attempt: Callable[[bool], RemoteCopy], retry_for: float, output: Output) -> RemoteCopy:
    """The copy, resumed after a lost connection, for at most `retry_for` seconds after each loss.

    `attempt` receives whether it resumes an earlier attempt. Raises WanError and UserError.
    """
    from waystage._native import WanError

    until: float | None = None
    pause_s = PAUSE_S
    while True:
        try:
            return attempt(until is not None)
        except (SshFailed, WanError) as error:
            kind = getattr(error, "kind", "unreachable")
            now = time.monotonic()
            if kind == "lost":
                until, pause_s = now + retry_for, PAUSE_S
            if kind not in TRANSIENT or until is None or now + pause_s >= until:
                raise
            output.note(f"note: {error}; retrying for {until - now:.0f} s")
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def shell_of(rsh: str | None, remote_waystage: str) -> Shell:
    """How servers are started over ssh."""
    import shlex

    from waystage.wan.ssh import Shell

    return Shell(tuple(shlex.split(rsh or "ssh")), remote_waystage)


@contextmanager
def begun_by_ssh(
    ends: FarEnds, shell: Shell, session: Session, output: Output
) -> Iterator[tuple[FarEnds, Session, Trust]]:
    """Arguments of `copy_far` for a server started over ssh for this copy only."""
    from waystage.wan.errors import WanConfigError
    from waystage.wan.ssh import started

    remote = ends.remote
    try:
        with started(remote, shell) as server:
            udp_wait_s = session.udp_wait_s
            if server.through_ssh:
                output.note(f"note: {server.through_ssh}")
                udp_wait_s = None
            far = FarEnds(ends.local, Remote(server.host, "", remote.path), ends.push)
            session = replace(session, port=server.port, udp_wait_s=udp_wait_s)
            yield far, session, Trust(server.identity, None, server.key, False)
    except WanConfigError as error:
        raise SshFailed(str(error)) from None


def about_connection(copying: RemoteCopy, dry_run: str | None) -> tuple[dict[str, Any], str]:
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
