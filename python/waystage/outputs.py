"""Output files of commands: written atomically, and never in place of a device.

Arrives: a path given by a user, bytes.
Leaves: a regular file, renamed into place when complete; bytes written to an existing device, FIFO or open
descriptor; or an OSError with the reason.
Must not know: what is written.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

MOST_LINKS = 40
"""Limit of nested symbolic links (path_resolution(7))."""

OPEN_FILES = re.compile(r"/proc/(\d+)(?:/task/\d+)?/fd")


@contextmanager
def written(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """A file to write. It is renamed into place when the block succeeds, with this mode if it is new.

    Devices, FIFOs and names of open descriptors such as `/dev/stdout` are written to and not replaced; of a symbolic
    link, the target is written. Raises OSError, also for block devices and sockets.
    """
    special = _special(path)
    if special is not None:
        with open(special, "wb") as file:
            yield file
        return
    target, before = _regular(path)
    draft = target.with_name(f".{target.name[:200]}.{secrets.token_hex(8)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(draft, flags, mode if before is None else 0o600)
    try:
        with open(descriptor, "wb") as file:
            yield file
            if before is not None:
                os.fchmod(file.fileno(), stat.S_IMODE(before.st_mode))
        os.replace(draft, target)
    except BaseException:
        with suppress(FileNotFoundError):
            draft.unlink()
        raise


def write_whole(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Write `data` as `written` does. Raises OSError."""
    with written(path, mode) as file:
        file.write(data)


def refuse_special(path: Path) -> None:
    """Raise OSError if `path` exists and is not a regular file, for an output that must be one."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        mode = stat.S_IFREG
    if stat.S_ISDIR(mode):
        raise _error(path, "is a directory: give a file")
    if not stat.S_ISREG(mode) or _descriptor(path) is not None:
        raise _error(path, "is not a regular file: give a file")


def remove_written(path: Path) -> None:
    """Remove a file written for the lifetime of a program, if it is a regular file. Raises OSError."""
    with suppress(FileNotFoundError):
        if stat.S_ISREG(os.lstat(path).st_mode):
            path.unlink()


def is_descriptor(path: Path) -> bool:
    """Whether the path refers to an open descriptor of this process, as `/dev/stdout` does."""
    return _descriptor(path) is not None


def _special(path: Path) -> int | None:
    """A descriptor of a file that is written to and not replaced; None for a regular or missing file."""
    number = _descriptor(path)
    if number is not None:
        if number == sys.stdout.fileno():
            sys.stdout.flush()
        return os.dup(number)
    try:
        about = os.stat(path)
    except FileNotFoundError:
        return None
    if stat.S_ISREG(about.st_mode) or stat.S_ISDIR(about.st_mode):
        return None
    if stat.S_ISBLK(about.st_mode):
        raise _error(path, "is a block device, whose contents would be lost: give a file")
    if stat.S_ISSOCK(about.st_mode):
        raise _error(path, "is a socket: give a file")
    descriptor = os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC)
    now = os.fstat(descriptor)
    if (now.st_dev, now.st_ino) != (about.st_dev, about.st_ino):
        os.close(descriptor)
        raise _error(path, "was replaced by another process: use a directory that no other process writes to")
    return descriptor


def _regular(path: Path) -> tuple[Path, os.stat_result | None]:
    """The file with symbolic links resolved, and its attributes if it exists."""
    try:
        about = os.lstat(path)
    except FileNotFoundError:
        return path, None
    if stat.S_ISDIR(about.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISLNK(about.st_mode):
        return path, about
    try:
        # The kernel follows the link and knows which it must not (fs.protected_symlinks).
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise _error(path, "is a dangling symbolic link: give its target") from None
    try:
        about, target = os.fstat(descriptor), Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        found = os.lstat(target)
    finally:
        os.close(descriptor)
    if (found.st_dev, found.st_ino) != (about.st_dev, about.st_ino):
        raise _error(path, "is a symbolic link to a deleted file: give another")
    return target, about


def _descriptor(path: Path) -> int | None:
    """The descriptor of this process that a path refers to. Raises OSError for another process's."""
    at = os.path.abspath(path) if not path.is_absolute() else str(path)
    for _ in range(MOST_LINKS):
        folder, name = os.path.realpath(os.path.dirname(at)), os.path.basename(at)
        within = OPEN_FILES.fullmatch(folder)
        if within and name.isdigit():
            if int(within[1]) != os.getpid():
                raise _error(path, "refers to an open file of another process: give a file")
            return int(name)
        try:
            at = os.path.join(folder, os.readlink(os.path.join(folder, name)))
        except OSError:
            return None
    return None


def _error(path: Path, text: str) -> OSError:
    return OSError(errno.EINVAL, text, str(path))
