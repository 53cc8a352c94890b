"""Questions to a catalog: which entries, how many, how large, how old, where.

Arrives: a catalog and predicates like those of find(1).
Leaves: tables. Entries are scanned in pieces by Arrow's threads; only what is asked for is read.
Must not know: how a catalog is made, and how answers are printed.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from waystage.catalog.errors import CatalogError
from waystage.catalog.schema import ENTRIES
from waystage.catalog.sealed import HeldFile
from waystage.catalog.store import WORDS, Catalog, of_type, paths_of
from waystage.catalog.summary import bit_lengths

UNITS = {"": 1, "c": 1, "w": 2, "b": 512, "k": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
LARGEST = (1 << 63) - 1
"""The maximum of a column of numbers."""

ONCE = ("links", "device", "inode")
"""The columns that identify a file with several names."""

AGES = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400, "": 86400}
AGE_BOUNDS_DAYS = (1, 7, 30, 90, 180, 365, 730)
"""Upper bounds of the bins of an age histogram; the last bin is open."""


@dataclass(frozen=True)
class Filter:
    """Conditions on entries, all of which must hold. Patterns are bytes and match complete names or paths.

    `+N` is more than, `-N` less than, `N` exactly. `size` is find's, with c, w, b, k, M, G or T: a size is rounded
    up to whole units before it is compared, so that `-1M` has empty files alone. Without a unit it is in bytes. An
    `age`, with s, m, h, d or w, is not rounded; it counts from `now` to the last change of content.
    """

    name: bytes | None = None
    path: bytes | None = None
    types: str = ""
    size: str | None = None
    age: str | None = None
    uid: int | None = None
    gid: int | None = None
    links: str | None = None
    target: int | None = None
    now: float | None = None

    def columns(self) -> set[str]:
        """The columns needed to decide."""
        needs = {
            "name": self.name or self.path,
            "directory": self.path,
            "type": self.types,
            "size": self.size,
            "mtime": self.age,
            "uid": self.uid is not None,
            "gid": self.gid is not None,
            "links": self.links,
            "objects": self.target is not None,
        }
        return {column for column, needed in needs.items() if needed}

    def is_all(self) -> bool:
        """Whether every entry matches."""
        return not self.columns()

    def keep(self, table: pa.Table) -> pa.Table:
        """The rows for which all holds."""
        expression = self.expression()
        return self.apply(table if expression is None else table.filter(expression))

    def apply(self, table: pa.Table) -> pa.Table:
        """Of the rows for which `expression` holds those for which the rest does."""
        if self.path is not None:
            table = table.filter(pc.match_substring_regex(paths_of(table), regex(self.path, crosses=True)))
        if self.target is not None:
            table = _on_target(table, self.target)
        return table

    def expression(self) -> pc.Expression | None:
        """The part that the file reader can evaluate; None where there is none."""
        parts: list[pc.Expression] = []
        if self.types:
            parts.append(pc.field("type").cast(pa.string()).isin(list(self.types)))
        if self.name is not None:
            parts.append(_name_matches(self.name))
        if self.size is not None:
            low, high = size_bounds(self.size)
            parts += [pc.field("size") >= low] if low else []
            parts += [pc.field("size") <= high] if high < LARGEST else []
        if self.age is not None:
            sign, seconds = parse_age(self.age)
            now = time.time() if self.now is None else self.now
            moment = max(-LARGEST, min(LARGEST, int((now - seconds) * 1e9)))
            limit = pa.scalar(moment, pa.int64()).cast(pa.timestamp("ns", tz="UTC"))
            # Older means an earlier time.
            parts.append(_compare(pc.field("mtime"), {"+": "-", "-": "+", "": "-"}[sign], limit))
            if not sign:
                raise CatalogError(f"age {self.age!r}: say +{self.age} for older, -{self.age} for younger")
        if self.links is not None:
            sign, number, _ = _signed(self.links, {"": 1}, "a number of links")
            parts.append(_compare(pc.field("links").cast(pa.int64()), sign, number))
        for name, value in (("uid", self.uid), ("gid", self.gid)):
            if value is not None:
                parts.append(pc.field(name) == value)
        if not parts:
            return None
        whole = parts[0]
        for part in parts[1:]:
            whole = whole & part
        return whole


def select(
    catalog: Catalog, which: Filter, columns: list[str] | None = None, of_linked: Sequence[str] = ()
) -> Iterator[pa.Table]:
    """The entries that match, piece by piece, with `columns` (None: all), and in parts that may have files of several
    names with `of_linked`.
    """
    wanted = None if columns is None else sorted({*columns, *which.columns()})
    for batch in catalog.batches(wanted, which=which.expression(), of_linked=of_linked):
        table = which.apply(pa.Table.from_batches([batch]))
        if table.num_rows:
            there = [name for name in of_linked if name in table.column_names]
            yield table if columns is None else table.select([*columns, *there])


def totals(catalog: Catalog, which: Filter) -> dict[str, int]:
    """How many entries match, their bytes and the bytes allocated for them.

    Bytes here and in all answers below are those of regular files, each file once in an answer or a group of it,
    however many of its names match: a file is known by device and inode.
    """
    kept = catalog.summary() if which.is_all() else None
    if kept is not None and kept.linked == 0 and kept.by["type"] is not None:
        held = kept.by["type"].values()
        return {
            "entries": sum(number for number, _ in held),
            "bytes": sum(size for _, size in held),
            "allocated_bytes": kept.allocated,
        }
    entries = size = allocated = 0
    once = _Once()
    for table in select(catalog, which, ["type", "size", "blocks"], ONCE):
        entries += table.num_rows
        files = once.filter(table.filter(of_type(table, "f")))
        size += pc.sum(files["size"]).as_py() or 0
        allocated += 512 * (pc.sum(files["blocks"]).as_py() or 0)
    return {"entries": entries, "bytes": size, "allocated_bytes": allocated}


def top(catalog: Catalog, which: Filter, by: str, count: int) -> pa.Table:
    """The `count` entries with the largest `by`: a column of the schema, of numbers or times."""
    if count < 1:
        raise CatalogError(f"top {count}: ask for at least one entry")
    columns = sorted({"directory", "name", "type", "size", "mtime", "mtime_seconds", "uid", by})
    narrow = sorted({by, *which.columns()})
    best: pa.Table | None = None
    least: int | None = None
    # Best first: a row group whose largest value is no larger than the least of `count` found ends the search.
    for largest, file, group in sorted(_row_groups(catalog, by), key=lambda one: one[0], reverse=True):
        if least is not None and largest <= least:
            break
        read = partial(file.read, [group], words=WORDS)
        table = which.keep(read(columns=narrow))
        if not table.num_rows or (least is not None and pc.max(_numbers(table[by])).as_py() <= least):
            continue
        table = which.keep(read(columns=sorted({*columns, *narrow}))).select(columns)
        joined = table if best is None else pa.concat_tables([best, table], promote_options="permissive")
        joined = joined.unify_dictionaries()
        order = [(by, "descending")]
        best = joined.take(pc.select_k_unstable(joined, k=min(count, joined.num_rows), sort_keys=order))
        least = pc.min(_numbers(best[by])).as_py() if best.num_rows == count else None
    if best is None:
        return ENTRIES.empty_table().select(columns)
    return best.sort_by([(by, "descending")])


def _row_groups(catalog: Catalog, column: str) -> Iterator[tuple[int, HeldFile, int]]:
    """Each row group with its largest value in a column of numbers or times; where unknown, with the largest of all."""
    for file in catalog.held_entries():
        paths = [file.metadata.schema.column(index).path for index in range(file.metadata.num_columns)]
        for group in range(file.groups):
            about = file.metadata.row_group(group).column(paths.index(column)).statistics
            known = about is not None and about.has_min_max
            yield (about.max_raw if known else (1 << 63) - 1), file, group


def _numbers(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(pa.int64())


def size_histogram(catalog: Catalog, which: Filter) -> list[dict[str, int]]:
    """Regular files by size in powers of two: [{at_least, below, files, bytes}]; the first bin is of empty files."""
    bins: dict[int, list[int]] = {}
    kept = catalog.summary() if which.is_all() else None
    if kept is not None and not kept.linked and (by_size := kept.by["size"]) is not None:
        bins = {int(power): sums for power, sums in by_size.items()}
    once = _Once()
    for table in select(catalog, which, ["type", "size"], ONCE) if not bins else ():
        sizes = once.filter(table.filter(of_type(table, "f")))["size"]
        exponent = pa.chunked_array([pa.array(bit_lengths(sizes.to_numpy()) - 1)])
        grouped = (
            pa.table({"bin": exponent, "size": sizes})
            .group_by("bin")
            .aggregate([("size", "count"), ("size", "sum")])
        )
        for row in grouped.to_pylist():
            held = bins.setdefault(row["bin"], [0, 0])
            held[0] += row["size_count"]
            held[1] += row["size_sum"]
    return [
        {
            "at_least": 0 if b < 0 else 1 << b,
            "below": 1 if b < 0 else 2 << b,
            "files": bins[b][0],
            "bytes": bins[b][1],
        }
        for b in sorted(bins)
    ]


def age_histogram(catalog: Catalog, which: Filter, now: float | None = None) -> list[dict[str, int | None]]:
    """Regular files by days since the last change of content: [{from_days, to_days, files, bytes}]."""
    moment = int((time.time() if now is None else now) * 1e9)
    bounds = [moment - days * 86400 * 10**9 for days in AGE_BOUNDS_DAYS]
    found = [[0, 0] for _ in range(len(bounds) + 1)]
    once = _Once()
    for table in select(catalog, which, ["type", "size", "mtime"], ONCE):
        files = once.filter(table.filter(of_type(table, "f")))
        times, sizes = _numbers(files["mtime"]).to_numpy(), files["size"].to_numpy()
        size = int(sizes.sum())
        for sums, bound in zip(found, bounds, strict=False):
            older = times <= bound
            if older.all():
                continue
            times, sizes, younger = times[older], sizes[older], (len(times), size)
            size = int(sizes.sum())
            sums[0] += younger[0] - len(times)
            sums[1] += younger[1] - size
        found[-1][0] += len(times)
        found[-1][1] += size
    starts, ends = (0, *AGE_BOUNDS_DAYS), (*AGE_BOUNDS_DAYS, None)
    return [
        {"from_days": start, "to_days": end, "files": files, "bytes": size}
        for start, end, (files, size) in zip(starts, ends, found, strict=True)
    ]


def by_column(catalog: Catalog, which: Filter, column: str) -> pa.Table:
    """Entries and bytes of regular files for each value of `directory`, `type`, `uid`, `gid` or `layout`.

    Sorted by bytes. A directory's total is of the entries in it, not of those in directories below. A file with
    names in several directories counts in each of them.
    """
    made = _kept_totals(catalog, column) if which.is_all() else None
    if made is not None:
        return made.sort_by([("bytes", "descending"), ("entries", "descending")])
    sums: list[pa.Table] = []
    once = _Once()
    for table in select(catalog, which, sorted({column, "type", "size"}), ONCE):
        is_file = of_type(table, "f")
        keys = table[column].combine_chunks() if column in ("directory", "type", "layout") else table[column]
        counts = pc.and_(is_file, pa.array(once.first(table, column)))
        size = pc.if_else(counts, table["size"], 0)
        grouped = pa.table({column: keys, "bytes": size}).group_by(column)
        part = grouped.aggregate([("bytes", "count"), ("bytes", "sum")])
        value = (
            pa.binary()
            if column == "directory"
            else pa.string()
            if column in ("type", "layout")
            else part[column].type
        )
        sums.append(part.set_column(part.schema.get_field_index(column), column, part[column].cast(value)))
    if not sums:
        return pa.table({column: [], "entries": pa.array([], pa.int64()), "bytes": pa.array([], pa.int64())})
    whole = pa.concat_tables(sums).group_by(column).aggregate([("bytes_count", "sum"), ("bytes_sum", "sum")])
    whole = whole.rename_columns([column, "entries", "bytes"])
    return whole.sort_by([("bytes", "descending"), ("entries", "descending")])


def _kept_totals(catalog: Catalog, column: str) -> pa.Table | None:
    """The answer to `by_column` for all entries, from what was added up when they were written, for each name."""
    kept = catalog.summary()
    if kept is None or kept.linked:
        return None
    if column == "directory":
        table = catalog.directories()
        table = table.filter(pc.and_(pc.equal(table["state"], 0), pc.greater(table["rows"], 0)))
        if table["bytes"].null_count:
            return None
        grouped = table.group_by("path").aggregate([("rows", "sum"), ("bytes", "sum")])
        return grouped.rename_columns(["directory", "entries", "bytes"])
    held = kept.by.get(column)
    if held is None:
        return None
    keys: list[int | str | None] = list(held)
    if column in ("uid", "gid"):
        keys = [int(key) for key in held]
    elif column == "layout":
        keys = [key or None for key in held]
    kind = pa.uint32() if column in ("uid", "gid") else pa.string()
    numbers, sizes = ([sums[i] for sums in held.values()] for i in (0, 1))
    return pa.table(
        {
            column: pa.array(keys, kind),
            "entries": pa.array(numbers, pa.int64()),
            "bytes": pa.array(sizes, pa.int64()),
        }
    )


def by_target(catalog: Catalog, which: Filter) -> pa.Table:
    """Objects and their bytes on each storage target."""
    kept = catalog.summary() if which.is_all() else None
    if kept is not None and not kept.linked and (held := kept.by["target"]) is not None:
        return pa.table(
            {
                "target": pa.array([int(number) for number in held], pa.uint32()),
                "objects": pa.array([objects for objects, _ in held.values()], pa.int64()),
                "bytes": pa.array([size for _, size in held.values()], pa.int64()),
            }
        ).sort_by("target")
    sums: list[pa.Table] = []
    once = _Once()
    for table in select(catalog, which, ["type", "objects"], ONCE):
        files = once.filter(table.filter(of_type(table, "f")))
        objects = pc.list_flatten(files["objects"])
        if len(objects) == 0:
            continue
        columns = {"target": pc.struct_field(objects, "target"), "bytes": pc.struct_field(objects, "length")}
        sums.append(pa.table(columns).group_by("target").aggregate([("bytes", "count"), ("bytes", "sum")]))
    if not sums:
        none = pa.array([], pa.int64())
        return pa.table({"target": pa.array([], pa.uint32()), "objects": none, "bytes": none})
    whole = (
        pa.concat_tables(sums).group_by("target").aggregate([("bytes_count", "sum"), ("bytes_sum", "sum")])
    )
    return whole.rename_columns(["target", "objects", "bytes"]).sort_by("target")


def _name_matches(pattern: bytes) -> pc.Expression:
    """A shell pattern over names. The usual forms need no regular expression, which takes five times as long."""
    name = pc.field("name")
    inner = pattern.strip(b"*")
    if inner and not re.search(rb"[*?\[\\]", inner):
        starts, ends = pattern.startswith(b"*"), pattern.endswith(b"*")
        if starts and ends:
            return pc.match_substring(name, inner)
        if starts:
            return pc.ends_with(name, inner)
        return pc.starts_with(name, inner) if ends else name == pa.scalar(inner, pa.binary())
    return pc.match_substring_regex(name, regex(pattern))


def regex(pattern: bytes, *, crosses: bool = False) -> str:
    """A shell pattern as a regular expression over bytes, of the whole.

    `*` crosses slashes in paths, as find's -path.
    """
    out: list[str] = []
    position = 0
    while position < len(pattern):
        char = pattern[position : position + 1]
        position += 1
        if char == b"*":
            out.append("(?s:.*)" if crosses else "[^/]*")
        elif char == b"?":
            out.append("(?s:.)")
        elif char == b"[" and (end := pattern.find(b"]", position + 1)) > 0:
            inner = pattern[position:end]
            negated = inner[:1] in (b"!", b"^")
            body = "".join("-" if b == ord("-") else _byte(b) for b in (inner[1:] if negated else inner))
            out.append(f"[{'^' if negated else ''}{body}]")
            position = end + 1
        elif char == b"\\" and position < len(pattern):
            out.append(_byte(pattern[position]))
            position += 1
        else:
            out.append(_byte(char[0]))
    return rf"\A{''.join(out)}\z"


def _byte(value: int) -> str:
    return chr(value) if chr(value).isascii() and chr(value).isalnum() else f"\\x{value:02x}"


def size_bounds(text: str) -> tuple[int, int]:
    """`+10M` -> the least and the greatest size in bytes that find's -size would take. Raises CatalogError."""
    sign, number, unit = _signed(text, UNITS, "a size such as +10M, -4k or 0")
    if sign == "+":
        return min(LARGEST, number * unit) + 1 if number * unit < LARGEST else LARGEST, LARGEST
    # A size that rounds up to N units is more than N - 1 of them.
    greatest = min(LARGEST, (number if not sign else number - 1) * unit)
    least = (number - 1) * unit + 1 if not sign and number else 0
    return min(LARGEST, least), greatest


