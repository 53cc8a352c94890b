"""`waystage copy`: copy trees and files, atomically per file, resumable, optionally verified.

Arrives: sources, a destination and options.
Leaves: the copy; counts and problems as text or one JSON object; exit status 8 if some entries failed.
Must not know: how bytes are moved.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import click

from waystage.cli.combining import refuse
from waystage.cli.common import ExitCode, Output, UserError, output_options
from waystage.cli.copy_after import After, after_options, check_deletion, refuse_after
from waystage.cli.copy_dry import DryRunCommand, about_dry_run, refuse_network
from waystage.cli.copy_expected import about_time
from waystage.cli.copy_nodes import copy_on_nodes, refuse_on_nodes
from waystage.cli.copy_remote import (
    FarEnds,
    about_connection,
    begun_by_ssh,
    copy_far,
    persisting,
    refuse_idle,
    refuse_unknown,
    remote_ends,
    shell_of,
)
from waystage.cli.copy_report import ItemLog, Statistics, Together, say
from waystage.cli.copy_run import Run, left_undone
from waystage.cli.copy_selection import Selected, selection_options
from waystage.cli.copy_sources import STREAM, Ends, pairs
from waystage.cli.many_nodes import nodes_options
from waystage.cli.reaching import (
    RateSchedule,
    Session,
    Trust,
    believing,
    memory,
    server_options,
    show_key_option,
)
from waystage.cli.reporting import job_option
from waystage.native_options.copies import DeleteOptions, RemoteCopyOptions, RemoveOptions, TreeCopyOptions
from waystage.wan.rates import UNLIMITED, Schedule

if TYPE_CHECKING:
    from waystage._native import RemoteCopy, SourceRemove, TreeDelete
    from waystage.nodes import Where
    from waystage.wan.ssh import Shell


Follower = TypeVar("Follower", "TreeDelete", "SourceRemove")

COMPARERS = 2
"""Threads of a removal between hosts: while one waits for the server, another reads."""


@click.command(cls=DryRunCommand)
@click.argument("sources", metavar="SRC...", nargs=-1, required=True)
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
@selection_options
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
    "--reflink",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    show_default=True,
    help="Share blocks with SRC instead of copying them: where the file system can; or fail; never. auto does not"
    " with --verify or --bandwidth-limit.",
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
    "--compress",
    is_flag=True,
    help="Between hosts: compress file contents on the path (LZ4) where that makes them shorter.",
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
@after_options
@click.option(
    "--log-file",
    metavar="FILE",
    help="Append a JSON line to FILE for each entry copied, deleted or removed, each problem, and the result.",
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
    sources: tuple[str, ...],
    destination: str,
    selected: Selected,
    update: str,
    verify: bool,
    from_storage: bool,
    fsync: str,
    reflink: str,
    schedule: Schedule | None,
    workers: int | None,
    order: str,
    readers_per_target: int | None,
    connections: int,
    memory: int,
    compress: bool,
    retry_for: float,
    statistics: TextIO | None,
    dry_run: str | None,
    after: After,
    log_file: str | None,
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
    started over ssh with --ssh; - is standard input or output.

    The contents of directory SRC are copied into DST; other entries of DST are kept, without --delete. With several
    SRC, each goes into the directory DST under its name, or with a slash at its end its contents. Holes, hard links,
    symbolic links, devices, FIFOs, extended attributes, access control lists, times, modes and owners are preserved;
    without --privileged, attributes from another host that grant rights are not. A file appears in DST only when it is
    complete. After an interruption, the same command resumes the copy. With --scheduler or --slurm, many nodes that
    reach SRC and DST share the work.

    Exit status 8: some entries failed or changed during the copy; the same command retries them.
    """
    for name, given in (*(("SRC", source) for source in sources), ("DST", destination)):
        if not given:
            raise UserError(f"{name} is empty: give a path; . is the current directory", ExitCode.USAGE)
    if from_storage and not verify:
        raise UserError("--from-storage needs --verify", ExitCode.USAGE)
    if reflink == "always" and verify:
        raise UserError("--verify reads back what --reflink always does not write: omit one", ExitCode.USAGE)
    if STREAM in (*sources, destination):
        from waystage.cli.copy_stream import copy_stream

        return copy_stream(sources, destination, output)
    options: dict[str, Any] = selected.options() | {
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
    ends = [remote_ends(source, destination) for source in sources]
    refuse_idle(ends[0], by_ssh or rsh is not None)
    if any((each is None) != (ends[0] is None) for each in ends):
        raise UserError("SRC: give either local or remote sources, not both", ExitCode.USAGE)
    if nodes is not None:
        refuse_on_nodes(ends[0] is not None, len(sources))
        refuse_after("made by many nodes")
        refuse_network(dry_run)
        names = options.pop("names")
        # Values of a dry run, and of reads, that are this machine's alone.
        options |= {"dry_run": dry_run is not None, "read_sources": dry_run == "disk"}
        options |= {"order": order, "readers_per_target": readers_per_target}
        rate = schedule.now()
        found = copy_on_nodes(
            nodes, sources[0], destination, options, output, catalog, selected.exclude, names, workers, rate
        )
        more, paths = about_dry_run(found, dry_run)
        say(found, sources[0], destination, time.monotonic() - began, output, more, "", paths)
        return ExitCode.OK if found.complete else ExitCode.PARTIAL
    if catalog is not None:
        raise UserError("--catalog needs --scheduler or --slurm", ExitCode.USAGE)
    log = ItemLog(output, log_file)
    lines = None if statistics is None else Statistics(statistics, began)
    run = Run(output, dry_run, began, lines, schedule, log)
    together, more, words = Together(), {}, ""
    if ends[0] is None:
        refuse_network(dry_run)
        check_deletion(after, sources, selected)
        local = TreeCopyOptions(
            workers=workers or min(16, 2 * len(os.sched_getaffinity(0))),
            order=order,
            readers_per_target=readers_per_target,
            reflink=reflink,
            rate_bytes_per_s=schedule.now(),
            dry_run=dry_run is not None,
            read_sources=dry_run == "disk",
            backup=after.backup,
            log=log.wanted,
            **options,
        )
        todo = pairs(sources, destination, dry_run=dry_run is not None)
        for each in todo:
            copy_here(run, each, local, together)
        follow_up(run, todo, after, selected, local.workers, together)
    else:
        refuse(("reflink",), "no effect between hosts; omit it")
        after = after.between_hosts()
        check_deletion(after, sources, selected, pulls=not ends[0].push)
        refuse_unknown(update, dry_run, pulls=not ends[0].push, copy_links=selected.copy_links)
        wanted = RemoteCopyOptions(
            dry_run=dry_run,
            connections=connections,
            memory_bytes=memory,
            privileged=privileged,
            compress=compress,
            backup=after.backup,
            workers=workers or max(4, connections),
            **options,
        )
        session = Session(port, mode, schedule.most, udp_wait or None)
        ssh = shell_of(rsh, remote_waystage) if by_ssh or rsh is not None else None
        trust = Trust(identity, known_hosts, server_key, trust_new)
        gone: list[TreeDelete | SourceRemove] = []

        def then(copying: RemoteCopy, there: FarEnds, by: Session, believed: Trust) -> None:
            if after.delete and not left_undone(run, copying.progress(), "deleted"):
                gone.extend(delete_far(run, there, by, believed, after.far(selected, dry_run, log.wanted)))
            if after.remove_source and not left_undone(run, copying.progress(), "removed"):
                dry = dry_run is not None
                removal = after.removal_options(selected, COMPARERS, dry_run=dry, log=log.wanted)
                gone.append(remove_far(run, there, by, believed, removal))

        for each in pairs(sources, destination, dry_run=dry_run is not None):
            far_ends = remote_ends(each.source, each.destination)
            assert far_ends is not None
            far = copy_between(run, far_ends, wanted, session, ssh, trust, retry_for, then)
            together.add(far, each.below)
            more, words = about_connection(far, dry_run)
        for deleted in gone:
            together.add(deleted, deleted=True)
    about, paths = about_dry_run(together, dry_run)
    seconds = time.monotonic() - began
    if len(sources) == 1 and not after.remove_source:  # whose comparison is no part of a copy
        limited = schedule is not UNLIMITED
        words += about_time(
            together, (sources[0], destination, verify), seconds, dry_run, about, limited=limited
        )
    source = sources[0] if len(sources) == 1 else list(sources)
    say(together, source, destination, seconds, output, about | more, words, paths, log)
    return ExitCode.OK if together.complete else ExitCode.PARTIAL


def copy_here(run: Run, ends: Ends, options: TreeCopyOptions, together: Together) -> None:
    """Copy on this machine, and add the outcome. Raises CopyError."""
    from waystage._native import TreeCopy
    from waystage.copying.shares import clear_shares
    from waystage.flows import FlowDescription, copying_class, reported, storage

    source, destination = ends.source, ends.destination
    flow = FlowDescription(copying_class(), "copy", source=storage(source), destination=storage(destination))
    if not run.dry_run and os.path.isdir(source):
        clear_shares(source, destination)
    # Not as Path, which drops a trailing slash, and that says what the path is to be.
    with TreeCopy(source, destination, options) as copying:
        with run.output.progress() as progress, reported(copying, flow) as report:
            run.follow(copying, progress)
            if not copying.complete:
                report.outcome = "failed"
    together.add(copying, ends.below)


def follow_up(
    run: Run, todo: list[Ends], after: After, selected: Selected, workers: int, together: Together
) -> None:
    """Delete and remove what is to go, after copies without errors. Raises CopyError."""
    if not after.delete and not after.remove_source:
        return
    if left_undone(run, together.progress(), "deleted" if after.delete else "removed"):
        return
    start, doing = (after.deletion, "deleting") if after.delete else (after.removal, "removing")
    for each in todo:
        if run.dry_run and not os.path.isdir(each.destination):
            continue
        dry_run = run.dry_run is not None
        with start(
            each.source, each.destination, selected, workers, dry_run=dry_run, log=run.log.wanted
        ) as task:
            run.follow_after(task, doing)
        together.add(task, each.below, deleted=True)


def delete_far(
    run: Run, ends: FarEnds, session: Session, trust: Trust, options: DeleteOptions
) -> Iterator[TreeDelete]:
    """Delete at the destination what the source lacks, one of them at a server. Raises CopyError and WanError."""
    from waystage._native import TreeDelete

    if not ends.push and run.dry_run and not os.path.isdir(ends.local):
        return

    yield after_far(run, ends, session, trust, partial(TreeDelete.between, options=options), "deleting")


def remove_far(
    run: Run, ends: FarEnds, session: Session, trust: Trust, options: RemoveOptions
) -> SourceRemove:
    """Remove files of the source that the destination holds, one of them at a server. Raises CopyError and WanError."""
    from waystage._native import SourceRemove

    return after_far(run, ends, session, trust, partial(SourceRemove.between, options=options), "removing")


def after_far(
    run: Run, ends: FarEnds, session: Session, trust: Trust, between: Callable[..., Follower], doing: str
) -> Follower:
    """Run what follows a copy with one end at a server, to its end. Raises CopyError and WanError."""

    def attempt(known: str | None, key: Path) -> Follower:
        peer = session.peer(ends.remote.host, ends.remote.user, key, known)
        task = between(ends.local, ends.remote.path, peer, push=ends.push)
        with task:
            run.follow_after(task, doing)
        return task

    return believing(ends.remote.host, session.port, trust, run.output, attempt)


def copy_between(
    run: Run,
    ends: FarEnds,
    wanted: RemoteCopyOptions,
    session: Session,
    ssh: Shell | None,
    trust: Trust,
    retry_for: float,
    then: Callable[[RemoteCopy, FarEnds, Session, Trust], None],
) -> RemoteCopy:
    """Copy from or to another host, and do what follows that with the same server. Raises WanError and UserError."""
    from waystage.flows import FlowDescription, FlowEnd, reported, storage

    def attempt(again: bool) -> RemoteCopy:
        # A further attempt resumes what the one before has begun.
        options = replace(wanted, restart=False) if again else wanted
        with ExitStack() as held:
            there, by, believed = ends, session, trust
            if ssh is not None:
                options = replace(options, known_as=f"{ends.remote.user}@{ends.remote.host}")
                there, by, believed = held.enter_context(begun_by_ssh(ends, ssh, session, run.output))

            def follow(copying: RemoteCopy) -> None:
                peer = FlowEnd(peer=there.remote.host)
                here = storage(there.local)
                ways = (here, peer) if there.push else (peer, here)
                flow = FlowDescription("wan", "copy", source=ways[0], destination=ways[1], mode=by.mode)
                with run.output.progress() as progress, reported(copying, flow) as report:
                    run.follow(copying, progress)
                    if not copying.complete:
                        report.outcome = "failed"

            copying = copy_far(there, by, believed, run.output, follow, options)
            then(copying, there, by, believed)
            return copying

    return persisting(attempt, retry_for, run.output)
