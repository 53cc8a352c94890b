"""The differences of two catalogs, or of a catalog and its tree.

Arrives: an older and a newer catalog.
Leaves: counts, and the paths that were added, removed or changed, with what changed.
Must not know: how they were made, but for `verify`, which makes the newer one and throws it away.

Memory is bounded: entries are dealt by a hash of their path into shares of some million, in files of the temporary
folder, and share is compared with share. Small catalogs are one share and no file.
"""

from __future__ import annotations

import heapq
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from waystage.catalog.build import build
from waystage.catalog.check import path_hashes
from waystage.catalog.errors import SourceMissing
from waystage.catalog.options import BuildOptions, own_patterns
from waystage.catalog.schema import ENTRIES, TIMES
from waystage.catalog.store import Catalog, paths_of
from waystage.display import display
from waystage.task import Progress

COMPARED = (
    "type",
    "size",
    "mtime",
    "ctime",
    "mode",
    "uid",
    "gid",
    "inode",
    "links",
    "symlink",
    "layout_generation",
)
"""The compared columns. Not atime, which reading changes, and not blocks, which delayed allocation changes."""

SHARE_ROWS = 400_000
"""Entries of both catalogs compared at once: some 200 MB including the join."""

DEALT_ROWS = 1 << 19
"""Entries partitioned at once: some 150 MB."""

T = TypeVar("T", bytes, tuple[bytes, tuple[str, ...]])


@dataclass(frozen=True)
class Difference:
    """Paths are bytes, sorted; `changed` has for each path the names of the columns that differ.

    Where lists were limited they hold the first paths in order; the counts are of all.
    """

    added: list[bytes]
    removed: list[bytes]
    changed: list[tuple[bytes, tuple[str, ...]]]
    same: int
    added_count: int
    removed_count: int
    changed_count: int
    kinds: dict[str, int] = field(default_factory=dict)
    """The number of changed entries in each column; named as `waystage.catalog.check` names differences."""

    def __bool__(self) -> bool:
        return bool(self.added_count or self.removed_count or self.changed_count)


