"""The columns of a catalog, and how a walk's buffers become them.

Arrives: columns of numbers and bytes from the walk, as numpy arrays.
Leaves: Arrow tables of the documented schema (docs/reference/catalog.md); no Python object for any entry.
Must not know: where catalogs lie.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from waystage._native import ENTRY_TYPES, LAYOUT_KINDS

TIME = pa.timestamp("ns", tz="UTC")
WORD = pa.dictionary(pa.int32(), pa.string())
OBJECT = pa.struct(
    [
        pa.field("target", pa.uint32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("length", pa.int64(), nullable=False),
    ]
)

ENTRIES = pa.schema(
    [
        pa.field("directory", pa.dictionary(pa.int32(), pa.binary()), nullable=False),
        pa.field("name", pa.binary(), nullable=False),
        pa.field("type", WORD, nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("mtime", TIME, nullable=False),
        pa.field("ctime", TIME),
        pa.field("atime", TIME),
        pa.field("mode", pa.uint16(), nullable=False),
        pa.field("uid", pa.uint32(), nullable=False),
        pa.field("gid", pa.uint32(), nullable=False),
        pa.field("inode", pa.uint64(), nullable=False),
        pa.field("device", pa.uint64(), nullable=False),
        pa.field("links", pa.uint32(), nullable=False),
        pa.field("blocks", pa.int64(), nullable=False),
        pa.field("symlink", pa.binary()),
        pa.field("layout", WORD),
        pa.field("layout_generation", pa.uint32()),
        pa.field("stripe_size", pa.int64()),
        pa.field("objects", pa.list_(pa.field("element", OBJECT, nullable=False))),
        pa.field("mtime_seconds", pa.int64()),
        pa.field("ctime_seconds", pa.int64()),
        pa.field("atime_seconds", pa.int64()),
    ]
)
"""`ctime` and `atime` are null where they equal `mtime`: most files are written once, and 14 bytes are saved.

