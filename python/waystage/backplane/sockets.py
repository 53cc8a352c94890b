"""Permissions and ownership of unix sockets, on the listening and the connecting side.

Arrives: paths of sockets, the group that may connect.
Leaves: a socket of mode 0600, or 0660 for a group; the credentials of the listening process.
Must not know: Zenoh, events.

The kernel checks the credentials of each connecting process against the socket's owner and mode (unix(7)). Zenoh
creates sockets with the mode of the umask, so the umask is set around the call and the result is checked. A socket in
a directory that others can write to could be replaced, so such a directory is refused on both sides.
"""

from __future__ import annotations

import contextlib
import grp
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from waystage.local_client import peer_of

PATH_BYTES_MAX = 107
"""`sun_path` of sockaddr_un has 108 bytes, the last of them zero (unix(7))."""

_FOLDER_MODE = 0o755
"""Of a folder made for a socket: clients pass through it, and the socket's own mode decides."""


class SocketError(ValueError):
    """A socket that cannot be used safely; the message names the path and the fix."""


def check_path(path: str) -> None:
    """Raises SocketError where `path` is no absolute path, or an abstract name, which has no owner or mode."""
    if path.startswith("@") or "\0" in path or not path.startswith("/"):
        raise SocketError(
            f"unix socket {path!r}: give an absolute path; an abstract name has no access rights"
        )
    if len(os.fsencode(path)) > PATH_BYTES_MAX:
        raise SocketError(
            f"unix socket {path}: the path has more than {PATH_BYTES_MAX} bytes: use a shorter one"
        )


def check_folder(path: Path) -> None:
    """Raises SocketError where a user other than root, the caller and the folders' owners could put a socket at `path`.

    Each folder from the root on may be written by its owner alone. A sticky one, such as /tmp, may be written by
    all where what is in it on the way to `path` belongs to root or the caller.
    """
    inner = path
    for folder in path.parents:
        try:
            found = folder.stat()
        except OSError as error:
            raise SocketError(f"unix socket {path}: {folder}: {error.strerror}") from None
        group_writes = found.st_mode & stat.S_IWGRP and found.st_gid != 0
        if found.st_mode & stat.S_IWOTH or group_writes:
            if not found.st_mode & stat.S_ISVTX or inner == path:
                raise SocketError(
                    f"unix socket {path}: other users may write to {folder} and could replace the socket: "
                    f"use a folder that its owner alone writes to (chmod go-w {folder})"
                )
            with contextlib.suppress(FileNotFoundError):
                if inner.lstat().st_uid not in (0, os.geteuid()):
                    raise SocketError(
                        f"unix socket {path}: {inner} belongs to another user: use a folder of yours, or of root's"
                    )
        inner = folder


def group_id(name: str) -> int:
    """The group's number. Raises SocketError."""
    try:
        return int(name) if name.isdigit() else grp.getgrnam(name).gr_gid
    except (KeyError, OverflowError):
        raise SocketError(f"local_group: there is no group {name!r} on this machine") from None


def prepare(path: Path) -> None:
    """Make the folder where it is missing, and free the address of a killed process. Raises SocketError."""
    try:
        if not path.parent.is_dir():
            path.parent.mkdir(_FOLDER_MODE)
            path.parent.chmod(_FOLDER_MODE)
    except OSError as error:
        raise SocketError(
            f"unix socket {path}: cannot make its folder {path.parent}: {error.strerror}: make it, or use another"
        ) from None
    check_folder(path.resolve().parent / path.name)
    if path.is_socket() and owner_answering(path) is None:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def closed_to_others() -> Iterator[None]:
    """Sockets made meanwhile, by any thread, can be connected to by their owner alone."""
    before = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(before)


def open_to(path: Path, group: int | None) -> None:
    """Let `group` connect too, where one is given. Raises SocketError where the socket is not as it should be."""
    try:
        if group is not None:
            os.chown(path, -1, group)
            path.chmod(0o660)
        found = path.lstat()
    except OSError as error:
        fix = (
            "run as a member of that group, or as root" if group is not None else "is its folder still there?"
        )
        raise SocketError(f"unix socket {path}: cannot give it its rights: {error.strerror}: {fix}") from None
    wanted = 0o600 if group is None else 0o660
    if (
        not stat.S_ISSOCK(found.st_mode)
        or found.st_uid != os.geteuid()
        or stat.S_IMODE(found.st_mode) & ~wanted
    ):
        raise SocketError(
            f"unix socket {path}: another process changed its owner or mode: use another folder"
        )


def check_answering(path: Path) -> None:
    """Raises SocketError where another user than the socket's owner answers at `path`, or could come to.

    Says nothing where no process answers: connecting says it better.
    """
    try:
        real = path.resolve()
        owner = real.lstat().st_uid
    except OSError:
        return
    check_folder(real)
    if owner in (0, os.geteuid()):
        return  # no other user can make such a socket, nor put one in its place
    answering = owner_answering(real)
    if answering is not None and answering not in (0, owner):
        raise SocketError(
            f"unix socket {path}: it belongs to user {owner} and user {answering} answers: do not trust it"
        )


def owner_answering(path: Path) -> int | None:
    """The user id of the process that listens at `path` (SO_PEERCRED); None where none does.

    A socket that may not be connected to counts as its owner's.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return None
        except OSError:
            return path.lstat().st_uid
        return peer_of(probe).uid
