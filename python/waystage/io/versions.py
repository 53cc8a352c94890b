"""A version of a coupled name as a file, for libraries that take a file object: serial h5py, numpy, pandas.

Arrives: bytes at positions of the version. Leaves: the same, at the readers of the name. Must not know: formats.
"""

from __future__ import annotations

import io
import os
from ctypes import byref, c_char, c_int64, c_void_p
from typing import Any

from waystage.io.errors import raised
from waystage.io.library import call


class VersionFile(io.RawIOBase):
    """An open version: `Coupling.open` makes it. Closing a writer's commits the version, if no exception leaves the
    block; one that is never closed does not appear at the readers."""

    def __init__(self, handle: c_void_p, version: int, writes: bool) -> None:
        """Positions count bytes from the beginning of the version."""
        super().__init__()
        self._handle, self._writes, self._at, self._ended = handle, writes, 0, False
        self.version = version
        self.name = f"version {version}"
        self.mode = "rb+" if writes else "rb"
        call("version_open", handle, version)
        call("version_view", handle, 0, 1, None)

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return self._writes

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        self._check()
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """As of any file. ValueError before the beginning."""
        self._check()
        begin = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size()}[whence]
        if begin + offset < 0:
            raise ValueError(f"{begin + offset} is before the beginning of the version")
        self._at = begin + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Bytes read, 0 at the end. What was never written is 0."""
        self._check()
        into = memoryview(buffer).cast("B")
        if not len(into):
            return 0
        return self._move("version_read", (c_char * len(into)).from_buffer(into), len(into))

    def write(self, data: Any) -> int:
        """All bytes of `data`. Raises io.UnsupportedOperation of a reader's version."""
        self._check_writable()
        given = memoryview(data).cast("B")
        if not len(given):
            return 0
        kept = c_char * len(given)
        source = kept.from_buffer_copy(given) if given.readonly else kept.from_buffer(given)
        return self._move("version_write", source, len(given))

    def truncate(self, size: int | None = None) -> int:
        self._check_writable()
        size = self._at if size is None else size
        call("version_resize", self._handle, size)
        return size

    def close(self) -> None:
        """Commit a writer's version. A reader's stays held until `Coupling.commit`, or the next of `versions()`."""
        if self.closed:
            return
        ended, self._ended = self._ended, True
        super().close()
        if self._writes and not ended:
            call("version_commit", self._handle, 0)

    def __exit__(self, kind: object, *_: object) -> None:
        self._ended = self._ended or kind is not None
        self.close()

    def __del__(self) -> None:
        """Nothing: a version that was not closed is not complete."""

    # -- inside ------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self.closed:
            raise ValueError("the version has been closed")

    def _check_writable(self) -> None:
        self._check()
        if not self._writes:
            raise io.UnsupportedOperation("a version that has appeared does not change")

    def _size(self) -> int:
        size = c_int64()
        call("version_size", self._handle, byref(size))
        return size.value

    def _move(self, how: str, memory: Any, count: int) -> int:
        moved = c_int64()
        if self._at > (1 << 63) - 1 - count:
            raise raised(-9, f"{self._at} is no position in a file")
        call(how, self._handle, self._at, memory, count, None, byref(moved))
        self._at += moved.value
        return moved.value
