"""Trees with everything in them, and what lstat(2) and read(2) say of a tree, for the tests of copies."""

from __future__ import annotations

import os
import random
import socket
import stat
from pathlib import Path

LONG = b"n" * 255
ODD_NAMES = [b"line\nbreak", b"\xff\xfe raw", LONG, b"-rf", b" ", b"semi;colon 'quoted' \"twice\""]
OWN = b".waystage-copy"

Snapshot = dict[bytes, tuple[object, ...]]


def make_everything(root: Path) -> None:
    """A tree with every kind of entry that this user may make."""
    top = os.fsencode(root)
    os.makedirs(top + b"/a/b/c")
    os.mkdir(top + b"/empty")
    for number, name in enumerate(ODD_NAMES):
        _write(top + b"/a/" + name, bytes([number]) * (number * 1000 + 1))
    _write(top + b"/a/nothing", b"")
    os.makedirs(top + b"/" + LONG + b"/" + LONG)
    _write(top + b"/" + LONG + b"/" + LONG + b"/deep", b"deep")
    with open(top + b"/a/holes", "wb") as file:
        file.truncate(5_000_000)
        file.seek(2_000_000)
        file.write(b"in the middle")
    os.link(top + b"/a/holes", top + b"/a/b/c/second name")
    os.link(top + b"/a/holes", top + b"/first name")
    os.symlink(b"../nowhere", top + b"/a/dangling")
    os.symlink(b"loop", top + b"/a/loop")
    os.symlink(b"/", top + b"/a/b/out")
    os.mkfifo(top + b"/a/fifo", 0o640)
    _write(top + b"/a/program", b"#!/bin/sh\n", 0o4755)
    _write(top + b"/a/secret", b"secret", 0o600)
    os.setxattr(top + b"/a/secret", "user.waystage", b"value\0with zero")
    os.setxattr(top + b"/a/b", "user.of-directory", b"x" * 3000)
    if os.geteuid() == 0:
        os.mknod(top + b"/a/null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        os.chown(top + b"/a/secret", 12345, 23456)
        os.chown(top + b"/a/dangling", 1234, 2345, follow_symlinks=False)
        os.chown(top + b"/a/b/c", 34567, 45678)
    os.chmod(top + b"/a/b/c", 0o2750)
    os.utime(top + b"/a/dangling", ns=(5, 1_000_000_007), follow_symlinks=False)
    os.utime(top + b"/a/secret", ns=(3, -1_000_000_007))
    for path in (b"/a/b/c", b"/a/b", b"/a", b"/empty", b""):
        os.utime(top + path, ns=(1, 1_234_567_890_123_456_789 + len(path)))


def _write(path: bytes, content: bytes, mode: int = 0o644) -> None:
    with open(path, "wb") as file:
        file.write(content)
    os.chmod(path, mode)


def add_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(path))


def snapshot(root: Path, *, times: bool = True) -> Snapshot:
    """All that a copy keeps of each entry, by path below the root; inodes as groups of names."""
    top = os.fsencode(root)
    found: Snapshot = {}
    groups: dict[tuple[int, int], bytes] = {}
    for folder, directories, files in os.walk(top):
        for name in [b"", *directories, *files] if folder == top else [*directories, *files]:
            path = folder + b"/" + name if name else folder
            found[path[len(top) + 1 :]] = _entry(path, groups, times)
    return found


def _entry(path: bytes, groups: dict[tuple[int, int], bytes], times: bool) -> tuple[object, ...]:
    about = os.lstat(path)
    kind = stat.S_IFMT(about.st_mode)
    content: object = None
    same_as: object = None
    if kind == stat.S_IFREG:
        with open(path, "rb") as file:
            content = file.read()
        if about.st_nlink > 1:
            same_as = (about.st_nlink, groups.setdefault((about.st_dev, about.st_ino), path) == path)
    elif kind == stat.S_IFLNK:
        content = os.readlink(path)
    elif kind in (stat.S_IFCHR, stat.S_IFBLK):
        content = about.st_rdev
    xattrs: object = ()
    if kind in (stat.S_IFREG, stat.S_IFDIR):
        xattrs = sorted((name, os.getxattr(path, name)) for name in os.listxattr(path))
    mtime = about.st_mtime_ns if times else 0
    return (about.st_mode, about.st_uid, about.st_gid, mtime, content, same_as, xattrs)


def leftovers(root: Path) -> list[bytes]:
    """Whatever a copy has left for itself below a root."""
    found = []
    for folder, directories, files in os.walk(os.fsencode(root)):
        found += [folder + b"/" + name for name in [*directories, *files] if name.startswith(OWN)]
    return found


EXTENT = 32 << 20
"""Bytes of a large file that a copy writes in one go, and notes in its journal."""


def make_stalling(path: Path, extents: float) -> bytes:
    """A large file whose first extent is nearly all hole: a copy at 1 MB/s has that at once, and each further one after
    half a minute, so that it can be ended in between however busy the machine is."""
    noise = random.Random(1).randbytes(1 << 20)
    first, rest = noise[: 64 << 10], noise * int((extents - 1) * 32)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        file.write(first)
        file.seek(EXTENT)
        file.write(rest)
    return first + bytes(EXTENT - len(first)) + rest
