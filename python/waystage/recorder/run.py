"""One program run, from its preparation until its files are in the catalog.

Arrives: a command line, a catalog.
Leaves: the program's exit status, also where the catalog failed.
Must not know: the transport of records, the format of a catalog.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from waystage._native import CatalogAgent
from waystage.catalog import BuildError, BuildOptions
from waystage.catalog.build import AS_USUAL
from waystage.catalog.changed import Applied, changing, unmark
from waystage.program import preloading, run_to_end
from waystage.recorder.errors import RecorderError
from waystage.recorder.library import build


@dataclass(frozen=True)
class RecordOptions:
    """`tell_stat`: programs report a file's attributes when they close it, and the file system is not queried again."""

    build: BuildOptions = AS_USUAL
    tell_stat: bool = False
    cc: str | None = None


@dataclass(frozen=True)
class Ran:
    """`status` is the program's. `applied` is None where the catalog could not be written; `problem` says why.
    `unseen` are the first programs that could not be observed, and bypasses of the C library."""

    status: int
    applied: Applied | None
    counts: dict[str, int] = field(default_factory=dict)
    problem: str | None = None
    unseen: tuple[bytes, ...] = ()


def record(command: Sequence[str], target: Path, tree: Path | None, options: RecordOptions) -> Ran:
    """Run `command` to its end and update the catalog at `target` with its changes to files.

    Raises RecorderError where it was not started, CatalogError and BuildError where the catalog cannot be had; nothing
    has been run then.
    """
    if not command:
        raise RecorderError("there is no program to record: waystage catalog record -- PROGRAM")
    if shutil.which(command[0]) is None:
        raise RecorderError(f"there is no program {command[0]}")
    library = build(options.cc)
    target = (
        target.absolute()
    )  # The program may not change what it means, but this process's folder is the user's.
    marked = target.exists()
    with changing(target, tree, options.build) as held:
        agent = _start_agent(held.root, options)
        try:
            status = run_to_end(
                command,
                {"LD_PRELOAD": preloading(str(library)), "WAYSTAGE_RING": agent.path},
                lambda process: agent.started(process, os.fsencode(command[0])),
            )
        except OSError as error:
            if marked:
                unmark(target)
            raise RecorderError(f"{command[0]} cannot be started: {error.strerror}") from None
        changes = agent.finish(
            threads=options.build.thread_count(),
            exclude=held.left_out,
            one_file_system=held.was.one_file_system,
            layouts=held.was.layouts,
        )
        changes.add(_inherited(held.root))
        unseen = tuple(changes.unseen())
        try:
            applied = held.apply(changes)
        except BuildError as error:
            return Ran(status, None, changes.counts(), str(error), unseen)
    return Ran(status, applied, changes.counts(), unseen=unseen)


def _start_agent(root: Path, options: RecordOptions) -> CatalogAgent:
    try:
        return CatalogAgent(root, tell_stat=options.tell_stat)
    except OSError as error:
        raise RecorderError(f"the agent has no shared memory: {error.strerror or error}") from None


def _inherited(root: Path) -> list[bytes]:
    """Files in the tree that were open before the program started, such as its output."""
    found = []
    for descriptor in (0, 1, 2):
        try:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
                if path.is_relative_to(root):
                    found.append(os.fsencode(path.relative_to(root)))
        except OSError:
            continue
    return found
