"""Errors of the C library as exceptions.

Arrives: codes of `enum ws_io_error` with their sentences. Leaves: exceptions. Must not know: calls.
"""

from __future__ import annotations

import errno

ERRNO = {
    -2: errno.ENOENT,
    -3: errno.EEXIST,
    -4: errno.EACCES,
    -5: errno.EROFS,
    -6: errno.ENOSPC,
    -7: errno.EDQUOT,
    -8: errno.EISDIR,
    -9: errno.EINVAL,
    -10: errno.ENOTSUP,
    -14: errno.EPERM,
    -15: errno.ENOMEM,
}
"""Code -> the kernel's number that says the same; all others are EIO."""


class IoError(OSError):
    """A call failed; `code` is that of `enum ws_io_error`, `errno` the kernel's number that says the same."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(ERRNO.get(code, errno.EIO), text)
        self.code = code

    def __str__(self) -> str:
        return str(self.args[1])


class Again(IoError):
    """The set of aggregators changed in the operation: all ranks repeat it. `SharedFile` does so itself."""


class Lost(IoError):
    """A rank, or the process of a node, has died or not answered within its lease."""


class TimedOut(IoError):
    """The other ranks have not come in time."""


class Ended(IoError):
    """The writers have closed: no further version comes."""


KINDS: dict[int, type[IoError]] = {-1: Again, -11: Lost, -16: TimedOut, -17: Ended}


def raised(code: int, text: str) -> IoError:
    """The exception of a code."""
    return KINDS.get(code, IoError)(code, text)
