"""Shared files: collective and independent put and get.

Arrives: arrays; datatypes or lists of extents. Leaves: their bytes in the file. Must not know: MPI.

A collective operation follows shim/include/waystage_io.h: rank 0 passes a control point and broadcasts the server map, all
ranks move their bytes, and the worst status is every rank's.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from ctypes import POINTER, byref, c_char_p, c_int, c_int64, c_size_t, c_ubyte, c_void_p, cast
from pathlib import Path
from typing import Any, Literal, Protocol, Self

from waystage.io.datatypes import Datatype, as_array, handle_of, memory_of
from waystage.io.errors import IoError, raised
from waystage.io.library import CONTROL_BYTES, ID_BYTES, Open, call, library, numbers

Extents = Sequence[tuple[int, int]]
"""(offset, bytes) in the file, in the order of the data."""

FLAGS = {"r": 1, "w": 2 | 8, "r+": 4, "w+": 4 | 8, "x": 2 | 8 | 16}
"""Mode -> bits of `enum ws_io_flags`. "w" does not truncate: other ranks' bytes stay."""

ATTEMPTS_MOST = 20
"""Repetitions of an operation whose set of aggregators changes each time."""


class Communicator(Protocol):
    """What of a communicator is used: mpi4py's lower-case functions."""

    @property
    def rank(self) -> int:
        """Rank of this process."""

    @property
    def size(self) -> int:
        """Number of ranks."""

    def bcast(self, obj: Any, root: int = 0) -> Any:
        """The object of rank `root`."""

    def allgather(self, sendobj: Any) -> list[Any]:
        """The objects of all ranks."""


class Alone:
    """The communicator of one rank."""

    rank = 0
    size = 1

    def bcast(self, obj: Any, root: int = 0) -> Any:
        """`obj`."""
        return obj

    def allgather(self, sendobj: Any) -> list[Any]:
        """`[sendobj]`."""
        return [sendobj]


class SharedFile:
    """A file that the ranks of a communicator have open. A context manager; `close` is collective."""

    def __init__(self, node: c_void_p, handle: c_void_p, comm: Communicator) -> None:
        """See `open_shared`."""
        self._node, self._comm = node, comm
        self._handle: c_void_p | None = handle

    def _open(self) -> c_void_p:
        if self._handle is None:
            raise raised(-9, "the file has been closed")
        return self._handle

    def set_view(self, displacement: int = 0, etype_bytes: int = 1, filetype: Datatype | None = None) -> None:
        """The bytes that this rank sees, as MPI_File_set_view; offsets of put and get then count in it."""
        call("set_view", self._open(), displacement, etype_bytes, handle_of(filetype))

    def hint(self, key: str) -> str | None:
        """The value of a hint in force; None where it is unknown."""
        value = ctypes.create_string_buffer(4097)
        try:
            call("hint", self._open(), key.encode(), value, len(value))
        except IoError:
            return None
        return value.value.decode()

    def put_all(self, array: object, offset: int = 0) -> int:
        """Write, together with all ranks: `array`, a buffer, at byte `offset` of the view. Bytes written.

        Returns once all ranks' bytes are in the file system, or with the hint `waystage_write_behind` in the memory of
        two aggregators. Raises IoError at every rank where one fails.
        """
        return self._together(True, array, offset)

    def get_all(self, array: object, offset: int = 0) -> int:
        """Read, together with all ranks, into `array`. Bytes read: fewer at the end of the file."""
        return self._together(False, array, offset)

    def put(self, array: object, offset: int = 0, *, extents: Extents | None = None) -> int:
        """Write alone: at byte `offset` of the view, or to `extents` of the file. Bytes written."""
        return self._alone(True, array, offset, extents)

    def get(self, array: object, offset: int = 0, *, extents: Extents | None = None) -> int:
        """Read alone: from byte `offset` of the view, or from `extents` of the file. Bytes read."""
        return self._alone(False, array, offset, extents)

    def sync(self) -> None:
        """fsync, together with all ranks."""
        self._agree(self._code("sync", self._open()))

    def close(self) -> None:
        """Give the file up, together with all ranks."""
        handle, self._handle = self._handle, None
        if handle is None:
            return
        found = self._code("close", handle)
        library().ws_io_disconnect(self._node)
        self._agree(found)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
            return
        # Other ranks need not have failed: nothing that they would have to take part in.
        handle, self._handle = self._handle, None
        if handle is not None:
            self._code("close", handle)
            library().ws_io_disconnect(self._node)

    def _code(self, name: str, *arguments: object) -> tuple[int, str]:
        try:
            call(name, *arguments)
        except IoError as error:
            return error.code, str(error)
        return 0, ""

    def _agree(self, found: tuple[int, str]) -> None:
        """Raises the worst of all ranks' errors: any other before AGAIN."""
        every = self._comm.allgather(found)
        failed = sorted((code for code in every if code[0] != 0), key=lambda code: code[0] == -1)
        if failed:
            raise raised(*failed[0])

    def _control(self, write: bool, size: int) -> None:
        found, blob = (0, ""), b""
        if self._comm.rank == 0:
            room, length = ctypes.create_string_buffer(CONTROL_BYTES), c_size_t()
            found = self._code("control_point", self._open(), write, size, room, len(room), byref(length))
            blob = room.raw[: length.value]
        found, blob = self._comm.bcast((found, blob))
        if found[0] == 0:
            found = self._code("adopt", self._open(), blob, len(blob))
        self._agree(found)

    def _together(self, write: bool, array: object, offset: int) -> int:
        cells = as_array(array, writable=not write)
        address, memory = memory_of(cells)
        count = 1 if memory is not None else cells.nbytes
        total = sum(self._comm.allgather(cells.nbytes))
        for attempt in range(ATTEMPTS_MOST):
            moved = c_int64()
            try:
                self._control(write, total)
                name = "write_all" if write else "read_all"
                given = (offset, address, count, handle_of(memory), byref(moved))
                self._agree(self._code(name, self._open(), *given))
            except IoError as error:
                if error.code == -1 and attempt + 1 < ATTEMPTS_MOST:
                    continue
                raise
            if self._comm.rank == 0:
                call("finished", self._open(), write, total)
            return moved.value
        return 0

    def _alone(self, write: bool, array: object, offset: int, extents: Extents | None) -> int:
        cells = as_array(array, writable=not write)
        address, memory = memory_of(cells)
        count = 1 if memory is not None else cells.nbytes
        moved = c_int64()
        name = "write" if write else "read"
        last = (address, count, handle_of(memory), byref(moved))
        if extents is None:
            call(name, self._open(), offset, *last)
        else:
            offsets, lengths = numbers([o for o, _ in extents]), numbers([n for _, n in extents])
            call(f"{name}_list", self._open(), len(extents), offsets, lengths, *last)
        return moved.value


