"""Carries out one request by the copy engine, as the user that this process runs as.

Arrives: a submission, the site's settings.
Leaves: a complete copy, or why there is none; choices with their reasons.
Must not know: the stager, the queue.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from waystage.display import display
from waystage.flows import FlowDescription, FlowEnd, reported, storage
from waystage.native_options.copies import CopyOptions, RemoteCopyOptions, TreeCopyOptions
from waystage.staging.mounts import pair_of
from waystage.staging.paths import resolved, through
from waystage.staging.requests import Choice, Submission
from waystage.wan.address import Remote, parse_remote
from waystage.wan.ssh import Shell

if TYPE_CHECKING:
    from waystage._native import NameList, RemoteCopy, TreeCopy
    from waystage.staging.spread import Spread

PLANNED_SHOWN = 100


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """The orders of an engine: the request, whether it is the first attempt, the site's settings."""

    submission: Submission
    first: bool = True
    catalogs: tuple[str, ...] = ()
    """Catalogs that the site keeps, besides the request's own."""
    rsh: tuple[str, ...] = ("ssh", "-o", "BatchMode=yes")
    remote_waystage: str = "waystage"


class Stop(Exception):
    """The request was cancelled."""


class Reporter(Protocol):
    """Where choices and progress go."""

    def say(self, what: str, **values: Any) -> None: ...

    def choose(self, choice: Choice) -> None: ...

    def progress(self, counts: dict[str, int]) -> None: ...


def carry_out(move: Move, reports: Reporter, stopped: Callable[[], bool]) -> dict[str, Any]:
    """Move the data. The end as `kind` (empty for success), `text`, `warning` and `counts`.

    Raises Stop where it was cancelled, and errors of the data plane.
    """
    asked = move.submission
    far = parse_remote(asked.source), parse_remote(asked.destination)
    verified = "" if asked.verify == "none" else ", verified"
    reports.say("pair", pair=pair_of(asked) + verified)
    options = CopyOptions(verify=asked.verify, restart=asked.restart and move.first)

    def report(counts: dict[str, int]) -> None:
        if stopped():
            raise Stop
        reports.progress(counts)

    def follow(task: TreeCopy | RemoteCopy) -> None:
        from waystage.task import follow

        with reported(task, _flow(asked)):
            follow(task, report)

    _explain(asked, reports)
    copying: TreeCopy | RemoteCopy
    if asked.node_local and not asked.dry_run:
        between = _to_nodes if asked.direction == "in" else _from_nodes
        return between(move, reports, report)
    if far[0] is not None or far[1] is not None:
        copying, names = _far(move, options, far[0] or far[1], follow, push=far[1] is not None)  # type: ignore[arg-type]
    else:
        copying, names = _near(asked, replace(options, names=_listing(move, reports)), follow)
    return _ended(copying, names, asked)


def _flow(asked: Submission) -> FlowDescription:
    """The flow that this node's agent reports, where there is one."""
    source, destination = (
        FlowEnd(peer=far.host) if (far := parse_remote(end)) else storage(end)
        for end in (asked.source, asked.destination)
    )
    return FlowDescription(
        "wan" if source.peer or destination.peer else "staging",
        "stage",
        job_id=asked.job_id,
        source=source,
        destination=destination,
        mode=asked.reach.mode if source.peer or destination.peer else None,
    )


Follow = Callable[[Any], None]
Names = dict[str, str]
"""Paths through open directories -> the paths that the user gave."""


def _listing(move: Move, reports: Reporter) -> NameList | None:
    """The names below the source by a catalog, where one can be used."""
    from waystage._native import NameList
    from waystage.staging.listing import NoListing, listed

    asked = move.submission
    why = "no catalog was given"
    given = [asked.catalog] if asked.catalog else [*move.catalogs]
    for catalog in given if os.path.isdir(asked.source) else ():
        try:
            found = listed(catalog, asked.source)
            names = NameList(found.names, True, found.objects)
        except (NoListing, ValueError) as error:
            why = f"catalog {display(catalog)} is not used: {error}"
            continue
        reports.choose(
            Choice(
                "listing",
                f"{found.count:,} names by catalog {display(catalog)}",
                f"of {found.directories:,} directories, {found.read_again:,} changed since, and were read again",
            )
        )
        if names.has_objects:
            reports.choose(
                Choice("order", "by storage target", "the catalog names the targets of striped files")
            )
        return names
    reports.choose(Choice("listing", "walk of the source", why))
    return None


