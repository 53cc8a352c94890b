"""The regular files of a tree or of a catalog, as columns, for utilities that read them.

Arrives: a tree or a catalog, patterns to leave out.
Leaves: one Arrow table; no Python object for any file.
Must not know: what is done with the files.

A catalog's tree is not walked, and nothing of it looked at: that is what a catalog is for.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from waystage._native import excluded_paths
from waystage.catalog.options import BuildOptions
from waystage.catalog.ranges import Range, rows_of
from waystage.catalog.schema import directories_table, entries_table
from waystage.catalog.store import Catalog, is_catalog, of_type, paths_of
from waystage.catalog.walking import batches, start_walk
from waystage.native_options.walks import WalkOptions
from waystage.task import Progress

COLUMNS = [
    "directory",
    "name",
    "type",
    "size",
    "mtime",
    "ctime",
    "inode",
    "device",
    "links",
    "blocks",
    "objects",
]

FILES = pa.schema(
    [
        pa.field("path", pa.large_binary()),
        pa.field("size", pa.int64()),
        pa.field("mtime", pa.int64()),
        pa.field("ctime", pa.int64()),
        pa.field("inode", pa.uint64()),
        pa.field("device", pa.uint64()),
        pa.field("links", pa.uint32()),
        pa.field("blocks", pa.int64()),
        pa.field("target", pa.uint32()),
    ]
)
"""Paths below the root; times in ns since 1970; the storage target of a file's first byte, 0 where it is unknown."""

WAIT_S = 0.2


@dataclass(frozen=True)
class TreeFiles:
    """The files found, and errors."""

    root: Path
    table: pa.Table
    excluded: int = 0
    errors: list[tuple[bytes, str]] = field(default_factory=list)
    catalog: Path | None = None
    """Their catalog; None where the tree was walked."""

    def only(self, which: NDArray[np.bool_]) -> TreeFiles:
        """The files that a mask selects."""
        return TreeFiles(
            self.root, self.table.filter(pa.array(which)), self.excluded, self.errors, self.catalog
        )

    def target_names(self) -> list[str]:
        """The storage targets of their catalog; none where it has none, or the tree was walked."""
        return [] if self.catalog is None else [name for _, name in Catalog(self.catalog).manifest.targets]

    def once(self) -> TreeFiles:
        """Each file by one of its names: no file is read twice."""
        several = np.flatnonzero(self.table["links"].to_numpy() > 1)
        which = np.ones(self.table.num_rows, np.bool_)
        if len(several):
            inodes = self.table.select(["device", "inode"]).take(pa.array(several))
            keys = np.stack([inodes["device"].to_numpy(), inodes["inode"].to_numpy()], axis=1)
            _, first = np.unique(keys, axis=0, return_index=True)
            which[several] = False
            which[several[first]] = True
        return self.only(which)

    def share(self, parts: int) -> NDArray[np.uint64]:
        """The part of each file, from 0 to `parts` - 1: the same for all names of a file, on every node."""
        mixed = self.table["inode"].to_numpy().astype(np.uint64)
        # splitmix64's last steps: inode numbers that follow one another must not follow one another's parts.
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        part: NDArray[np.uint64] = (mixed ^ (mixed >> np.uint64(31))) % np.uint64(parts)
        return part


def files_of(
    source: Path,
    exclude: tuple[str, ...] = (),
    *,
    one_file_system: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
    part: tuple[int, int] | None = None,
    linked: bool = False,
) -> TreeFiles:
    """The regular files of `source`, a tree or a catalog; with `part`, (number, of), only those of a part; with `linked`, of
    a catalog, only those with several names.

    Raises BuildError or CatalogError.
    """
    patterns = [os.fsencode(pattern) for pattern in exclude]
    if is_catalog(source):
        return _of_catalog(source, patterns, progress, part, linked=linked)
    options = BuildOptions(threads)
    root = Path(os.path.abspath(source))
    walk = start_walk(
        root,
        WalkOptions(threads=options.thread_count(), exclude=patterns, one_file_system=one_file_system),
    )
    tables: list[pa.Table] = []
    errors: list[tuple[bytes, str]] = []

    for batch in batches(walk, progress):
        entries, directories, failed = batch.take()
        errors += failed
        found = directories_table(directories, entries)["path"].combine_chunks()
        tables.append(_regular(entries_table(entries, found)))
    excluded = walk.progress()["excluded"]
    files = TreeFiles(root, _joined(tables), excluded, errors)
    return files if part is None else files.only(files.share(part[1]) == part[0])


