"""Catalogs of files that do not exist, written as a build writes them. Used by `catalog` and `first-batch`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from waystage.bench import timed
from waystage.catalog.parts import PartWriter
from waystage.catalog.schema import DIRECTORIES, ENTRIES, directories_table, entries_table
from waystage.catalog.store import MANIFEST, Manifest, Part

Columns = dict[str, NDArray[Any]]

DEVICE = 66_306


def write_catalog(folder: Path, root: str, count: int, batches: Iterable[tuple[Columns, Columns]]) -> float:
    """One part of `count` entries from batches of entries and their directories; returns the seconds that writing
    took.
    """
    folder.mkdir()
    part = Part(0, count)
    took = 0.0
    with (
        PartWriter(folder / part.entries, ENTRIES) as entries,
        PartWriter(folder / part.directories, DIRECTORIES) as directories,
    ):

        def write(rows: Columns, folders: Columns) -> None:
            found = directories_table(folders, rows)
            entries.write(entries_table(rows, found["path"].combine_chunks()))
            directories.write(found)

        for rows, folders in batches:
            took += timed(lambda rows=rows, folders=folders: write(rows, folders))["seconds"]  # type: ignore[misc]
    Manifest(root, parts=[part]).save(folder / MANIFEST)
    return took


def entry_columns(names: list[bytes], **given: NDArray[Any]) -> Columns:
    """Regular files with names of equal length, as the walk gives them; `given` has what differs from file to file."""
    count = len(names)
    mtime = given["mtime"]
    return {
        "name_offsets": np.arange(count + 1, dtype=np.int32) * len(names[0]),
        "name_data": np.frombuffer(b"".join(names), np.uint8),
        "type": np.zeros(count, np.int8),
        "ctime": mtime,
        "atime": mtime,
        "mode": np.full(count, 0o640, np.uint16),
        "uid": np.full(count, 1000, np.uint32),
        "gid": np.full(count, 1000, np.uint32),
        "device": np.full(count, DEVICE, np.uint64),
        "links": np.ones(count, np.uint32),
        "blocks": -(-given["size"] // 4096) * 8,
        "symlink_offsets": np.zeros(count + 1, np.int32),
        "symlink_data": np.zeros(0, np.uint8),
        "layout_kind": np.zeros(count, np.int8),
        "stripe_size": np.full(count, 1 << 20, np.int64),
        "generation": np.zeros(count, np.uint32),
        # Times that nanoseconds do not reach: none.
        "beyond_row": np.zeros(0, np.int64),
        "beyond_which": np.zeros(0, np.int8),
        "beyond_seconds": np.zeros(0, np.int64),
        **given,
    }


def directory_columns(paths: list[bytes], directory: NDArray[np.int32], total: int, time_ns: int) -> Columns:
    """Directories with paths of equal length and `total` entries each, of which the batch has those in `directory`."""
    ones = np.ones(len(paths), np.int64)
    return {
        "path_offsets": np.arange(len(paths) + 1, dtype=np.int32) * len(paths[0]),
        "path_data": np.frombuffer(b"".join(paths), np.uint8),
        "inode": (ones * 7).astype(np.uint64),
        "device": (ones * DEVICE).astype(np.uint64),
        "mtime": ones * time_ns,
        "ctime": ones * time_ns,
        "mode": (ones * 0o750).astype(np.uint16),
        "uid": (ones * 1000).astype(np.uint32),
        "gid": (ones * 1000).astype(np.uint32),
        "rows": np.bincount(directory, minlength=len(paths)).astype(np.int64),
        "total": ones * total,
        "state": np.zeros(len(paths), np.int8),
    }
