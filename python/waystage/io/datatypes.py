"""MPI datatypes without MPI: which bytes of a file or of memory, in which order.

Arrives: the arguments of MPI's constructors, displacements and strides in bytes; arrays.
Leaves: datatypes. Must not know: files.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import c_void_p
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from waystage.io.errors import raised
from waystage.io.library import library, message, numbers

Order = Literal["C", "F"]


class Datatype:
    """A datatype; built by the functions of the same names as MPI's constructors. Immutable."""

    def __init__(self, handle: int | None) -> None:
        """Of a handle that a constructor returned. IoError where it failed."""
        if not handle:
            raise raised(-9, message())
        self.handle = c_void_p(handle)

    def __del__(self) -> None:
        if hasattr(self, "handle"):
            library().ws_io_type_free(self.handle)

    @classmethod
    def bytes(cls, count: int) -> Datatype:
        """`count` bytes."""
        return cls(library().ws_io_type_bytes(count))

    def contiguous(self, count: int) -> Datatype:
        """MPI_Type_contiguous."""
        return Datatype(library().ws_io_type_contiguous(count, self.handle))

    def hvector(self, count: int, block: int, stride: int) -> Datatype:
        """MPI_Type_create_hvector."""
        return Datatype(library().ws_io_type_hvector(count, block, stride, self.handle))

    def hindexed(self, blocks: Sequence[int], displacements: Sequence[int]) -> Datatype:
        """MPI_Type_create_hindexed."""
        if len(blocks) != len(displacements):
            raise raised(-9, f"{len(blocks)} blocks and {len(displacements)} displacements")
        given = numbers(list(blocks)), numbers(list(displacements))
        return Datatype(library().ws_io_type_hindexed(len(blocks), *given, self.handle))

    def resized(self, lower: int, extent: int) -> Datatype:
        """MPI_Type_create_resized."""
        return Datatype(library().ws_io_type_resized(lower, extent, self.handle))

    def subarray(
        self, sizes: Sequence[int], subsizes: Sequence[int], starts: Sequence[int], order: Order = "C"
    ) -> Datatype:
        """MPI_Type_create_subarray, of elements of this type."""
        count = len(sizes)
        if len(subsizes) != count or len(starts) != count:
            raise raised(-9, f"{count} sizes, {len(subsizes)} subsizes and {len(starts)} starts")
        given = numbers(list(sizes)), numbers(list(subsizes)), numbers(list(starts))
        handle = library().ws_io_type_subarray(count, *given, order.encode(), self.handle)
        return Datatype(handle)


def memory_of(array: NDArray[np.generic]) -> tuple[int, Datatype | None]:
    """Address of an array's first element, and a datatype of all its elements in C order; None: without gaps."""
    address: int = array.__array_interface__["data"][0]
    if array.flags.c_contiguous:
        return address, None
    found = Datatype.bytes(array.itemsize)
    for side, stride in zip(reversed(array.shape), reversed(array.strides), strict=True):
        found = found.hvector(side, 1, stride)
    return address, found


def handle_of(datatype: Datatype | None) -> c_void_p | None:
    """The handle to pass on."""
    return datatype.handle if datatype is not None else None


def as_array(buffer: object, *, writable: bool) -> NDArray[np.generic]:
    """The array that a buffer is, without a copy. IoError where it is none, or must be written and cannot be."""
    try:
        array = np.asarray(buffer) if isinstance(buffer, np.ndarray) else np.asarray(memoryview(buffer))  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise raised(-9, f"{type(buffer).__name__} is no buffer: {error}") from None
    if array.dtype.hasobject:
        raise raised(-9, "an array of Python objects has no bytes to move")
    if writable and not array.flags.writeable:
        raise raised(-9, "the array to read into is read-only")
    return array