def files_in(catalog: Path, root: Path, ranges: Iterable[Range], exclude: tuple[str, ...] = ()) -> TreeFiles:
    """The regular files with one name in ranges of a catalog, which may not be finished, of the tree `root`. Raises
    CatalogError."""
    patterns = [os.fsencode(pattern) for pattern in exclude]
    tables: list[pa.Table] = []
    excluded = 0
    for of in ranges:
        found, left_out = _without(patterns, _regular(rows_of(str(catalog), of, COLUMNS)))
        tables.append(found.filter(pc.less_equal(found["links"], 1)))
        excluded += left_out
    return TreeFiles(root, _joined(tables), excluded, [])


def _without(patterns: list[bytes], table: pa.Table) -> tuple[pa.Table, int]:
    """The files that no pattern leaves out, and how many one does."""
    if not patterns:
        return table, 0
    left_out = excluded_paths(patterns, *path_columns(table))
    return table.filter(pa.array(~left_out)), int(left_out.sum())


def columns_for_reading(
    table: pa.Table,
) -> tuple[
    NDArray[np.int64],
    NDArray[np.uint8],
    NDArray[np.int64],
    NDArray[np.int64],
    NDArray[np.int64],
    NDArray[np.uint64],
    NDArray[np.uint64],
    NDArray[np.uint32],
    NDArray[np.uint32],
]:
    """The columns that the data plane reads: path offsets, paths, sizes, mtimes, ctimes, inodes, devices, links,
    targets."""
    offsets, data = path_columns(table)
    numbers = [
        table[name].to_numpy() for name in ("size", "mtime", "ctime", "inode", "device", "links", "target")
    ]
    size, mtime, ctime, inode, device, links, target = (np.ascontiguousarray(n) for n in numbers)
    return offsets, data, size, mtime, ctime, inode, device, links, target


def path_columns(table: pa.Table) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """The paths as offsets and bytes."""
    paths = table["path"].combine_chunks()
    if isinstance(paths, pa.ChunkedArray):
        paths = pa.concat_arrays(paths.chunks) if paths.num_chunks else pa.array([], pa.large_binary())
    _, offsets, data = paths.buffers()
    if offsets is None or len(paths) == 0:
        return np.zeros(1, np.int64), np.zeros(0, np.uint8)
    held = np.frombuffer(offsets, np.int64)[paths.offset : paths.offset + len(paths) + 1]
    return held, np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(0, np.uint8)


def _of_catalog(
    source: Path,
    patterns: list[bytes],
    progress: Progress | None,
    part: tuple[int, int] | None,
    *,
    linked: bool,
) -> TreeFiles:
    catalog = Catalog(source)
    tables: list[pa.Table] = []
    seen = excluded = 0
    for batch in catalog.batches(COLUMNS, which=pc.field("links") > 1 if linked else None):
        table, left_out = _without(patterns, _regular(pa.Table.from_batches([batch])))
        excluded += left_out
        if part is not None:
            # At once: a part of a large catalog fits into memory where the whole does not.
            piece = TreeFiles(catalog.root, table)
            table = piece.only(piece.share(part[1]) == part[0]).table
        tables.append(table)
        seen += batch.num_rows
        if progress is not None:
            progress(f"{seen:,} entries", 0.0)
    return TreeFiles(catalog.root, _joined(tables), excluded, [], source)


def _regular(entries: pa.Table) -> pa.Table:
    """The regular files among entries, with the columns of FILES."""
    files = entries.filter(of_type(entries, "f"))
    mtime = files["mtime"].cast(pa.int64())
    made = {
        "path": paths_of(files).cast(pa.large_binary()),
        "mtime": mtime,
        "ctime": pc.coalesce(files["ctime"].cast(pa.int64()), mtime),
        "target": pa.array(_targets(files["objects"])),
    }
    columns = [made[field.name] if field.name in made else files[field.name] for field in FILES]
    return pa.table(columns, schema=FILES)


def _targets(objects: pa.ChunkedArray) -> NDArray[np.uint32]:
    """The target of each file's first object, 0 where it has none."""
    found = [np.zeros(0, np.uint32)]
    for chunk in objects.chunks:
        first = np.zeros(len(chunk), np.uint32)
        if chunk.null_count < len(chunk):
            lengths = pc.fill_null(pc.list_value_length(chunk), 0).to_numpy(zero_copy_only=False)
            starts = np.concatenate([[0], np.cumsum(lengths)])[:-1].astype(np.int64)
            held = lengths > 0
            targets = chunk.flatten().field("target").to_numpy(zero_copy_only=False)
            first[held] = targets[starts[held]]
        found.append(first)
    return np.concatenate(found)


def _joined(tables: list[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables) if tables else FILES.empty_table()
