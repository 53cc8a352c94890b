"""Folders of results: their names, whether they can be used, and what is said where writing fails.

Arrives: the value of `--out`, or the name of what is run.
Leaves: a folder that can be written; or a sentence with the file and the mend.
Must not know: what is written there.
"""

from __future__ import annotations

import datetime
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from waystage.cli.common import ExitCode, UserError

_NAMES = (str, bytes, os.PathLike)

_STORAGE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO}
"""What storage answers to a write; Parquet's writer does not say to which file."""


def default_folder(name: str) -> Path:
    """`results/NAME-20260102T030405Z`, with a number behind where two runs start in one second."""
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
    folder = Path("results") / f"{name}-{stamp}"
    number = 1
    while folder.exists():
        number += 1
        folder = Path("results") / f"{name}-{stamp}-{number}"
    return folder


def check_folder(folder: Path) -> None:
    """Before minutes are spent: results of another run are not overwritten, and these can be written."""
    try:
        taken = folder.is_symlink() or folder.exists()
        if taken and (not folder.is_dir() or any(folder.iterdir())):
            raise UserError(f"--out {folder} exists and is not empty: name another folder", ExitCode.USAGE)
    except OSError as error:
        raise UserError(f"--out {folder}: {error.strerror}: name another folder", ExitCode.USAGE) from None
    parent = folder
    while not os.path.lexists(parent):
        parent = parent.parent
    if not parent.is_dir():
        raise UserError(f"--out {folder}: {parent} is no folder: name another one", ExitCode.USAGE)
    if not os.access(parent, os.W_OK | os.X_OK):
        raise UserError(f"--out {folder}: cannot write in {parent}: name another folder", ExitCode.USAGE)


@contextmanager
def writing(folder: Path, kept: str = "") -> Iterator[None]:
    """A failure to write below `folder` as one sentence; `kept` says what is not lost, and how to go on."""
    try:
        yield
    except OSError as error:
        named = os.fsdecode(error.filename) if isinstance(error.filename, _NAMES) else None
        below = named is not None and Path(named).absolute().is_relative_to(folder.absolute())
        if not below and (named is not None or error.errno not in _STORAGE):
            raise  # a pipe whose reader went away, a program that is missing: nothing of the folder's
        reason = os.strerror(error.errno) if error.errno else str(error)
        mend = f"; {kept}" if kept else ""
        raise UserError(
            f"{named or folder}: cannot be written: {reason}: "
            f"make room or name another folder with --out{mend}"
        ) from None
