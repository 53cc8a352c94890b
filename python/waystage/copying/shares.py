"""Keys of the processes that copy to one destination at once, and what killed ones have left there.

Arrives: numbers of tasks, paths of large files; a destination.
Leaves: keys, each with a journal folder of its name; none after a complete copy.
Must not know: nodes, catalogs.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from waystage._native import CopyError, NameList, TreeCopy, digest_bytes
from waystage.native_options.copies import TreeCopyOptions

TAG = b"waystage".hex()
"""The first half of every key; the second is the task's number, or with the highest bit a hash of the file's path."""

FOLDER = re.compile(rf"\.waystage-copy-({TAG}[0-9a-f]{{16}})")

LAST = f"{TAG}{(1 << 63) - 1:016x}"
"""The key of the task that comes last, with hard links and directories."""

BUSY_S = 0.5


def key_of_range(number: int) -> str:
    """The key of a task with many files."""
    return f"{TAG}{number:016x}"


def key_of_file(path: bytes) -> str:
    """The key of a task with one large file: the same in every run, so that its journal is found again."""
    return f"{TAG}{digest_bytes(path) | 1 << 63:016x}"


def start(
    source: str,
    destination: str,
    names: Iterable[bytes] | None,
    key: str,
    progress: Callable[[str, float], None],
    *,
    directories: bool = False,
    objects: tuple[bytes, bytes, bytes, bytes] | None = None,
    **options: Any,
) -> TreeCopy:
    """Start a copy of these entries only, with their storage targets where these are known; None where the source is one
    file. Waits while another process works under this key: a worker that its scheduler has lost may still be alive.
    Raises CopyError."""
    listed = None if names is None else NameList(b"".join(name + b"\0" for name in names), True, objects)
    while True:
        try:
            made = TreeCopyOptions(names=listed, share=(key, directories), **options)
            return TreeCopy(source, destination, made)
        except CopyError as error:
            if getattr(error, "kind", "") != "busy":
                raise
        progress("waiting for another process with the same files", 0.0)
        time.sleep(BUSY_S)


def clear_shares(source: str, destination: str) -> None:
    """Remove what killed tasks of earlier copies have left: temporary files, journals. Raises CopyError."""
    try:
        with os.scandir(destination) as entries:
            keys = [found[1] for entry in entries if (found := FOLDER.fullmatch(entry.name))]
    except OSError:
        return
    for key in keys:
        try:
            options = TreeCopyOptions(names=NameList(b"", True), share=(key, False), workers=1, restart=True)
            with TreeCopy(source, destination, options) as clearing:
                clearing.wait()
        except CopyError as error:
            # Its process is alive, and clears up behind itself.
            if getattr(error, "kind", "") != "busy":
                raise


def make_destination(source: Path, destination: str, *, dry_run: bool = False) -> None:
    """Check both ends as a copy does, and make the destination's directory. Raises CopyError."""
    options = TreeCopyOptions(names=NameList(b"", True), share=(LAST, False), workers=1, dry_run=dry_run)
    with TreeCopy(str(source), destination, options) as nothing:
        nothing.wait()
