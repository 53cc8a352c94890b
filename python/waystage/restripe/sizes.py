"""The sizes of the files of a tree or a catalog.

Arrives: a tree or a catalog, patterns to leave out.
Leaves: an array of sizes.
Must not know: what they are for.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from waystage._native import ENTRY_TYPES
from waystage.catalog import Catalog
from waystage.catalog.store import is_catalog
from waystage.catalog.walking import batches, start_walk
from waystage.native_options.walks import WalkOptions
from waystage.task import Progress

THREADS = 8


def sizes_of(source: Path, exclude: Sequence[str], progress: Progress | None = None) -> NDArray[np.int64]:
    """Bytes of each regular file, shape (files,). Raises CatalogError, SourceMissing."""
    found: list[NDArray[np.int64]] = []
    if is_catalog(source):
        for batch in Catalog(source).batches(["type", "size"]):
            kinds = np.array(batch.column("type").cast("string").to_pylist())
            sizes = np.asarray(batch.column("size").to_numpy(zero_copy_only=False), np.int64)
            found.append(sizes[kinds == "f"] if len(kinds) else sizes[:0])
    else:
        file = ENTRY_TYPES.index("f")
        options = WalkOptions(threads=THREADS, exclude=[os.fsencode(pattern) for pattern in exclude])
        for walked in batches(start_walk(source, options), progress):
            entries, _, _ = walked.take()
            found.append(np.asarray(entries["size"], np.int64)[np.asarray(entries["type"]) == file])
    return np.concatenate(found) if found else np.empty(0, np.int64)
