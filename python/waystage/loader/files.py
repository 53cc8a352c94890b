"""The files to read: from a catalog, or from a walk of a tree.

Arrives: a catalog or a tree, and how much is to be known of its files.
Leaves: columns of files in the data plane's memory; no Python object for any file.
Must not know: who reads them, in which order.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from waystage._native import ENTRY_TYPES, LAYOUT_KINDS, LoadFiles, TreeWalk
from waystage.catalog import Catalog
from waystage.catalog.schema import OBJECT
from waystage.catalog.store import MANIFEST
from waystage.display import display
from waystage.loader.errors import LoaderError

Mode = Literal["catalog", "object", "file"]
"""Where the files and their layouts come from: a catalog; a walk that asks every file for its layout; a walk alone."""

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

WAIT_S = 0.2
UNKNOWN_TARGET = 2**32 - 1

Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class FileSet:
    """Files to read, and what they are called where a state or a report names them."""

    files: LoadFiles
    root: Path
    identity: str
    """Differs between different files in all likelihood: a state is good for the files it was saved with."""
    targets: dict[int, str]
    """The names of storage targets, by number."""
    mode: Mode


def is_catalog(source: Path) -> bool:
    """Whether a folder is a catalog and not a tree."""
    return (source / MANIFEST).is_file()


def file_set(
    source: Path,
    mode: Mode | None = None,
    *,
    tree: Path | None = None,
    threads: int = 8,
    progress: Progress | None = None,
) -> FileSet:
    """The regular files of a catalog or a tree.

    A catalog is used as one unless `mode` says that its tree is to be walked. `tree` is where the catalogued tree lies on
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
            files.extend(**_columns(batch))
    identity = f"catalog-{catalog.identity}"
    return FileSet(files, root, identity, _names(catalog.manifest.targets), "catalog")


def _walked(root: Path, mode: Mode, threads: int, progress: Progress | None) -> FileSet:
    try:
        walk = TreeWalk(root, threads=threads, layouts="each" if mode == "object" else None)
    except OSError as error:
        raise LoaderError(
            f"{display(str(root))} cannot be read as a tree: {error.strerror or error}"
        ) from None
    files = LoadFiles(root)
    try:
        while True:
            batch, ended = walk.next(WAIT_S)
            if batch is not None:
                entries, directories, _ = batch.take()
                if len(entries["size"]):
                    files.extend(**_walked_columns(entries, directories))
            if progress is not None:
                progress(f"{walk.counts()['entries']:,} entries walked", 0.0)
            if ended:
                break
        targets = _names(walk.targets())
    finally:
        walk.stop()
    # Threads find directories in any order; every process must number the files alike.
    files.sort()
    return FileSet(files, root, f"tree-{files.fingerprint():016x}", targets, mode)


def _walked_columns(entries: dict[str, Any], directories: dict[str, Any]) -> dict[str, Any]:
    same = ("directory", "size", "mtime", "ctime", "inode", "generation", "objects")
    return {
        "directories": (directories["path_offsets"], directories["path_data"]),
        "names": (entries["name_offsets"], entries["name_data"]),
        "kind": entries["type"],
        "layout": entries["layout_kind"],
        **{name: entries[name] for name in same},
        **{name: entries[name] for name in ("object_target", "object_offset", "object_length")},
    }


def _names(targets: list[tuple[int, str]]) -> dict[int, str]:
    return dict(targets) | {UNKNOWN_TARGET: "unknown"}


def _columns(batch: pa.RecordBatch) -> dict[str, Any]:
    """What `LoadFiles.extend` takes, of a batch of a catalog: the batch's own memory wherever it can be."""
    directory = batch["directory"]
    if not isinstance(directory, pa.DictionaryArray):
        directory = directory.dictionary_encode()
    objects = batch["objects"]
    held = objects.values
    mtime = batch["mtime"].cast(pa.int64())
    return {
        "directories": strings(directory.dictionary),
        "directory": _numbers(directory.indices, np.int32),
        "kind": _indices(batch["type"], ENTRY_TYPES),
        "names": strings(batch["name"]),
        "size": _numbers(batch["size"], np.int64),
        "mtime": _numbers(mtime, np.int64),
        "ctime": _numbers(pc.coalesce(batch["ctime"].cast(pa.int64()), mtime), np.int64),
        "inode": _numbers(batch["inode"], np.uint64),
        "layout": _indices(batch["layout"], LAYOUT_KINDS),
        "generation": _numbers(pc.fill_null(batch["layout_generation"], 0), np.uint32),
        "objects": _numbers(objects.offsets, np.int32),
        **{
            f"object_{field.name}": _numbers(held.field(index), field.type.to_pandas_dtype())
            for index, field in enumerate(OBJECT)
        },
    }


def _numbers(array: pa.Array, kind: Any) -> NDArray[Any]:
    numbers: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return np.ascontiguousarray(numbers, dtype=kind)


def _indices(array: pa.Array, words: list[str]) -> NDArray[np.int8]:
    """The index of each word in `words`, -1 where there is none."""
    if not isinstance(array, pa.DictionaryArray):
        array = array.dictionary_encode()
    # A null of the indices becomes the last place, which is none.
    known = [words.index(word) if word in words else -1 for word in array.dictionary.to_pylist()]
    table = np.array([*known, -1], np.int8)
    numbers = pc.fill_null(array.indices, len(known)).to_numpy(zero_copy_only=False)
    return np.ascontiguousarray(table[numbers])


def strings(array: pa.Array) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """The offsets and bytes of an array of byte strings, without a copy."""
    _, offsets, data = array.buffers()
    if offsets is None:
        return np.zeros(1, np.int32), np.zeros(0, np.uint8)
    all_offsets = np.frombuffer(offsets, np.int32)
    held = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(0, np.uint8)
    return all_offsets[array.offset : array.offset + len(array) + 1], held
