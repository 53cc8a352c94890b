"""The files to read: from a catalog, or from a walk of a tree.

Arrives: a catalog or a tree, and which information on its files is needed.
Leaves: columns of files in the data plane's memory; no Python object for any file.
Must not know: who reads them, in which order.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from waystage._native import LAYOUT_KINDS, LoadFiles
from waystage.catalog import Catalog
from waystage.catalog.columns import entry_columns, indices, numbers
from waystage.catalog.errors import SourceMissing
from waystage.catalog.schema import OBJECT
from waystage.catalog.store import is_catalog
from waystage.catalog.walking import batches, start_walk
from waystage.display import display
from waystage.loader.errors import LoaderError
from waystage.native_options.walks import WalkOptions
from waystage.task import Progress

if TYPE_CHECKING:
    from waystage._native import _FileColumns

Mode = Literal["catalog", "object", "file"]
"""The source of files and layouts: a catalog; a walk that reads the layout of every file; a walk without layouts."""

COLUMNS = [
    "directory",
    "name",
    "type",
    "size",
    "mtime",
    "ctime",
    "inode",
    "layout",
    "layout_generation",
    "objects",
]

UNKNOWN_TARGET = 2**32 - 1


@dataclass(frozen=True)
class FileSet:
    """Files to read, with the names that states and reports use."""

    files: LoadFiles
    root: Path
    identity: str
    """A fingerprint of the files: a state is valid only for the files that it was saved with."""
    targets: dict[int, str]
    """The names of storage targets, by number."""
    mode: Mode


def file_set(
    source: Path,
    mode: Mode | None = None,
    *,
    tree: Path | None = None,
    threads: int = 8,
    progress: Progress | None = None,
) -> FileSet:
    """The regular files of a catalog or a tree.

    A catalog is used as one unless `mode` says that its tree is to be walked. `tree` is where the catalogued tree is on
    this machine, if not where it was. Raises LoaderError and CatalogError.
    """
    catalog = Catalog(source) if is_catalog(source) else None
    if mode is None:
        mode = "catalog" if catalog is not None else "object"
    if mode == "catalog":
        if catalog is None:
            raise LoaderError(
                f"{display(str(source))} is no catalog: build one, or walk it by mode object or file"
            )
        return _catalogued(catalog, tree)
    root = tree or (catalog.root if catalog is not None else Path(os.path.abspath(source)))
    return _walked(root, mode, threads, progress)


def _catalogued(catalog: Catalog, tree: Path | None) -> FileSet:
    root = tree or catalog.root
    files = LoadFiles(root)
    for batch in catalog.batches(COLUMNS):
        if batch.num_rows:
            files.extend(_columns(batch))
    identity = f"catalog-{catalog.identity}"
    return FileSet(files, root, identity, _names(catalog.manifest.targets), "catalog")


def _walked(root: Path, mode: Mode, threads: int, progress: Progress | None) -> FileSet:
    options = WalkOptions(threads=threads, layouts="each" if mode == "object" else None)

    try:
        walk = start_walk(root, options)
    except SourceMissing as error:
        raise LoaderError(str(error)) from None
    files = LoadFiles(root)
    for batch in batches(walk, progress, lambda counts: (f"{counts['entries']:,} entries walked", 0.0)):
        entries, directories, _ = batch.take()
        if len(entries["size"]):
            files.extend(_walked_columns(entries, directories))
    targets = _names(walk.targets())
    # Threads find directories in any order; every process must number the files alike.
    files.sort()
    return FileSet(files, root, f"tree-{files.fingerprint():016x}", targets, mode)


def _walked_columns(entries: dict[str, Any], directories: dict[str, Any]) -> _FileColumns:
    return {
        "directories": (directories["path_offsets"], directories["path_data"]),
        "directory": entries["directory"],
        "names": (entries["name_offsets"], entries["name_data"]),
        "kind": entries["type"],
        "size": entries["size"],
        "mtime": entries["mtime"],
        "ctime": entries["ctime"],
        "inode": entries["inode"],
        "layout": entries["layout_kind"],
        "generation": entries["generation"],
        "objects": entries["objects"],
        "object_target": entries["object_target"],
        "object_offset": entries["object_offset"],
        "object_length": entries["object_length"],
    }


def _names(targets: list[tuple[int, str]]) -> dict[int, str]:
    return dict(targets) | {UNKNOWN_TARGET: "unknown"}


def _columns(batch: pa.RecordBatch) -> _FileColumns:
    """What `LoadFiles.extend` takes, of a batch of a catalog."""
    objects = batch["objects"]
    held = {field.name: objects.values.field(index) for index, field in enumerate(OBJECT)}
    return {
        **entry_columns(batch),
        "layout": indices(batch["layout"], LAYOUT_KINDS),
        "generation": numbers(pc.fill_null(batch["layout_generation"], 0), np.uint32),
        "objects": numbers(objects.offsets, np.int32),
        "object_target": numbers(held["target"], np.uint32),
        "object_offset": numbers(held["offset"], np.int64),
        "object_length": numbers(held["length"], np.int64),
    }