def parse_age(text: str) -> tuple[str, int]:
    """`+30d` -> ("+", 2592000 seconds). Raises CatalogError."""
    sign, number, unit = _signed(text, AGES, "an age such as +30d or -2h")
    return sign, number * unit


def _signed(text: str, units: dict[str, int], what: str) -> tuple[str, int, int]:
    """The sign, the number, at most what a column holds, and the unit."""
    match = re.fullmatch(r"([+-]?)([0-9]{1,40})([A-Za-z]?)", text)
    if match is None or match.group(3) not in units:
        raise CatalogError(f"{text[:60]!r} is not {what}")
    return match.group(1), min(LARGEST, int(match.group(2))), units[match.group(3)]


def _compare(column: pc.Expression, sign: str, value: object) -> pc.Expression:
    if sign == "+":
        return column > value
    if sign == "-":
        return column < value
    return column == value


def _on_target(table: pa.Table, target: int) -> pa.Table:
    objects = table["objects"].combine_chunks()
    parents = pc.list_parent_indices(objects)
    there = pc.equal(pc.struct_field(pc.list_flatten(objects), "target"), target)
    return table.take(pc.unique(parents.filter(there)))


class _Once:
    """Lets each file with several names pass once, or once in each group."""

    def __init__(self) -> None:
        self._seen: set[tuple[int, int, object]] = set()

    def filter(self, files: pa.Table) -> pa.Table:
        """Files not seen before."""
        if "links" not in files.column_names:
            return files
        return files.filter(pa.array(self.first(files)))

    def first(self, table: pa.Table, group: str | None = None) -> NDArray[np.bool_]:
        """Which rows are not further names of a file seen before, in the same group where there is one.

        Directories have several links too, and are no files."""
        answer = np.ones(table.num_rows, np.bool_)
        if "links" not in table.column_names:
            return answer
        several = np.flatnonzero(table["links"].to_numpy() > 1)
        if len(several):
            rows = table.take(pa.array(several))
            groups = [None] * len(several) if group is None else rows[group].to_pylist()
            keys = zip(rows["device"].to_pylist(), rows["inode"].to_pylist(), groups, strict=True)
            for row, key in zip(several.tolist(), keys, strict=True):
                answer[row] = key not in self._seen
                self._seen.add(key)
        return answer
