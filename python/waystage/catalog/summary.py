"""Totals of a part, computed while it is written: they answer most queries without a scan.

Arrives: entries, table by table.
Leaves: totals by type, owner, group, layout, size and storage target, as JSON takes them; sums of several parts.
Must not know: where they are kept, who asks.

A column with too many different values has no totals, and is scanned. All sums are of whole numbers.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Totals = dict[str, list[int]]
"""A value as text -> its sums."""

MOST_VALUES = 2_000
"""Owners or targets whose totals are kept: a manifest is read completely at every opening."""

BY = ("type", "uid", "gid", "layout")
NONE = ""
"""Stands for null, which the names of layouts never are."""


class Summary:
    """Totals: of entries and bytes of regular files by each of BY; files and bytes by size; objects and bytes by
    target.

    `linked` counts regular files with several names, whose bytes these totals hold once for each name. `allocated`
    is in bytes.
    """

    def __init__(self) -> None:
        self.linked = 0
        self.allocated = 0
        self.by: dict[str, Totals | None] = {name: {} for name in (*BY, "size", "target")}

    def add(self, table: pa.Table) -> None:
        """Count entries with all columns of a catalog."""
        if not table.num_rows:
            return
        types = table["type"].cast(pa.string())
        is_file = np.asarray(pc.equal(types, "f").to_numpy())
        size = table["size"].to_numpy()
        file_size = np.where(is_file, size, 0)
        self.linked += int((is_file & (table["links"].to_numpy() > 1)).sum())
        self.allocated += 512 * int(table["blocks"].to_numpy()[is_file].sum())
        ones = np.ones(len(size), np.int64)
        for name in BY:
            values = table[name]
            text = values.cast(pa.string()) if name in ("type", "layout") else values
            self._count(name, text, ones, file_size)
        # One more than the largest power of two that fits: the bins of `query.size_histogram`.
        bins = pa.chunked_array([pa.array(bit_lengths(size[is_file]) - 1)])
        self._count("size", bins, ones[: len(bins)], size[is_file])
        objects = pc.list_flatten(table["objects"])
        if len(objects):
            target = pc.struct_field(objects, "target")
            length = np.asarray(pc.struct_field(objects, "length").to_numpy())
            self._count("target", target, np.ones(len(length), np.int64), length)

    def _count(
        self, name: str, keys: pa.ChunkedArray, count: NDArray[np.int64], amount: NDArray[np.int64]
    ) -> None:
        held = self.by[name]
        if held is None or not len(keys):
            return
        table = pa.table({"key": keys, "count": count, "bytes": amount})
        grouped = table.group_by("key").aggregate([("count", "sum"), ("bytes", "sum")])
        for key, number, size in zip(
            *(grouped[c].to_pylist() for c in ("key", "count_sum", "bytes_sum")), strict=True
        ):
            sums = held.setdefault(NONE if key is None else str(key), [0, 0])
            sums[0] += number
            sums[1] += size
        if len(held) > MOST_VALUES:
            self.by[name] = None

    def plain(self) -> dict[str, Any]:
        """As JSON takes it."""
        return {"linked": self.linked, "allocated": self.allocated, "by": self.by}

    @classmethod
    def of(cls, value: Any) -> Self:
        """Raises KeyError, TypeError or ValueError where `value` is not what `plain` gives."""
        made = cls()
        made.linked, made.allocated = _whole(value["linked"]), _whole(value["allocated"])
        for name in made.by:
            held = value["by"][name]
            if held is None:
                made.by[name] = None
                continue
            made.by[name] = {_key(name, key): [_whole(n) for n in sums] for key, sums in held.items()}
            if any(len(sums) != 2 for sums in held.values()):
                raise ValueError(name)
        return made

    @classmethod
    def whole(cls, parts: list[Self | None]) -> Self | None:
        """The sum of parts; None where any part has none."""
        made = cls()
        for part in parts:
            if part is None:
                return None
            made.linked += part.linked
            made.allocated += part.allocated
            for name, held in part.by.items():
                sums = made.by[name]
                if held is None or sums is None:
                    made.by[name] = None
                    continue
                for key, (number, size) in held.items():
                    both = sums.setdefault(key, [0, 0])
                    both[0] += number
                    both[1] += size
        return made


def _whole(number: Any) -> int:
    """A count. Raises ValueError."""
    if type(number) is not int or not 0 <= number < 1 << 63:
        raise ValueError(number)
    return number


def _key(column: str, key: str) -> str:
    """A value of a column, as text. Raises ValueError where it is none."""
    if column == "size" and not -1 <= int(key) < 63:
        raise ValueError(key)
    if column in ("uid", "gid", "target") and not 0 <= int(key) < 1 << 32:
        raise ValueError(key)
    return key


def bit_lengths(sizes: NDArray[Any]) -> NDArray[np.int64]:
    """How many bits each number has: exact, which a logarithm of floats is not above 2^53."""
    high, low = np.divmod(sizes.astype(np.int64), 1 << 32)
    # frexp's exponent is the bit length for whole numbers below 2^53.
    upper, lower = np.frexp(high.astype(np.float64))[1], np.frexp(low.astype(np.float64))[1]
    lengths: NDArray[np.int64] = np.where(high > 0, upper + 32, lower).astype(np.int64)
    return lengths
