"""`waystage copy`: copy a tree or a file, atomically per file, resumable, optionally verified.

Arrives: a source, a destination and options.
Leaves: the copy; counts and problems as text or one JSON object; exit status 8 if some entries failed.
Must not know: how bytes are moved.
"""

from __future__ import annotations

import math
import os
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO

import click

from waystage.cli.common import ExitCode, Output, UserError, output_options
from waystage.cli.copy_dry import REMARKS, WORDS, DryRunCommand, about_dry_run, refuse_network
from waystage.cli.copy_list import read_list
from waystage.cli.copy_nodes import copy_on_nodes, refuse_on_nodes
from waystage.cli.copy_remote import (
    about_connection,
    begun_by_ssh,
    copy_far,
    persisting,
    refuse_idle,
    refuse_unknown,
    remote_ends,
)
from waystage.cli.many_nodes import nodes_options
from waystage.cli.reaching import RateSchedule, Session, Trust, memory, server_options, show_key_option
from waystage.cli.reporting import job_option
from waystage.native_options.copies import RemoteCopyOptions, TreeCopyOptions
from waystage.task import Progress, follow
from waystage.wan.rates import UNLIMITED, Limiter, Schedule

if TYPE_CHECKING:
    from waystage._native import RemoteCopy, TreeCopy
    from waystage.copying.on_nodes import Copied
    from waystage.nodes import Where
    from waystage.wan.ssh import Shell

SHOWN = 20
"""Problems and paths shown as text; --json gives all."""

STATISTICS_S = 1.0

PARTS = (
    ("files", "files"),
    ("symlinks", "symbolic links"),
    ("hard_links", "hard links"),
    ("specials", "devices and FIFOs"),
    ("directories", "directories"),
    ("mended", "files repaired"),
    ("verified", "read back"),
    ("same", "there already"),
    ("leftovers", "leftovers removed"),
    ("excluded", "left out"),
)


