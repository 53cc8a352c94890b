"""Who may list a directory, as the kernel decides, and folders for which it decides the same.

Arrives: directories as they are now: owner, group, mode, POSIX access control list.
Leaves: conditions, and folders that let through whom a condition lets through.
Must not know: catalogs.

Looking at an entry takes search permission on all directories above it; knowing its name takes read permission on
its own, too. Each such directory is a *condition*; who fulfils all of them may see the entry. A folder for a
condition belongs to who made it, so that no user it lets through can change it, and an access control list gives
the former owner's, group's and others' rights to them. See acl(5) for how the kernel decides.
"""

from __future__ import annotations

import errno
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from waystage.catalog.errors import BuildError

ACL = "system.posix_acl_access"
ACL_VERSION = 2
OWNER, USER, GROUP_OWNER, GROUP, MASK, OTHER = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20
ANY_ID = 0xFFFFFFFF
SEARCH, READ = 1, 4
_HEADER, _ENTRY = struct.Struct("<I"), struct.Struct("<HHI")

NO_LIST = {errno.ENODATA, errno.EOPNOTSUPP}


@dataclass(frozen=True, order=True)
class Condition:
    """Who may search a directory: each field says whether that class may."""

    uid: int
    gid: int
    owner: bool
    group: bool
    other: bool
    users: tuple[tuple[int, bool], ...] = ()
    groups: tuple[tuple[int, bool], ...] = ()

    @classmethod
    def of(cls, uid: int, gid: int, mode: int, acl: bytes | None, needed: int) -> Self:
        """`needed` is SEARCH, or SEARCH | READ, which one and the same class has to grant.

        Raises ValueError for a list that is none.
        """

        def grants(permissions: int) -> bool:
            return permissions & needed == needed

        if acl is None:
            return cls(uid, gid, grants(mode >> 6), grants(mode >> 3), grants(mode))
        entries = _entries(acl)
        mask = next((permissions for tag, permissions, _ in entries if tag == MASK), 7)
        held = {tag: permissions for tag, permissions, _ in entries if tag in (OWNER, GROUP_OWNER, OTHER)}
        if len(held) != 3:
            raise ValueError("an access control list without owner, group or others")

        def named(wanted: int) -> tuple[tuple[int, bool], ...]:
            return tuple(sorted((who, grants(p & mask)) for tag, p, who in entries if tag == wanted))

        return cls(
            uid,
            gid,
            grants(held[OWNER]),
            grants(held[GROUP_OWNER] & mask),
            grants(held[OTHER]),
            tuple(one for one in named(USER) if one[0] != uid),
            named(GROUP),
        )

    @property
    def admits_all(self) -> bool:
        listed = (*self.users, *self.groups)
        return self.owner and self.group and self.other and all(may for _, may in listed)

    def acl(self, keeper: int) -> bytes:
        """The list of a folder that belongs to user `keeper` and to group `gid`, and lets pass whom this lets pass."""
        users = sorted({**dict(self.users), self.uid: self.owner}.items())
        entries = [
            (OWNER, 7, ANY_ID),
            *((USER, int(may), who) for who, may in users if who != keeper),
            (GROUP_OWNER, int(self.group), ANY_ID),
            *((GROUP, int(may), who) for who, may in self.groups),
            (MASK, SEARCH, ANY_ID),
            (OTHER, int(self.other), ANY_ID),
        ]
        return _HEADER.pack(ACL_VERSION) + b"".join(_ENTRY.pack(*entry) for entry in entries)


def _entries(acl: bytes) -> list[tuple[int, int, int]]:
    if len(acl) < _HEADER.size or _HEADER.unpack_from(acl)[0] != ACL_VERSION:
        raise ValueError("an access control list of another version")
    if (len(acl) - _HEADER.size) % _ENTRY.size:
        raise ValueError("an access control list that ends within an entry")
    return list(_ENTRY.iter_unpack(acl[_HEADER.size :]))


def guarded_folder(path: Path, condition: Condition) -> None:
    """Make a folder that only those pass whom `condition` lets pass, besides who makes it.

    Raises BuildError where that takes root, or the file system keeps no access control lists.
    """
    path.mkdir(mode=0o700)
    try:
        os.chown(path, -1, condition.gid)
        os.setxattr(path, ACL, condition.acl(os.geteuid()))
    except PermissionError:
        raise BuildError(
            f"{path}: group {condition.gid} cannot be given rights to it: run as root, or share a catalog of your own groups' directories"
        ) from None
    except OSError as error:
        raise BuildError(
            f"{path}: its rights cannot be set: {error.strerror}: choose a place whose file system keeps POSIX access control lists"
        ) from None


class Guards:
    """The conditions of directories below a root, asked of the file system as it is now; none is reached through a
    link.

    Asked in the order of paths, since only the directories above the last one are held open.
    """

    def __init__(self, root: bytes) -> None:
        self._above: list[tuple[bytes, int, frozenset[Condition]]] = []
        self._root = [name for name in root.split(b"/") if name]

    def of(self, directory: bytes, inode: int) -> tuple[Condition, ...] | None:
        """The conditions for listing the entries of `directory`, a path below the root; None where only the catalog's
        owner may: it is another directory now than `inode`, is gone, or what guards it is not understood.
        """
        names = [*self._root, *(name for name in directory.split(b"/") if name)]
        try:
            fd, above = self._reach(names)
            if os.fstat(fd).st_ino != inode:
                return None
            whole = above | {_condition(fd, SEARCH | READ)}
        except (OSError, ValueError):
            return None
        return tuple(sorted(one for one in whole if not one.admits_all))

    def close(self) -> None:
        while self._above:
            os.close(self._above.pop()[1])

    def _reach(self, names: list[bytes]) -> tuple[int, frozenset[Condition]]:
        """A descriptor of the last of `names`, and the conditions of those above it."""
        path = [b"/", *names]
        same = 0
        while same < min(len(path), len(self._above)) and self._above[same][0] == path[same]:
            same += 1
        while len(self._above) > same:
            os.close(self._above.pop()[1])
        for name in path[same:]:
            above: frozenset[Condition] = frozenset()
            parent = None
            if self._above:
                _, parent, above = self._above[-1]
                above |= {_condition(parent, SEARCH)}
            fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=parent)
            self._above.append((name, fd, above))
        _, fd, above = self._above[-1]
        return fd, above


def _condition(fd: int, needed: int) -> Condition:
    about = os.fstat(fd)
    try:
        acl = os.getxattr(f"/proc/self/fd/{fd}", ACL)
    except OSError as error:
        if error.errno not in NO_LIST:
            raise
        acl = None
    return Condition.of(about.st_uid, about.st_gid, about.st_mode, acl, needed)