def open_shared(
    path: str | Path,
    mode: Literal["r", "w", "r+", "w+", "x"] = "r",
    *,
    comm: Communicator | None = None,
    hints: dict[str, str] | None = None,
    timeout_s: float = 30,
) -> SharedFile:
    """Open `path` together with all ranks of `comm`, mpi4py's or alike; None: this rank alone.

    "r" reads, "w" writes and creates, "x" must create, "r+" and "w+" do both; nothing is truncated. `hints`: those of
    MPI-IO, e.g. `cb_nodes`. `timeout_s`: for the process of the node to start. Raises IoError at every rank.
    """
    if mode not in FLAGS:
        raise raised(-9, f"the mode is one of {', '.join(FLAGS)}, not {mode!r}")
    comm = comm if comm is not None else Alone()
    node, found, address = c_void_p(), (0, ""), ""
    try:
        call("connect", None, None, int(timeout_s * 1000), byref(node))
        room = ctypes.create_string_buffer(4097)
        call("address", node, room, len(room))
        address = room.value.decode()
    except IoError as error:
        found = error.code, str(error)
    every: list[tuple[tuple[int, str], str]] = comm.allgather((found, address))
    for code, _ in every:
        if code[0] != 0:
            raise raised(*code)
    nodes = sorted({address for _, address in every}, key=[a for _, a in every].index)
    identity = (c_ubyte * ID_BYTES)()
    call("file_id", identity)
    identity = (c_ubyte * ID_BYTES)(*comm.bcast(bytes(identity)))
    texts = [text.encode() for pair in (hints or {}).items() for text in pair]
    addresses = (c_char_p * len(nodes))(*[node.encode() for node in nodes])
    node_of = (c_int * comm.size)(*[nodes.index(address) for _, address in every])
    hint = (c_char_p * len(texts))(*texts)
    how = Open(
        path=os.fsencode(path),
        flags=FLAGS[mode],
        id=identity,
        rank=comm.rank,
        size=comm.size,
        nodes=len(nodes),
        addresses=cast(addresses, POINTER(c_char_p)),
        node_of=cast(node_of, POINTER(c_int)),
        hints=len(texts) // 2,
        hint=cast(hint, POINTER(c_char_p)),
    )
    handle = c_void_p()
    file = SharedFile(node, handle, comm)

    def opened() -> tuple[int, str]:
        return file._code("open", node, byref(how), byref(handle))

    # Rank 0 creates the file; the others attach after it.
    first: tuple[int, str] = comm.bcast(opened() if comm.rank == 0 else (0, ""))
    if first[0] != 0:
        library().ws_io_disconnect(node)
        raise raised(*first)
    file._agree(opened() if comm.rank != 0 else (0, ""))
    return file
