"""Arrays by name, version and box, between two applications, without a file.

Arrives: arrays and their boxes from writers; boxes wanted by readers. Leaves: arrays. Must not know: MPI.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from ctypes import byref, c_char_p, c_int, c_int64, c_void_p
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from waystage.io.datatypes import as_array, handle_of, memory_of
from waystage.io.errors import Ended, raised
from waystage.io.library import Box, Couple, call, numbers
from waystage.io.versions import VersionFile

DIMENSIONS_MOST = 16
"""Of an array: `DIMENSIONS_MOST` of crates/coupling."""


class Coupling:
    """An open name, of one rank. A context manager: it closes; on an exception the other ranks see this one die."""

    def __init__(self, handle: c_void_p, writes: bool, timeout_s: float) -> None:
        """See `couple`."""
        self._handle: c_void_p | None = handle
        self._writes = writes
        self._timeout_s = timeout_s

    def _open(self) -> c_void_p:
        if self._handle is None:
            raise raised(-9, "the name has been closed")
        return self._handle

    def put(
        self,
        variable: str,
        version: int,
        array: object,
        *,
        starts: Sequence[int] | None = None,
        shape: Sequence[int] | None = None,
    ) -> None:
        """Put a box of `variable` into `version`: `array` from cell `starts` on, of an array of `shape`.

        `array` is a buffer, also with strides; it may be changed at once. `starts`: zeros by default, `shape`: that
        of `array`. Waits while the depth is reached. Raises TimedOut, Lost, IoError.
        """
        cells = as_array(array, writable=False)
        address, memory = memory_of(cells)
        begin = tuple(starts) if starts is not None else (0,) * cells.ndim
        box = _box(variable, cells.dtype, begin, cells.shape, tuple(shape or cells.shape))
        call("put", self._open(), version, byref(box), address, handle_of(memory))

    def get(
        self,
        variable: str,
        version: int,
        *,
        starts: Sequence[int] | None = None,
        counts: Sequence[int] | None = None,
        out: object | None = None,
    ) -> NDArray[Any]:
        """The box of `counts` cells from `starts` on, of all ranks' pieces; the whole array by default.

        Waits for the version. `out`: a writable buffer of that shape, also with strides. Raises Ended, TimedOut,
        Lost; IoError where a cell was put by no writer.
        """
        dtype, shape = self.inquire(variable, version)
        begin = tuple(starts) if starts is not None else (0,) * len(shape)
        if counts is None:
            counts = tuple(side - start for side, start in zip(shape, begin, strict=False))
        counts = tuple(counts)
        if any(count < 0 for count in counts):
            raise raised(-9, f"{counts} is no number of cells")
        cells = np.empty(counts, dtype) if out is None else as_array(out, writable=True)
        if cells.shape != counts or cells.dtype != dtype:
            raise raised(
                -9, f"{variable} needs an array of {counts} and {dtype}, not {cells.shape} and {cells.dtype}"
            )
        address, memory = memory_of(cells)
        box = _box(variable, cells.dtype, begin, counts, shape)
        call("get", self._open(), version, byref(box), address, handle_of(memory))
        return cells

    def inquire(self, variable: str, version: int) -> tuple[np.dtype[Any], tuple[int, ...]]:
        """Type and shape of a variable; waits for the version."""
        element = ctypes.create_string_buffer(4097)
        size, dimensions = c_int64(), c_int(DIMENSIONS_MOST)
        shape = (c_int64 * DIMENSIONS_MOST)()
        given = (variable.encode(), element, len(element), byref(size), byref(dimensions), shape)
        call("inquire", self._open(), version, *given)
        try:
            dtype = np.dtype(element.value.decode())
        except (TypeError, ValueError, SyntaxError):
            dtype = np.dtype((np.void, size.value))
        if dtype.itemsize != size.value:
            raise raised(-9, f"{variable} has elements of {size.value} bytes, which {dtype} is not")
        return dtype, tuple(shape[: dimensions.value])

    def commit(self, version: int) -> None:
        """Writer: all that this rank has of `version` was put. Reader: `version` is not needed any longer."""
        call("commit", self._open(), version)

    def next(self, after: int | None = None) -> int:
        """The first version above `after`, the oldest one held for None; waits for it. Raises Ended."""
        version = c_int64()
        call("next", self._open(), -1 if after is None else after, byref(version))
        return version.value

    def versions(self) -> Iterator[int]:
        """Versions as they appear, until the writers close. Each is released when the next one is asked for."""
        after = None
        while True:
            try:
                after = self.next(after)
            except Ended:
                return
            yield after
            self.commit(after)

    def open(self, version: int) -> VersionFile:
        """`version` as a file object of bytes, for h5py.File for example; one at a time.

        A writer's begins empty and is committed by its close; a reader's is of a writer's file, and does not change.
        Other ranks see the same bytes, as MPI-IO programs do under `waystage:NAME`; each writer opens and closes each
        version. Waits while the depth is reached. Raises TimedOut, Lost, IoError.
        """
        return VersionFile(self._open(), version, self._writes)

    def close(self, timeout_s: float | None = None) -> None:
        """Close it. A writer waits at most `timeout_s` until its versions are read, then raises TimedOut."""
        handle, self._handle = self._handle, None
        if handle is not None:
            call("uncouple", handle, _milliseconds(self._timeout_s if timeout_s is None else timeout_s))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
            return
        handle, self._handle = self._handle, None
        if handle is not None:
            call("uncouple", handle, -1)


def couple(
    name: str,
    role: Literal["write", "read"],
    *,
    rank: int = 0,
    size: int = 1,
    depth: int = 2,
    timeout_s: float = 300,
    lease_s: float = 30,
    directory: str | Path | None = None,
    store: str | Path | None = None,
) -> Coupling:
    """Open `name` as rank `rank` of `size` writers or readers.

    `depth`: versions that may be held before writers wait. `timeout_s`: how long a call waits for other ranks.
    `lease_s`: silence of a host after which it is dead. `directory`: where names are published, by default
    WAYSTAGE_COUPLING or `~/.waystage/coupling`. `store`: writers, a folder for `NAME.VARIABLE.VERSION.npy`.
    Raises TimedOut where no writer has opened the name in time, IoError.
    """
    if role not in ("write", "read"):
        raise raised(-9, f'the role is "write" or "read", not {role!r}')
    how = Couple(
        name=name.encode(),
        role=0 if role == "write" else 1,
        rank=rank,
        size=size,
        depth=depth,
        timeout_ms=_milliseconds(timeout_s),
        lease_ms=_milliseconds(lease_s),
        directory=_path(directory),
        store=_path(store),
    )
    handle = c_void_p()
    call("couple", byref(how), byref(handle))
    return Coupling(handle, role == "write", timeout_s)


def _path(path: str | Path | None) -> bytes | None:
    return os.fsencode(path) if path is not None else None


def _milliseconds(seconds: float) -> int:
    if not 0 <= seconds < 2_000_000:
        raise raised(-9, f"{seconds} is no number of seconds, at most 2,000,000")
    return int(seconds * 1000)


def _box(
    variable: str,
    dtype: DTypeLike,
    starts: tuple[int, ...],
    counts: tuple[int, ...],
    shape: tuple[int, ...],
) -> Box:
    if not len(starts) == len(counts) == len(shape):
        raise raised(-9, f"{variable}: starts {starts}, counts {counts} and shape {shape} differ in length")
    found = np.dtype(dtype)
    return Box(
        variable=c_char_p(variable.encode()),
        element=c_char_p(found.str.encode()),
        element_bytes=found.itemsize,
        dimensions=len(shape),
        shape=numbers(shape),
        starts=numbers(starts),
        counts=numbers(counts),
    )
