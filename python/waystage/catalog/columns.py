"""Columns of a catalog's entries as the data plane takes them.

Arrives: a batch of a catalog's entries.
Leaves: numpy arrays by name, the batch's own memory where possible.
Must not know: who asks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from waystage._native import ENTRY_TYPES

if TYPE_CHECKING:
    from waystage._native import _CheckColumns

Strings = tuple[NDArray[np.int32], NDArray[np.uint8]]
"""Offsets and bytes."""


def entry_columns(batch: pa.RecordBatch) -> _CheckColumns:
    """Paths, types, sizes, times and inodes; a missing ctime is the mtime."""
    directories, directory = directory_columns(batch)
    mtime = batch["mtime"].cast(pa.int64())
    return {
        "directories": directories,
        "directory": directory,
        "names": strings(batch["name"]),
        "kind": indices(batch["type"], ENTRY_TYPES),
        "size": numbers(batch["size"], np.int64),
        "mtime": numbers(mtime, np.int64),
        "ctime": numbers(pc.coalesce(batch["ctime"].cast(pa.int64()), mtime), np.int64),
        "inode": numbers(batch["inode"], np.uint64),
    }


def directory_columns(batch: pa.RecordBatch) -> tuple[Strings, NDArray[np.int32]]:
    """The distinct directories, and the index of each entry's."""
    directory = batch["directory"]
    if not isinstance(directory, pa.DictionaryArray):
        directory = directory.dictionary_encode()
    return strings(directory.dictionary), numbers(directory.indices, np.int32)


def numbers(array: pa.Array, kind: Any) -> NDArray[Any]:
    """A contiguous array of this type."""
    found: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return np.ascontiguousarray(found, dtype=kind)


def indices(array: pa.Array, words: list[str]) -> NDArray[np.int8]:
    """The index of each word in `words`, -1 where it has none."""
    if not isinstance(array, pa.DictionaryArray):
        array = array.dictionary_encode()
    # A null index becomes the last place, which is -1.
    known = [words.index(word) if word in words else -1 for word in array.dictionary.to_pylist()]
    table = np.array([*known, -1], np.int8)
    places = pc.fill_null(array.indices, len(known)).to_numpy(zero_copy_only=False)
    return np.ascontiguousarray(table[places])


def strings(array: pa.Array) -> Strings:
    """The offsets and bytes of an array of byte strings, without a copy."""
    _, offsets, data = array.buffers()
    if offsets is None:
        return np.zeros(1, np.int32), np.zeros(0, np.uint8)
    all_offsets = np.frombuffer(offsets, np.int32)
    held = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(0, np.uint8)
    return all_offsets[array.offset : array.offset + len(array) + 1], held
