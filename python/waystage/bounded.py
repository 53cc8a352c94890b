"""Bounded reads of small, untrusted files.

Arrives: a path, from a user or another site; the maximum size.
Leaves: the bytes, or an OSError with the reason.
Must not know: the contents.

Devices, FIFOs and growing files pass a check of the size before reading and could then be read for ever.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def read_bounded(path: Path, most: int) -> bytes:
    """The contents of the regular file `path`. Raises OSError, also if it has more than `most` bytes."""
    # Without O_NONBLOCK, opening a FIFO waits for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is not a regular file: give a file", str(path))
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it is larger than {_shown(most)}: give a smaller file", str(path))
    return data


def _shown(amount: int) -> str:
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if amount >= factor:
            return f"{amount / factor:.4g} {unit}"
    return f"{amount} bytes"
