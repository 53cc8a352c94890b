"""Catalogued files opened with a check, and entries compared with the file system.

Arrives: a catalog; entries of it.
Leaves: open files with their present state; how entries differ, counted by kind; the paths of stale entries.
Must not know: what is read from the files.

A catalog is as old as its walk. Opening a file by it compares the file with the catalog: size, times, inode and,
where the file system keeps one, the layout's generation are compared, and where anything differs what the file
system says now takes the entry's place. `waystage.catalog.refresh(path, stale=...)` updates the catalog from the
paths collected here.
"""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from waystage._native import CHECK_KINDS, ENTRY_TYPES, LAYOUT_KINDS, CheckedTree, hash_paths
from waystage.catalog.columns import directory_columns, entry_columns, strings
from waystage.catalog.errors import SourceMissing
from waystage.catalog.options import BuildOptions
from waystage.catalog.store import Catalog, paths_of
from waystage.display import display
from waystage.task import Progress

LOOKED_AT = ["directory", "name", "type", "size", "mtime", "ctime", "inode"]
ENTRY_COLUMNS = [*LOOKED_AT, "layout", "layout_generation", "stripe_size", "objects"]
"""The columns that `entries_of` needs."""

TOGETHER = 1 << 14
"""Entries that one thread checks at a time."""

WAITING = 4
"""Pieces queued for each thread, which bounds memory."""


@dataclass(frozen=True)
class Entry:
    """An entry of a catalog. Times are ns since 1970; `objects` are (target, offset, length)."""

    path: bytes
    type: str
    size: int
    mtime: int
    ctime: int
    inode: int
    layout: str | None = None
    layout_generation: int = 0
    stripe_size: int = 0
    objects: tuple[tuple[int, int, int], ...] = ()


@dataclass(frozen=True)
class CheckedFile:
    """An open file. `entry` is the catalog's, or its present state where that was stale."""

    file: io.FileIO
    entry: Entry
    differences: tuple[str, ...]
    """How the catalog's entry differed, of CHECK_KINDS; empty where it was valid."""

    def __enter__(self) -> CheckedFile:
        return self

    def __exit__(self, *exception: object) -> None:
        self.file.close()


class CheckedOpener:
    """Opens files of a catalog; thread-safe. Raises BuildError where the tree is gone."""

    def __init__(self, catalog: Catalog) -> None:
        try:
            self._tree = CheckedTree(catalog.root)
        except OSError as error:
            raise SourceMissing(
                f"{display(catalog.manifest.root)}, which {catalog.path} is of, cannot be opened: {os.strerror(error.errno or 0)}"
            ) from None
        self.root = catalog.root

    @property
    def tree(self) -> CheckedTree:
        """The checker itself, for many files at once, with columns."""
        return self._tree

    def open(self, entry: Entry) -> CheckedFile:
        """Open the regular file of an entry, for reading.

        Raises OSError where the file is gone or cannot be opened; that is counted as a stale entry, too.
        """
        layout = -1 if entry.layout is None else LAYOUT_KINDS.index(entry.layout)
        recorded = (
            ENTRY_TYPES.index(entry.type), entry.size, entry.mtime, entry.ctime, entry.inode,
            layout, entry.layout_generation,
        )  # fmt: skip
        fd, bits, now, fresh, number = self._tree.open(entry.path, recorded)
        if fd is None or now is None:
            what = "is no longer a regular file" if number == errno.EINVAL else os.strerror(number)
            raise OSError(number, what, os.path.join(self.root, os.fsdecode(entry.path)))
        file = io.FileIO(fd, "rb")
        if not bits:
            return CheckedFile(file, entry, ())
        kind, size, mtime, ctime, inode = now
        laid_out = fresh or {}
        objects = tuple(laid_out.pop("objects", ()))
        made = Entry(entry.path, ENTRY_TYPES[kind], size, mtime, ctime, inode, **laid_out, objects=objects)
        return CheckedFile(file, made, kinds(bits))

    def counts(self) -> dict[str, int]:
        """`checked`, `stale`, and how many entries differed in each of CHECK_KINDS."""
        return self._tree.counts()

    def stale_paths(self) -> tuple[list[bytes], bool]:
        """Paths of stale entries, at most 100,000, and whether the list is complete: `stale` of `refresh`."""
        return self._tree.stale_paths()


@dataclass(frozen=True)
class Checked:
    """The result of checking many entries."""

    counts: dict[str, int]
    stale: list[bytes]
    complete: bool
    """Whether `stale` is complete."""

    def __bool__(self) -> bool:
        return self.counts["stale"] > 0


def kinds(bits: int) -> tuple[str, ...]:
    """The names of a set of differences."""
    return tuple(name for number, name in enumerate(CHECK_KINDS) if bits >> number & 1)


def entries_of(table: pa.Table | pa.RecordBatch) -> Iterator[Entry]:
    """Entries as objects, from a table with ENTRY_COLUMNS."""
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    mtime = table["mtime"].cast(pa.int64())
    columns = [
        paths_of(table),
        table["type"].cast(pa.string()),
        table["size"],
        mtime,
        pc.coalesce(table["ctime"].cast(pa.int64()), mtime),
        table["inode"],
        table["layout"].cast(pa.string()),
        pc.fill_null(table["layout_generation"], 0),
        pc.fill_null(table["stripe_size"], 0),
        table["objects"],
    ]
    for *values, held in zip(*(column.to_pylist() for column in columns), strict=True):
        path, kind, size, moment, ctime, inode, layout, generation, stripe = values
        objects = tuple((o["target"], o["offset"], o["length"]) for o in held or ())
        yield Entry(path, kind, size, moment, ctime, inode, layout, generation, stripe, objects)


def check(
    catalog: Catalog,
    *,
    sample: int | None = None,
    threads: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Checked:
    """Check every entry, or about `sample` of them chosen at random, without reading a directory.

    Quicker than a walk where few are looked at; finds what changed or went, not what is new, and not layouts.
    """
    tree = CheckedOpener(catalog).tree
    rng = np.random.default_rng(seed)
    share = 1.0 if sample is None else min(1.0, sample / max(1, catalog.rows))
    workers = BuildOptions(threads=threads).thread_count()
    done = 0
    with ThreadPoolExecutor(workers) as pool:
        waiting: list[Any] = []
        try:
            for batch in catalog.batches(LOOKED_AT, rows=TOGETHER):
                done += batch.num_rows
                if share < 1.0:
                    batch = batch.filter(pa.array(rng.random(batch.num_rows) < share))
                if batch.num_rows:
                    waiting.append(pool.submit(_look_at, tree, batch))
                while len(waiting) > WAITING * workers:
                    waiting.pop(0).result()
                if progress is not None:
                    progress(f"{tree.counts()['checked']:,} entries", done / max(1, catalog.rows))
            for future in waiting:
                future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    stale, complete = tree.stale_paths()
    return Checked(tree.counts(), sorted(stale), complete)


def path_hashes(batch: pa.RecordBatch) -> NDArray[np.uint64]:
    """A hash of each path, from the columns `directory` and `name`."""
    directories, directory = directory_columns(batch)
    return hash_paths(directories, directory, strings(batch["name"]))


def _look_at(tree: CheckedTree, batch: pa.RecordBatch) -> None:
    tree.check(entry_columns(batch))
