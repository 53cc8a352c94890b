"""Directories that every node must reach, and the proof that a node reaches the same one.

Arrives: a directory.
Leaves: a private folder in it, or a marker in it, for as long as a command runs; markers as what nodes look for.
Must not know: Dask, what is kept in the folder.

A path that exists on two nodes may be two places, such as each node's own /tmp. So the command leaves a file with a
random name there, and every worker looks for that file before its first task.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from waystage.display import display
from waystage.nodes.errors import NodesError
from waystage.task import Progress

FOLDER = ".waystage-nodes-"
BUSY_S = 0.5
MARKER = "marker"

LEFT = re.compile(r"\.waystage-copy-0{16}-[0-9a-f]{16}\.part")
"""A marker in a tree has the name of a copy's temporary file, which copies and comparisons leave out."""


@dataclass(frozen=True)
class Mark:
    """What a node must have: the file or directory at `path`; `shown` is what the user calls it."""

    path: str
    shown: str


def needed(path: Path) -> Mark:
    """A tree or file that is only read: it must exist on each node."""
    return Mark(os.path.abspath(path), str(path))


@contextmanager
def shared_folder(directory: Path) -> Iterator[tuple[Path, Mark]]:
    """A private folder in `directory` for the time of the block, and what proves that a node reaches it.

    Folders of commands that were killed are removed. Raises NodesError where nothing can be written there.
    """
    top = Path(os.path.abspath(directory))
    _remove_left(top, lambda name: name.startswith(FOLDER))
    folder = top / f"{FOLDER}{secrets.token_hex(8)}"
    try:
        folder.mkdir(mode=0o700)
        marker = folder / MARKER
        lock = _create(marker)
    except OSError as error:
        raise NodesError(
            f"{display(str(directory))} cannot be written: {error.strerror}: name a directory that every node reaches"
            " with --nodes-dir"
        ) from None
    try:
        yield folder, Mark(str(marker), str(directory))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


@contextmanager
def marked(directory: Path) -> Iterator[Mark]:
    """A marker in `directory`, which is written to, for the time of the block. Raises NodesError."""
    top = Path(os.path.abspath(directory))
    _remove_left(top, lambda name: LEFT.fullmatch(name) is not None)
    marker = top / f".waystage-copy-{0:016x}-{secrets.token_hex(8)}.part"
    try:
        lock = _create(marker)
    except OSError as error:
        raise NodesError(
            f"{display(str(directory))} cannot be written: {error.strerror}: choose another destination"
        ) from None
    try:
        yield Mark(str(marker), str(directory))
    finally:
        marker.unlink(missing_ok=True)
        os.close(lock)


def _create(path: Path) -> int:
    """A new file, locked while this process lives."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with suppress(OSError):  # Some file systems have no locks: then nothing is taken for abandoned.
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return lock


def _remove_left(top: Path, is_ours: Callable[[str], bool]) -> None:
    """Remove what commands of this user left that were killed."""
    with suppress(OSError):
        for entry in list(os.scandir(top)):
            if not is_ours(entry.name) or entry.stat(follow_symlinks=False).st_uid != os.geteuid():
                continue
            path = Path(entry.path)
            if entry.is_dir(follow_symlinks=False):
                if _is_abandoned(path / MARKER):
                    shutil.rmtree(path, ignore_errors=True)
            elif _is_abandoned(path):
                path.unlink(missing_ok=True)


def _is_abandoned(marker: Path) -> bool:
    """Whether no process holds its lock. One without a marker is being made at this moment, or is none of ours."""
    try:
        lock = os.open(marker, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(lock)
    return True


@contextmanager
def alone(lock: Path, progress: Progress) -> Iterator[None]:
    """Hold the lock file, once no other process does: a worker that its scheduler has lost may still run the task that
    another one begins. The kernel, or the server of files, frees the lock of a process that has died."""
    held = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                progress("waiting for another process with the same task", 0.0)
                time.sleep(BUSY_S)
            except OSError:
                break  # No locks on this file system.
        yield
    finally:
        os.close(held)
