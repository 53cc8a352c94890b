"""The storage targets of catalogued files, as the list of a copy takes them.

Arrives: rows of a catalog, in the order of the list. Leaves: columns of bytes for `waystage._native.NameList`.
Must not know: who reads the files.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Objects = tuple[bytes, bytes, bytes, bytes]
"""Where the objects of each name begin, one more than there are names; target, first byte and length of each object."""

FIELDS = (("target", "<u4"), ("offset", "<u8"), ("length", "<u8"))


class Targets:
    """The objects of names as they come."""

    def __init__(self) -> None:
        self._counts: list[NDArray[np.int64]] = []
        self._columns: list[tuple[NDArray[np.generic], ...]] = []

    def add(self, rows: pa.Table) -> None:
        """Those of the rows, by their column `objects`."""
        column = rows["objects"].combine_chunks()
        self._counts.append(np.asarray(column.value_lengths().fill_null(0), np.int64))
        held = column.flatten()
        self._columns.append(tuple(np.asarray(held.field(name)).astype(kind) for name, kind in FIELDS))

    def without(self, names: int) -> None:
        """None, of this number of names."""
        self._counts.append(np.zeros(names, np.int64))

    def objects(self) -> Objects | None:
        """Of all names; None where they are not spread over several targets: the order of reads is then no matter."""
        if not self._columns:
            return None
        target, offset, length = (np.concatenate(columns) for columns in zip(*self._columns, strict=True))
        if len(np.unique(target)) < 2:
            return None
        first = np.concatenate([[0], np.cumsum(np.concatenate(self._counts))]).astype("<u4")
        return first.tobytes(), target.tobytes(), offset.tobytes(), length.tobytes()