@click.command(cls=DryRunCommand)
@click.argument("source", metavar="SRC")
@click.argument("destination", metavar="DST")
@show_key_option
@server_options("Between hosts: ")
@click.option(
    "--ssh",
    "by_ssh",
    is_flag=True,
    help="Between hosts: start the server over ssh if no `waystage serve` runs.",
)
@click.option(
    "--rsh",
    "-e",
    metavar="COMMAND",
    help="Between hosts: start the server with this command, e.g. 'ssh -p 2222 -i key'.",
)
@click.option(
    "--remote-waystage",
    metavar="COMMAND",
    default="waystage",
    show_default=True,
    help="With --ssh or --rsh: the waystage command on the remote host.",
)
@click.option("--exclude", "-x", multiple=True, metavar="PATTERN", help="Exclude PATTERN (repeatable).")
@click.option(
    "--include",
    "-i",
    multiple=True,
    metavar="PATTERN",
    help="Copy only files that match PATTERN (repeatable).",
)
@click.option(
    "--files-from",
    "listing",
    type=click.File("rb"),
    metavar="FILE",
    help="Copy only the paths below SRC listed in FILE, one a line; directories recursively; - is stdin.",
)
@click.option("--null", "-0", "nul", is_flag=True, help="With --files-from: paths end with a NUL.")
@click.option("--one-file-system", is_flag=True, help="Do not cross file system boundaries.")
@click.option(
    "--update",
    type=click.Choice(["changed", "newer", "missing", "content", "always"]),
    default="changed",
    show_default=True,
    help="Which existing files to copy again: changed size or time; only if the source is newer; none; changed contents"
    " (reads both); all.",
)
@click.option("--verify", is_flag=True, help="Read the copy back and compare.")
@click.option(
    "--from-storage", is_flag=True, help="With --verify: read from storage, not from the page cache."
)
@click.option(
    "--fsync",
    type=click.Choice(["none", "end", "each"]),
    default="none",
    show_default=True,
    help="Force data to storage: never, before the copy is complete, or each file before its rename.",
)
@click.option(
    "--bandwidth-limit",
    "schedule",
    type=RateSchedule(),
    metavar="RATE",
    help="Limit the rate in bytes/s, e.g. 100M or 1.5G, or by a schedule, e.g. '08:00-18:00=200M,sat+sun=off';"
    " @FILE reads it from a file (docs/reference/units.md).",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 1024),
    help="Number of copy threads. Default: two per core, at most 16.",
)
@click.option(
    "--order",
    type=click.Choice(["auto", "walk"]),
    default="auto",
    show_default=True,
    help="Order of reads on one machine: by storage target where SRC is striped, or as the walk finds files.",
)
@click.option(
    "--readers-per-target",
    type=click.IntRange(1, 1024),
    help="Number of copy threads that read from one storage target at once, as `waystage profile-targets` measures it.",
)
@click.option(
    "--connections",
    type=click.IntRange(1, 32),
    default=1,
    show_default=True,
    help="Between hosts: number of connections, with one encryption thread each. Except with --mode aggressive, they"
    " share the rate of one connection.",
)
@click.option(
    "--memory",
    type=memory(),
    default="256Mi",
    show_default=True,
    help="Between hosts: memory for data in flight at each end; the server may grant less.",
)
@click.option(
    "--retry-for",
    type=click.FloatRange(min=0),
    default=0.0,
    metavar="SECONDS",
    help="Between hosts: after a lost connection, try to reconnect and resume for this time.",
)
@click.option(
    "--statistics",
    type=click.File("w", lazy=False),
    metavar="FILE",
    help="Write a JSON line each second: progress and, between hosts, connection statistics; - is stdout.",
)
@click.option(
    "--dry-run",
    "-n",
    type=click.Choice(["plan", "disk", "network"]),
    metavar="[=disk|=network]",
    help="Copy nothing. plan (default): list what would be copied; disk: also read it, to measure the read rate;"
    " network: between hosts, send as much synthetic data.",
)
@click.option("--restart", is_flag=True, help="Discard partial files of an interrupted copy.")
@click.option("--no-xattrs", is_flag=True, help="Do not copy extended attributes and access control lists.")
@click.option("--no-owners", is_flag=True, help="Do not set owners and groups.")
@click.option(
    "--privileged",
    is_flag=True,
    help="From another host: also copy owners, set-user-ID bits, devices, access control lists and capabilities. Use it"
    " only if that host is trusted as root.",
)
@click.option("--no-hard-links", is_flag=True, help="Copy each hard link as a separate file.")
@job_option
@click.option(
    "--catalog",
    type=click.Path(path_type=Path, file_okay=False),
    help="With --scheduler or --slurm: take the entries of SRC from its catalog instead of walking SRC.",
)
@nodes_options
@output_options
def command(
    source: str,
    destination: str,
    exclude: tuple[str, ...],
    include: tuple[str, ...],
    listing: BinaryIO | None,
    nul: bool,
    one_file_system: bool,
    update: str,
    verify: bool,
    from_storage: bool,
    fsync: str,
    schedule: Schedule | None,
    workers: int | None,
    order: str,
    readers_per_target: int | None,
    connections: int,
    memory: int,
    retry_for: float,
    statistics: TextIO | None,
    dry_run: str | None,
    restart: bool,
    no_xattrs: bool,
    no_owners: bool,
    privileged: bool,
    no_hard_links: bool,
    catalog: Path | None,
    nodes: Where | None,
    mode: str,
    port: int,
    identity: Path | None,
    known_hosts: Path | None,
    server_key: str | None,
    trust_new: bool,
    by_ssh: bool,
    rsh: str | None,
    remote_waystage: str,
    udp_wait: float,
    output: Output,
) -> int:
    """Copy SRC, a directory or a file, to DST. One of them may be [USER@]HOST:PATH, where `waystage serve` runs or is
    started over ssh with --ssh.

    The contents of directory SRC are copied into DST; other entries of DST are kept. Holes, hard links, symbolic
    links, devices, FIFOs, extended attributes, access control lists, times, modes and owners are preserved; without
    --privileged, attributes from another host that grant rights are not. A file appears in DST only when it is
    complete. After an interruption, the same command resumes the copy. With --scheduler or --slurm, many nodes that
    reach SRC and DST share the work.

    Exit status 8: some entries failed or changed during the copy; the same command retries them.
    """
    from waystage.flows import FlowDescription, FlowEnd, copying_class, reported, storage

    for name, given in (("SRC", source), ("DST", destination)):
        if not given:
            raise UserError(f"{name} is empty: give a path; . is the current directory", ExitCode.USAGE)
    if from_storage and not verify:
        raise UserError("--from-storage needs --verify", ExitCode.USAGE)
    options: dict[str, Any] = {
        "exclude": [os.fsencode(pattern) for pattern in exclude],
        "include": [os.fsencode(pattern) for pattern in include] or None,
        "names": read_list(listing, nul),
        "one_file_system": one_file_system,
        "update": update,
        "fsync": fsync,
        "verify": ("storage" if from_storage else "cached") if verify else "none",
        "restart": restart,
        "xattrs": not no_xattrs,
        "owners": not no_owners,
        "hard_links": not no_hard_links,
    }
    schedule = schedule or UNLIMITED
    began = time.monotonic()
    lines = None if statistics is None else Statistics(statistics, began)
    ends = remote_ends(source, destination)
    refuse_idle(ends, by_ssh or rsh is not None)
    word = WORDS.get(dry_run or "", "copied")
    if nodes is not None:
        refuse_on_nodes(ends is not None)
        refuse_network(dry_run)
        names = options.pop("names")
        # Values of a dry run, and of reads, that are this machine's alone.
        options |= {"dry_run": dry_run is not None, "read_sources": dry_run == "disk"}
        options |= {"order": order, "readers_per_target": readers_per_target}
        rate = schedule.now()
        found = copy_on_nodes(
            nodes, source, destination, options, output, catalog, exclude, names, workers, rate
        )
        more, paths = about_dry_run(found, dry_run)
        _say(found, source, destination, time.monotonic() - began, output, more, "", paths)
        return ExitCode.OK if found.complete else ExitCode.PARTIAL
    if catalog is not None:
        raise UserError("--catalog needs --scheduler or --slurm", ExitCode.USAGE)
    if ends is not None:
        refuse_unknown(update, dry_run)
        wanted = RemoteCopyOptions(
            dry_run=dry_run,
            connections=connections,
            memory_bytes=memory,
            privileged=privileged,
            workers=workers or max(4, connections),
            **options,
        )
        session = Session(port, mode, schedule.most, udp_wait or None)
        ssh = _shell(rsh, remote_waystage) if by_ssh or rsh is not None else None
        trust = Trust(identity, known_hosts, server_key, trust_new)

        def attempt(again: bool) -> RemoteCopy:
            # A further attempt resumes what the one before has begun.
            options = replace(wanted, restart=False) if again else wanted
            with ExitStack() as held:
                there, by, believed = ends, session, trust
                if ssh is not None:
                    options = replace(options, known_as=f"{ends.remote.user}@{ends.remote.host}")
                    there, by, believed = held.enter_context(begun_by_ssh(ends, ssh, session, output))
                # Only now: ssh may have asked for a password.
                progress = held.enter_context(output.progress())

                def follow(copying: RemoteCopy) -> None:
                    peer = FlowEnd(peer=there.remote.host)
                    here = storage(there.local)
                    ways = (here, peer) if there.push else (peer, here)
                    flow = FlowDescription("wan", "copy", source=ways[0], destination=ways[1], mode=by.mode)
                    with reported(copying, flow) as report:
                        _follow(copying, progress, word, began, lines, schedule)
                        if not copying.complete:
                            report.outcome = "failed"

                return copy_far(there, by, believed, output, follow, options)

        far = persisting(attempt, retry_for, output)
        connection, words = about_connection(far, dry_run)
        more, paths = about_dry_run(far, dry_run)
        _say(far, source, destination, time.monotonic() - began, output, more | connection, words, paths)
        return ExitCode.OK if far.complete else ExitCode.PARTIAL
    from waystage._native import TreeCopy
    from waystage.copying.shares import clear_shares

    refuse_network(dry_run)
    flow = FlowDescription(copying_class(), "copy", source=storage(source), destination=storage(destination))
    if not dry_run and os.path.isdir(source):
        clear_shares(source, destination)
    # Not as Path, which drops a trailing slash, and that says what the path is to be.
    with TreeCopy(
        source,
        destination,
        TreeCopyOptions(
            workers=workers or min(16, 2 * len(os.sched_getaffinity(0))),
            order=order,
            readers_per_target=readers_per_target,
            rate_bytes_per_s=schedule.now(),
            dry_run=dry_run is not None,
            read_sources=dry_run == "disk",
            **options,
        ),
    ) as copying:
        with output.progress() as progress, reported(copying, flow) as report:
            _follow(copying, progress, word, began, lines, schedule)
            if not copying.complete:
                report.outcome = "failed"
    seconds = time.monotonic() - began
    more, paths = about_dry_run(copying, dry_run)
    _say(copying, source, destination, seconds, output, more, "", paths)
    return ExitCode.OK if copying.complete else ExitCode.PARTIAL