def diff(
    old: Catalog,
    new: Catalog,
    columns: tuple[str, ...] = COMPARED,
    *,
    limit: int | None = None,
    share_rows: int = SHARE_ROWS,
    progress: Progress | None = None,
) -> Difference:
    """The changes from `old` to `new`, by path below the root; each list has at most `limit` paths."""
    shares = max(1, -(-(old.rows + new.rows) // share_rows))
    found = _Found(limit)
    with ExitStack() as stack:
        left, right = (_dealt(catalog, columns, shares, stack) for catalog in (old, new))
        for number in range(shares):
            found.add(left(number), right(number), columns)
            if progress is not None:
                progress("comparing", (number + 1) / shares)
    return found.difference()


def verify(
    catalog: Catalog,
    threads: int | None = None,
    progress: Progress | None = None,
    *,
    limit: int | None = None,
) -> Difference:
    """The changes of the tree since the catalog was made: walks it again, with the same patterns.

    Directories' own sizes and times are compared as everything else. The new catalog is in $TMPDIR meanwhile.
    """
    if not catalog.root.is_dir():
        raise SourceMissing(
            f"{display(catalog.manifest.root)}, which {catalog.path} is of, is no longer there"
        )
    options = BuildOptions(
        threads=threads,
        exclude=(*catalog.manifest.exclude, *own_patterns(catalog.root, catalog.path)),
        one_file_system=catalog.manifest.one_file_system,
        layouts=catalog.manifest.layouts,
    )
    with tempfile.TemporaryDirectory(prefix="waystage-verify-") as folder:
        now = Path(folder) / "now"
        build(catalog.root, now, options, progress)
        return diff(catalog, Catalog(now), limit=limit, progress=progress)


class _Found:
    """Sums the differences of shares."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._added: list[bytes] = []
        self._removed: list[bytes] = []
        self._changed: list[tuple[bytes, tuple[str, ...]]] = []
        self._counts: Counter[str] = Counter()
        self._kinds: Counter[str] = Counter()

    def add(self, left: pa.Table, right: pa.Table, columns: tuple[str, ...]) -> None:
        added = _without(right, left)
        removed = _without(left, right)
        both = left.join(right, "path", join_type="inner", right_suffix=" new")
        differs = {column: _differs(both[column], both[f"{column} new"]) for column in columns}
        for column in columns:
            if column in TIMES:
                beyond = f"{column}_seconds"
                unequal = _differs(both[beyond], both[f"{beyond} new"])
                differs[column] = pc.or_(differs[column], unequal)
        anything = pa.chunked_array([pa.array(np.zeros(both.num_rows, np.bool_))])
        for column in columns:
            anything = pc.or_(anything, differs[column])
            self._kinds[column] += pc.sum(differs[column]).as_py() or 0
        changed = pa.table({"path": both["path"], **differs}).filter(anything)
        self._counts["added"] += len(added)
        self._counts["removed"] += len(removed)
        self._counts["changed"] += changed.num_rows
        self._counts["same"] += both.num_rows - changed.num_rows
        self._added = self._first(self._added + self._some(added))
        self._removed = self._first(self._removed + self._some(removed))
        self._changed = self._first(self._changed + self._named(changed, columns))

    def difference(self) -> Difference:
        counts = self._counts
        return Difference(
            sorted(self._added),
            sorted(self._removed),
            sorted(self._changed),
            counts["same"],
            counts["added"],
            counts["removed"],
            counts["changed"],
            {column: count for column, count in self._kinds.items() if count},
        )

    def _first(self, values: list[T]) -> list[T]:
        return values if self._limit is None else heapq.nsmallest(self._limit, values)

    def _some(self, paths: pa.ChunkedArray) -> list[bytes]:
        """As Python values, at most `limit`."""
        if self._limit is not None and len(paths) > self._limit:
            paths = paths.take(pc.array_sort_indices(paths)[: self._limit])
        values: list[bytes] = paths.to_pylist()
        return values

    def _named(self, changed: pa.Table, columns: tuple[str, ...]) -> list[tuple[bytes, tuple[str, ...]]]:
        if self._limit is not None and changed.num_rows > self._limit:
            changed = changed.take(pc.array_sort_indices(changed["path"])[: self._limit])
        return [
            (row["path"], tuple(column for column in columns if row[column])) for row in changed.to_pylist()
        ]


def _without(table: pa.Table, other: pa.Table) -> pa.ChunkedArray:
    """Paths of `table` that are not in `other`."""
    if other.num_rows == 0:
        return table["path"]
    return table.filter(pc.invert(pc.is_in(table["path"], other["path"].combine_chunks())))["path"]


def _dealt(
    catalog: Catalog, columns: tuple[str, ...], shares: int, stack: ExitStack
) -> Callable[[int], pa.Table]:
    """A function from the number of a share to its entries."""
    schema = _comparable(ENTRIES.empty_table(), columns).schema
    if shares == 1:
        pieces = list(_pieces(catalog, columns))
        return lambda number: pa.Table.from_batches([b for _, t in pieces for b in t.to_batches()], schema)
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="waystage-diff-")))
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with ExitStack() as files:
        writers = [
            files.enter_context(pa.ipc.new_file(str(folder / str(number)), schema, options=options))
            for number in range(shares)
        ]
        for hashes, table in _gathered(_pieces(catalog, columns)):
            # Sorted by share, each writer takes one run.
            share = (hashes % np.uint64(shares)).astype(np.int64)
            order = np.argsort(share, kind="stable")
            ends = np.searchsorted(share[order], np.arange(shares + 1))
            table = table.take(pa.array(order))
            for number in range(shares):
                if ends[number + 1] > ends[number]:
                    writers[number].write_table(table.slice(ends[number], ends[number + 1] - ends[number]))

    def read(number: int) -> pa.Table:
        path = folder / str(number)
        with pa.ipc.open_file(str(path)) as file:
            table = file.read_all()
        path.unlink()
        return table

    return read


def _gathered(pieces: Iterator[tuple[NDArray[Any], pa.Table]]) -> Iterator[tuple[NDArray[Any], pa.Table]]:
    """Larger pieces: each is cut into as many runs as there are shares, and a run of a few rows costs as much as
    one of thousands."""
    hashes: list[NDArray[Any]] = []
    tables: list[pa.Table] = []
    rows = 0
    for some, table in pieces:
        hashes.append(some)
        tables.append(table)
        rows += table.num_rows
        if rows >= DEALT_ROWS:
            yield np.concatenate(hashes), pa.concat_tables(tables)
            hashes, tables, rows = [], [], 0
    if tables:
        yield np.concatenate(hashes), pa.concat_tables(tables)


def _pieces(catalog: Catalog, columns: tuple[str, ...]) -> Iterator[tuple[NDArray[Any], pa.Table]]:
    seconds = {f"{column}_seconds" for column in columns if column in TIMES}
    read = sorted({"directory", "name", "mtime", *columns, *seconds})
    for batch in catalog.batches(read):
        yield path_hashes(batch), _comparable(pa.Table.from_batches([batch]), columns)


def _comparable(table: pa.Table, columns: tuple[str, ...]) -> pa.Table:
    made: dict[str, pa.ChunkedArray] = {"path": paths_of(table)}
    for column in columns:
        values = table[column]
        if column == "type":
            values = values.cast(pa.string())
        elif column == "ctime":
            values = pc.coalesce(values, table["mtime"])
        made[column] = values
        if column in TIMES:
            made[f"{column}_seconds"] = table[f"{column}_seconds"]
    return pa.table(made)


def _differs(left: pa.ChunkedArray, right: pa.ChunkedArray) -> pa.ChunkedArray:
    """Whether values differ, with null as a value."""
    unequal = pc.fill_null(pc.not_equal(left, right), False)
    return pc.or_(unequal, pc.xor(left.is_null(), right.is_null()))
