"""The ends of `waystage copy`: several sources, and standard input or output as one of them.

Arrives: the paths of the command line.
Leaves: pairs of one source and one destination; bytes from a descriptor in a file, or the other way.
Must not know: how trees are copied.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from waystage.cli.common import ExitCode, UserError
from waystage.wan.address import parse_remote

STREAM = "-"
"""Standard input as SRC, standard output as DST; `./-` is a file."""

PIECE_BYTES = 1 << 20

_NO_SPLICE = (errno.EINVAL, errno.ENOSYS, errno.EBADF)


@dataclass(frozen=True)
class Ends:
    """One source and where it goes; `below` is the path of the latter below DST."""

    source: str
    destination: str
    below: bytes = b""


def pairs(sources: tuple[str, ...], destination: str, *, dry_run: bool) -> list[Ends]:
    """What goes where. With several sources DST is a directory, made if it lacks, and each goes into it under its name;
    of a directory with a slash at its end only the contents. Raises UserError."""
    if len(sources) == 1:
        return [Ends(sources[0], destination)]
    remote = parse_remote(destination) is not None
    if not remote:
        if os.path.lexists(destination) and not os.path.isdir(destination):
            raise UserError(
                f"{destination} is no directory, and several sources need one: choose another destination",
                ExitCode.BAD_INPUT,
            )
        for source in sources:
            if parse_remote(source) is None and not os.path.lexists(source):
                raise UserError(f"{source} cannot be read: no such file or directory", ExitCode.BAD_INPUT)
    found = [into(source, destination) for source in sources]
    names = [ends.below for ends in found if ends.below]
    for name in names:
        if names.count(name) > 1:
            raise UserError(
                f"two sources are called {os.fsdecode(name)!r}: copy them one after the other", ExitCode.USAGE
            )
    if not remote and not dry_run:
        os.makedirs(destination, exist_ok=True)
    return found


def into(source: str, destination: str) -> Ends:
    """The source in the directory `destination`, under its name; with a slash at its end its contents. Raises
    UserError."""
    remote = parse_remote(source)
    path = source if remote is None else os.fsdecode(remote.path)
    if path.endswith("/"):
        if remote is None and not os.path.isdir(path):
            raise UserError(f"{source} is no directory: leave the slash away", ExitCode.BAD_INPUT)
        return Ends(source, destination)
    name = os.path.basename(path if remote is not None else os.path.abspath(path))
    if not name:
        raise UserError(f"{source} has no name: give it a slash at its end, or a name", ExitCode.USAGE)
    slash = "" if destination.endswith(("/", ":")) else "/"
    return Ends(source, f"{destination}{slash}{name}", os.fsencode(name))


def write_stream(destination: str) -> int:
    """Copy standard input to a file, which gets its name when it is complete; its bytes. Raises OSError."""
    from waystage.outputs import written

    path = Path(destination)
    if destination.endswith("/") or path.is_dir():
        raise UserError(
            f"{destination} is a directory: give the name of a file for standard input", ExitCode.BAD_INPUT
        )
    with written(path) as file:
        return pump(sys.stdin.fileno(), file.fileno())


def read_stream(source: str) -> int:
    """Copy a file to standard output; its bytes. Raises UserError and OSError."""
    descriptor = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise UserError(f"{source} is a directory: standard output takes one file", ExitCode.BAD_INPUT)
        sys.stdout.flush()
        return pump(descriptor, sys.stdout.fileno())
    finally:
        os.close(descriptor)


def pump(source: int, destination: int) -> int:
    """Move all bytes from one descriptor to the other, within the kernel where it can."""
    for move in (_sendfile, _splice):
        moved = 0
        with suppress(_Unsuited):
            while count := move(source, destination, moved):
                moved += count
            return moved
    moved = 0
    while piece := os.read(source, PIECE_BYTES):
        view = memoryview(piece)
        while view:
            view = view[os.write(destination, view) :]
        moved += len(piece)
    return moved


class _Unsuited(Exception):
    """The kernel does not move bytes between these two, and has moved none."""


def _moving(call: Callable[[], int], moved: int) -> int:
    try:
        return call()
    except OSError as error:
        if moved == 0 and error.errno in _NO_SPLICE:
            raise _Unsuited from None
        raise


def _sendfile(source: int, destination: int, moved: int) -> int:
    if moved == 0 and not stat.S_ISREG(os.fstat(source).st_mode):
        raise _Unsuited
    return _moving(lambda: os.sendfile(destination, source, None, PIECE_BYTES << 6), moved)


def _splice(source: int, destination: int, moved: int) -> int:
    return _moving(lambda: os.splice(source, destination, PIECE_BYTES), moved)