class Statistics:
    """Writes a line each second, and one at the end."""

    def __init__(self, file: TextIO, began: float) -> None:
        self._file, self._began = file, began
        self._due, self._bytes, self._at = began + STATISTICS_S, 0, began

    def look(self, copying: TreeCopy | RemoteCopy, *, last: bool = False) -> None:
        """Write a line if a second has passed."""
        now = time.monotonic()
        if now < self._due and not last:
            return
        counts = copying.progress()
        moved = counts["bytes"]
        line: dict[str, Any] = {
            "time": round(time.time(), 3),
            "seconds": round(now - self._began, 3),
            "bytes_per_s": round((moved - self._bytes) / max(now - self._at, 1e-9)),
            "counts": counts,
        }
        if hasattr(copying, "connection"):
            numbers, limit = copying.connection()
            line["connection"] = {key: round(number, 3) for key, number in numbers.items()}
            line["limited_by"] = limit or None
        import json

        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        self._bytes, self._at = moved, now
        # What was missed is not made up for.
        self._due += STATISTICS_S * max(1, math.ceil((now - self._due) / STATISTICS_S))


def _shell(rsh: str | None, remote_waystage: str) -> Shell:
    import shlex

    from waystage.wan.ssh import Shell

    return Shell(tuple(shlex.split(rsh or "ssh")), remote_waystage)