def _near(asked: Submission, options: CopyOptions, follow: Follow) -> tuple[TreeCopy, Names]:
    from waystage._native import TreeCopy

    source, name = resolved(asked.source)
    directory = not name
    try:
        if name:
            os.stat(name, dir_fd=source, follow_symlinks=False)
    except OSError as error:
        raise OSError(error.errno, error.strerror, asked.source) from None
    finally:
        os.close(source)
    with _Destination(asked, directory=directory) as destination:
        workers = min(16, 2 * len(os.sched_getaffinity(0)))
        wanted = TreeCopyOptions(
            workers=workers,
            dry_run=asked.dry_run,
            rate_bytes_per_s=asked.rate_bytes_per_s or None,
            **_values(options),
        )
        with TreeCopy(asked.source, destination.path, wanted) as copying:
            follow(copying)
        return copying, destination.names


def _far(
    move: Move, options: CopyOptions, remote: Remote, follow: Follow, *, push: bool
) -> tuple[RemoteCopy, Names]:
    from waystage.staging.far import copy_far

    asked = move.submission
    dry_run = "plan" if asked.dry_run else None
    wanted = RemoteCopyOptions(dry_run=dry_run, **_values(options))
    shell = Shell(move.rsh, move.remote_waystage)
    if push:
        source, _ = resolved(asked.source)
        os.close(source)
        return copy_far(Path(asked.source), remote, asked, shell, wanted, follow, push=True), {}
    with _Destination(asked, directory=False) as destination:
        local = Path(destination.path)
        copying = copy_far(local, remote, asked, shell, wanted, follow, push=False)
        return copying, destination.names


def _to_nodes(move: Move, reports: Reporter, report: Callable[[dict[str, int]], None]) -> dict[str, Any]:
    """Spread a directory or a file over the nodes."""
    from waystage.staging.spread import Way, rounds, spread, tree_rounds

    asked = move.submission
    source, name = resolved(asked.source)
    os.close(source)
    count = len(asked.nodes)
    steps, how = (tree_rounds, "binomial tree") if name else (rounds, "scatter, recursive doubling")
    reports.choose(
        Choice(
            "destination",
            f"local storage of {count} nodes, in {len(steps(count))} rounds",
            f"each file is read once from storage, then nodes copy from each other ({how})",
        )
    )
    way = Way(move.rsh, move.remote_waystage, asked.verify)
    state = spread(asked.source, asked.destination, asked.nodes, way=way, report=report)
    reports.choose(
        Choice(
            "storage",
            f"{state.read_bytes:,} bytes read",
            f"{state.written:,} bytes were written on {count} nodes",
        )
    )
    return _spread_end(state)


def _from_nodes(move: Move, reports: Reporter, report: Callable[[dict[str, int]], None]) -> dict[str, Any]:
    """Copy from the local storage of each node to a directory of its name."""
    from waystage.staging.spread import Way, gather

    asked = move.submission
    chosen = f"{asked.destination.rstrip('/')}/NODE, for each of {len(asked.nodes)} nodes"
    reports.choose(Choice("destination", chosen, "nodes may have files of the same name"))
    way = Way(move.rsh, move.remote_waystage, asked.verify)
    return _spread_end(gather(asked.source, asked.destination, asked.nodes, way=way, report=report))


def _spread_end(state: Spread) -> dict[str, Any]:
    warning = (
        f"attributes were not preserved, or the kind is not copied, of {state.lost:,} entries"
        if state.lost
        else ""
    )
    return {"kind": "", "text": "", "warning": warning, "counts": state.counts()}


