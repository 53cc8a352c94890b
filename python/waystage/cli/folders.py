"""Directories of results: names, checks before a run, and errors of writing.

Arrives: the value of `--out`, or the name of an experiment.
Leaves: a writable directory, or an error that names the file and the fix.
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
"""Errors of a write to storage; Parquet's writer does not name the file."""


def default_folder(name: str) -> Path:
    """`results/NAME-20260102T030405Z`, with a number appended if two runs start in the same second."""
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
    folder = Path("results") / f"{name}-{stamp}"
    number = 1
    while folder.exists():
        number += 1
        folder = Path("results") / f"{name}-{stamp}-{number}"
    return folder


def check_folder(folder: Path) -> None:
    """Check before a run that its results can be written and overwrite no others. Raises UserError."""
    try:
        taken = folder.is_symlink() or folder.exists()
        if taken and (not folder.is_dir() or any(folder.iterdir())):
            raise UserError(
                f"--out {folder} exists and is not empty: choose another directory", ExitCode.USAGE
            )
    except OSError as error:
        raise UserError(
            f"--out {folder}: {error.strerror}: choose another directory", ExitCode.USAGE
        ) from None
    parent = folder
    while not os.path.lexists(parent):
        parent = parent.parent
    if not parent.is_dir():
        raise UserError(f"--out {folder}: {parent} is not a directory: choose another", ExitCode.USAGE)
    if not os.access(parent, os.W_OK | os.X_OK):
        raise UserError(f"--out {folder}: cannot write in {parent}: choose another directory", ExitCode.USAGE)


@contextmanager
def writing(folder: Path, kept: str = "") -> Iterator[None]:
    """An error of writing below `folder` as one sentence; `kept` says which results are kept and how to continue."""
    try:
        yield
    except OSError as error:
        named = os.fsdecode(error.filename) if isinstance(error.filename, _NAMES) else None
        below = named is not None and Path(named).absolute().is_relative_to(folder.absolute())
        if not below and (named is not None or error.errno not in _STORAGE):
            raise  # a pipe whose reader went away, a program that is missing: nothing of the folder's
        reason = os.strerror(error.errno) if error.errno else str(error)
        fix = f"; {kept}" if kept else ""
        raise UserError(
            f"{named or folder}: cannot be written: {reason}: free space or choose another directory with --out{fix}"
        ) from None