The seconds are null but for times that nanoseconds do not reach; see `exact_times`.
"""

TIMES = ("mtime", "ctime", "atime")
FIRST_NS, LAST_NS = -(1 << 63), (1 << 63) - 10**9
"""Where the first and the last second begin that nanoseconds reach: a time beyond them is in that second, with its
own nanoseconds."""

DIRECTORIES = pa.schema(
    [
        pa.field("path", pa.binary(), nullable=False),
        pa.field("inode", pa.uint64(), nullable=False),
        pa.field("device", pa.uint64(), nullable=False),
        pa.field("mtime", TIME, nullable=False),
        pa.field("ctime", TIME, nullable=False),
        pa.field("mode", pa.uint16(), nullable=False),
        pa.field("uid", pa.uint32(), nullable=False),
        pa.field("gid", pa.uint32(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("total", pa.int64(), nullable=False),
        pa.field("state", pa.int8(), nullable=False),
        pa.field("bytes", pa.int64()),
    ]
)

Columns = Mapping[str, NDArray[Any]]


def directories_table(columns: Columns, entries: Columns) -> pa.Table:
    """The directories of a batch; `entries` are its entries, whose bytes they add up."""
    made = {"path": _bytes(columns, "path"), "bytes": _fixed(_file_bytes(columns, entries), pa.int64())}
    arrays = [
        made[field.name] if field.name in made else _fixed(columns[field.name], field.type)
        for field in DIRECTORIES
    ]
    return pa.Table.from_arrays(arrays, schema=DIRECTORIES)


def entries_table(columns: Columns, directories: pa.Array) -> pa.Table:
    """The entries of a batch; `directories` are the paths that its directory numbers point to."""
    made: dict[str, pa.Array] = {
        "directory": pa.DictionaryArray.from_arrays(_fixed(columns["directory"], pa.int32()), directories),
        "name": _bytes(columns, "name"),
        "type": _words(columns["type"], ENTRY_TYPES),
        "ctime": _unless_equal(columns["ctime"], columns["mtime"]),
        "atime": _unless_equal(columns["atime"], columns["mtime"]),
        "symlink": _bytes(columns, "symlink", valid=columns["type"] == ENTRY_TYPES.index("l")),
        "layout": _words(columns["layout_kind"], LAYOUT_KINDS),
    }
    laid_out = columns["layout_kind"] >= 0
    made["layout_generation"] = pa.array(columns["generation"], pa.uint32(), mask=~laid_out)
    made["stripe_size"] = pa.array(columns["stripe_size"], pa.int64(), mask=~laid_out)
    made["objects"] = _objects(columns, laid_out)
    for which, name in enumerate(TIMES):
        made[f"{name}_seconds"] = _beyond(columns, which)
    arrays = [
        made[field.name] if field.name in made else _fixed(columns[field.name], field.type)
        for field in ENTRIES
    ]
    return pa.Table.from_arrays(arrays, schema=ENTRIES)


def exact_times(table: pa.Table, name: str) -> list[int]:
    """The times of a column of TIMES in ns since 1970, as exactly as the file system told them."""
    times = pc.coalesce(table[name], table["mtime"]).cast(pa.int64())
    seconds = table[f"{name}_seconds"]
    if seconds.null_count == len(seconds):
        found: list[int] = times.to_pylist()
        return found
    return [
        ns if second is None else second * 10**9 + ns - (FIRST_NS if second < 0 else LAST_NS)
        for ns, second in zip(times.to_pylist(), seconds.to_pylist(), strict=True)
    ]


def _beyond(columns: Columns, which: int) -> pa.Array:
    """The seconds of times that nanoseconds do not reach: of mtime, ctime or atime."""
    rows = len(columns["type"])
    chosen = columns["beyond_which"] == which
    if not chosen.any():
        return pa.nulls(rows, pa.int64())
    seconds, absent = np.zeros(rows, np.int64), np.ones(rows, np.bool_)
    seconds[columns["beyond_row"][chosen]] = columns["beyond_seconds"][chosen]
    absent[columns["beyond_row"][chosen]] = False
    return pa.array(seconds, pa.int64(), mask=absent)


def _file_bytes(directories: Columns, entries: Columns) -> NDArray[np.int64]:
    """Bytes of regular files in each directory, as far as the batch has them."""
    sums = np.zeros(len(directories["inode"]), np.int64)
    is_file = entries["type"] == ENTRY_TYPES.index("f")
    np.add.at(sums, entries["directory"][is_file], entries["size"][is_file])
    return sums


def _fixed(column: NDArray[Any], kind: pa.DataType) -> pa.Array:
    """Numbers whose memory becomes the Arrow array's."""
    return pa.Array.from_buffers(kind, len(column), [None, pa.py_buffer(column)])


def _bytes(columns: Columns, name: str, valid: NDArray[np.bool_] | None = None) -> pa.Array:
    offsets, data = columns[f"{name}_offsets"], columns[f"{name}_data"]
    mask = None if valid is None else _bitmap(valid)
    return pa.Array.from_buffers(
        pa.binary(), len(offsets) - 1, [mask, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


def _bitmap(valid: NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


def _words(indices: NDArray[Any], words: list[str]) -> pa.Array:
    """Numbers of words, a negative one being null."""
    numbers = pa.array(indices.astype(np.int32), mask=indices < 0)
    return pa.DictionaryArray.from_arrays(numbers, pa.array(words))


def _unless_equal(column: NDArray[Any], other: NDArray[Any]) -> pa.Array:
    return pa.array(column, pa.int64(), mask=column == other).view(TIME)


def _objects(columns: Columns, laid_out: NDArray[np.bool_]) -> pa.Array:
    kind = ENTRIES.field("objects").type
    if not laid_out.any():
        return pa.nulls(len(laid_out), kind)
    parts = [
        _fixed(columns[f"object_{name}"], field)
        for name, field in zip(
            ("target", "offset", "length"), (pa.uint32(), pa.int64(), pa.int64()), strict=True
        )
    ]
    objects = pa.StructArray.from_arrays(parts, fields=list(OBJECT))
    return pa.Array.from_buffers(
        kind, len(laid_out), [_bitmap(laid_out), pa.py_buffer(columns["objects"])], children=[objects]
    )
