"""A path of the user's, resolved without following other users' symbolic links.

Arrives: an absolute path.
Leaves: an open directory, which no rename can exchange afterwards, and the name in it.
Must not know: what is copied.

A link is followed if it belongs to root, to the user, or to the owner of the directory that it is in, which is the rule
of the kernel's `protected_symlinks` (proc_sys_fs(5)) for every directory: a link that another user has put into a
shared directory would otherwise choose where the user's data goes.
"""

from __future__ import annotations

import errno
import os
import stat

MOST_LINKS = 40
"""Links that the kernel follows (path_resolution(7))."""

_OPEN = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class ForeignLink(OSError):
    """A symbolic link of another user's in a path."""


def resolved(path: str, *, make: bool = False) -> tuple[int, str]:
    """(directory, name): an O_PATH descriptor and the last component, empty where `path` is an existing directory.

    With `make`, directories that are missing above the last component are made. Raises OSError with the path.
    """
    todo = [part for part in reversed(path.split("/")) if part not in ("", ".")]
    at = os.open("/", _OPEN | os.O_DIRECTORY)
    links = 0
    walked = [""]
    try:
        while todo:
            name = todo.pop()
            shown = "/".join([*walked, name])
            try:
                below = os.open(name, _OPEN, dir_fd=at)
            except FileNotFoundError:
                if not todo:
                    return at, name
                if not make:
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), shown) from None
                try:
                    os.mkdir(name, dir_fd=at)
                except FileExistsError:
                    pass
                except OSError as error:
                    raise OSError(error.errno, error.strerror, shown) from None
                todo.append(name)
                continue
            except OSError as error:
                raise OSError(error.errno, error.strerror, shown) from None
            found = os.fstat(below)
            if stat.S_ISLNK(found.st_mode):
                try:
                    links += 1
                    if links > MOST_LINKS:
                        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), shown)
                    if found.st_uid not in (0, os.geteuid(), os.fstat(at).st_uid):
                        raise ForeignLink(
                            errno.EACCES,
                            f"is a symbolic link of user {found.st_uid}, which is not followed: give the path behind it",
                            shown,
                        )
                    target = os.readlink("", dir_fd=below)
                finally:
                    os.close(below)
                todo += [part for part in reversed(target.split("/")) if part not in ("", ".")]
                if target.startswith("/"):
                    os.close(at)
                    at = os.open("/", _OPEN | os.O_DIRECTORY)
                    walked = [""]
                continue
            if stat.S_ISDIR(found.st_mode):
                os.close(at)
                at = below
                if name == "..":
                    walked = walked[:-1] or [""]
                else:
                    walked.append(name)
                continue
            os.close(below)
            if todo:
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), shown)
            return at, name
        return at, ""
    except BaseException:
        os.close(at)
        raise


def through(directory: int, name: str) -> str:
    """A path that leads through the open directory, whatever its name is by now."""
    return f"/proc/self/fd/{directory}" + (f"/{name}" if name else "")