class _Destination:
    """The local destination, held open, so that no process can put another in its place."""

    def __init__(self, asked: Submission, *, directory: bool) -> None:
        end = asked.destination
        self._fd, name = resolved(end, make=not asked.dry_run)
        if name and (directory or end.endswith("/")) and not asked.dry_run:
            found = None
            try:
                os.mkdir(name, dir_fd=self._fd)
            except FileExistsError:
                found = os.stat(name, dir_fd=self._fd, follow_symlinks=False)
            except OSError as error:
                raise OSError(error.errno, error.strerror, end) from None
            if found is None or stat.S_ISDIR(found.st_mode):
                below = os.open(
                    name, os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._fd
                )
                os.close(self._fd)
                self._fd, name = below, ""
        self.path = through(self._fd, name)
        shown = end.rstrip("/") or "/"
        self.names = {through(self._fd, ""): os.path.dirname(shown) if name else shown}

    def __enter__(self) -> _Destination:
        return self

    def __exit__(self, *exception: object) -> None:
        error = exception[1]
        if isinstance(error, RuntimeError) and error.args:
            error.args = (_renamed(str(error), self.names), *error.args[1:])
        os.close(self._fd)


def _renamed(text: str, names: Names) -> str:
    for inner, outer in names.items():
        # As the replacement of a regular expression, a backslash in a name would mean something.
        text = display(outer).join(re.split(re.escape(inner) + r"(?![0-9])", text))
    return text


def _values(options: CopyOptions) -> dict[str, Any]:
    return {name: getattr(options, name) for name in options.__dataclass_fields__}


def _explain(asked: Submission, reports: Reporter) -> None:
    far = parse_remote(asked.source) or parse_remote(asked.destination)
    if far is not None:
        by = "a server started over ssh" if asked.reach.ssh else f"`waystage serve`, port {asked.reach.port}"
        reports.choose(
            Choice("transport", f"between hosts, {asked.reach.mode}", f"one end is on {far.host}; by {by}")
        )
        reports.choose(Choice("listing", "walk of the source", "the sender walks while it sends"))
    else:
        reports.choose(
            Choice(
                "transport", "within this host", "both ends are paths here; the kernel copies where it can"
            )
        )
    if asked.verify != "none":
        reports.choose(Choice("verification", f"read back ({asked.verify})", "--verify"))


def _ended(copying: TreeCopy | RemoteCopy, names: Names, asked: Submission) -> dict[str, Any]:
    counts = copying.progress()
    problems = copying.problems()
    if asked.dry_run:
        planned = copying.planned()
        plan = {
            "files": counts["files"],
            "bytes": counts["bytes"],
            "entries": len(planned),
            "would_copy": [display(path) for path, _, _ in planned[:PLANNED_SHOWN]],
        }
        return {"kind": "", "text": "", "warning": "", "counts": counts, "plan": plan}

    def first(*kinds: str) -> str:
        found = [(path, text) for path, kind, text in problems if kind in kinds]
        path, text = found[0] if found else (b"", "no entry is named")
        count = sum(counts[{"error": "errors"}.get(kind, kind)] for kind in kinds)
        more = f", and {count - 1:,} more" if count > 1 else ""
        return f"{display(path) or '.'}: {_renamed(text, names)}{more}"

    value = {"kind": "", "text": "", "warning": "", "counts": counts}
    if counts["errors"]:
        value |= {"kind": "entries", "text": f"not copied: {first('error')}"}
    elif counts["changed"] or counts["vanished"]:
        value |= {"kind": "changed", "text": first("changed", "vanished")}
    elif counts["lost"] or counts["skipped"]:
        parts = [
            f"{words} {counts[kind]:,} {'entry' if counts[kind] == 1 else 'entries'} ({first(kind)})"
            for kind, words in (("lost", "attributes were not preserved of"), ("skipped", "not copied:"))
            if counts[kind]
        ]
        value |= {"warning": "; ".join(parts)}
    elif not copying.complete:
        value |= {"kind": "failed", "text": "the copy ended without being complete"}
    return value