def _follow(
    copying: TreeCopy | RemoteCopy,
    progress: Progress,
    word: str,
    began: float,
    statistics: Statistics | None,
    schedule: Schedule,
) -> None:
    limiter = Limiter(schedule, copying.limit) if schedule.changes else None
    if limiter is not None:
        limiter.look()

    def report(counts: dict[str, int]) -> None:
        if limiter is not None:
            limiter.look()
        if statistics is not None:
            statistics.look(copying)
        done = counts["files"] + counts["same"] + counts["mended"]
        rate = counts["bytes"] / max(time.monotonic() - began, 1e-9)
        moved = counts["bytes"] + counts["resumed_bytes"]
        # Until the walk has ended, it has found only a part of the total.
        share = max(moved / max(counts["found_bytes"], 1), done / max(counts["found"], 1))
        progress(f"{word} {done:,} files, {size_text(moved)}, {size_text(rate)}/s", min(share, 0.99))

    follow(copying, report)
    if statistics is not None:
        statistics.look(copying, last=True)


def _say(
    copying: TreeCopy | RemoteCopy | Copied,
    source: str,
    destination: str,
    seconds: float,
    output: Output,
    more: dict[str, Any],
    words: str,
    listing: list[str],
) -> None:
    from waystage.display import display, named

    counts = copying.progress()
    problems = copying.problems()
    value: dict[str, Any] = {
        "source": source,
        "destination": destination,
        "complete": copying.complete,
        "seconds": round(seconds, 3),
        "counts": counts,
        "problems": [named(path) | {"kind": kind, "text": text} for path, kind, text in problems],
    }
    value |= more
    done = [f"{counts[key]:,} {words}" for key, words in PARTS if counts[key]]
    dry = more["dry_run"]
    word = WORDS.get(dry, "copied")
    rate = f" ({size_text(counts['bytes'] / max(seconds, 1e-9))}/s)" if dry in ("disk", "network") else ""
    text = f"{word} {size_text(counts['bytes'])} in {seconds:.1f} s{rate}: {', '.join(done) or 'nothing was found'}"
    if counts["resumed"]:
        text += f"; resumed with {size_text(counts['resumed_bytes'])} of an interrupted copy"
    for kind in ("errors", "changed", "vanished", "lost", "skipped"):
        if counts[kind]:
            text += f"; {counts[kind]:,} {kind}"
    text += REMARKS.get(dry, "")
    if len(listing) > SHOWN:
        listing = [*listing[:SHOWN], f"... and {len(listing) - SHOWN:,} more: --json lists them"]
    output.result(value, "\n".join([*listing, text + words]))
    if not output.json:
        for path, kind, why in problems[:SHOWN]:
            output.note(f"{display(path) or '.'}: {kind}: {why}")
        if len(problems) > SHOWN:
            output.note(f"... and {len(problems) - SHOWN:,} more: --json lists them")


def size_text(size: float) -> str:
    """Bytes as text: 1.5 GB."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return ""
