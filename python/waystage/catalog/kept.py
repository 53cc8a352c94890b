"""Which earlier parts may be kept.

Arrives: parts and the directories they are of.
Leaves: the directories that a walk need not read again where they have not changed; parts without what did change.
Must not know: walks, names of catalogs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from waystage.catalog.parts import PartWriter, give_name, new_tag
from waystage.catalog.schema import DIRECTORIES, ENTRIES
from waystage.catalog.store import Manifest, Part, held, of_type, paths_of, read_directories

DOUBTFUL_S = 2.0
"""Network file systems count times in seconds: a directory that changed this shortly before its walk began may have
changed again within the same tick, and its time would not tell."""

Known = tuple[
    NDArray[np.int64], bytes, NDArray[np.uint64], NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]
]
"""Path offsets, paths, inodes, devices, mtimes and ctimes, as the walk takes them."""


@dataclass(frozen=True)
class Kept:
    """The directories of earlier parts that are complete."""

    known: Known | None

    @classmethod
    def none(cls) -> Kept:
        return cls(None)


def known_directories(folder: Path, manifest: Manifest, doubted: frozenset[bytes] = frozenset()) -> Kept:
    """The directories whose entries are completely in the parts, once, and whose times are reliable.

    None of `doubted`: a file in each of these is known to be stale.
    """
    rows = read_directories(folder, manifest.parts)
    rows = rows.filter(pc.equal(rows["state"], 0))
    # A directory's inode and times differ between two readings; grouped by them, each reading stands alone, and a
    # directory read twice is not known at all.
    groups = rows.group_by(["path"]).aggregate(
        [("rows", "sum"), ("total", "max"), ("inode", "min"), ("device", "min")]
        + [(name, how) for name in ("mtime", "ctime") for how in ("min", "max")]
    )
    complete = pc.and_(
        pc.equal(groups["rows_sum"], groups["total_max"]),
        pc.and_(
            pc.equal(groups["mtime_min"], groups["mtime_max"]),
            pc.equal(groups["ctime_min"], groups["ctime_max"]),
        ),
    )
    limit = int((manifest.started - DOUBTFUL_S) * 1e9)
    old = pc.less(groups["ctime_max"].cast(pa.int64()), limit)
    # Unreliable ones stay in the list with an inode that no directory has: their parents lead to them.
    reliable = _numpy(pc.and_(complete, old)).astype(bool)
    if doubted:
        reliable &= ~_numpy(pc.is_in(groups["path"], pa.array(sorted(doubted), pa.binary()))).astype(bool)
    inodes = np.where(reliable, _numpy(groups["inode_min"]), 0).astype(np.uint64)
    columns = (
        inodes,
        _numpy(groups["device_min"]).astype(np.uint64),
        _numpy(groups["mtime_max"].cast(pa.int64())),
        _numpy(groups["ctime_max"].cast(pa.int64())),
    )
    unread = _directories_never_read(folder, manifest.parts, groups["path"])
    paths = groups["path"].to_pylist() + unread
    offsets = np.zeros(len(paths) + 1, np.int64)
    np.cumsum([len(path) for path in paths], out=offsets[1:])
    filler = len(unread)
    inode, device, mtime, ctime = (np.concatenate([c, np.zeros(filler, c.dtype)]) for c in columns)
    return Kept((offsets, b"".join(paths), inode, device, mtime, ctime))


def _directories_never_read(folder: Path, parts: list[Part], read: pa.ChunkedArray) -> list[bytes]:
    """Directories that are entries but have not been read: they are tried again."""
    found: list[bytes] = []
    for part in parts:
        file = held(part.entries, ENTRIES, part, folder)
        table = file.read(columns=["directory", "name", "type"], words=["directory", "type"])
        table = table.filter(of_type(table, "d"))
        paths = paths_of(table)
        found += paths.filter(pc.invert(pc.is_in(paths, read.combine_chunks()))).to_pylist()
    return found


def drop_entries(folder: Path, manifest: Manifest, earlier: int, unchanged: list[pa.Array]) -> None:
    """Of the first `earlier` parts keep only entries of directories that were found unchanged.

    Of the later parts, drop the rows that say that a directory was unchanged.
    """
    keep = pa.chunked_array(unchanged, pa.binary()).combine_chunks()
    parts: list[Part] = []
    number = 1 + max(part.number for part in manifest.parts)
    for index, part in enumerate(manifest.parts):
        directories = held(part.directories, DIRECTORIES, part, folder).read()
        wanted = pc.equal(directories["state"], 0)
        if index < earlier:
            wanted = pc.and_(wanted, pc.is_in(directories["path"], keep))
        kept = directories.filter(wanted)
        rows = int(pc.sum(kept["rows"]).as_py() or 0)
        # An interrupted session may have written entries and not yet their directories: those count as well.
        if kept.num_rows == directories.num_rows and rows == part.rows:
            parts.append(part)
            continue
        new = Part(number, rows, part.summary, tag=new_tag())
        number += 1
        with PartWriter(folder / new.directories, DIRECTORIES) as writer:
            writer.write(kept)
        if rows == part.rows and part.sealed:
            give_name(folder / part.entries, folder / new.entries)
        else:
            paths = kept["path"].combine_chunks()
            new = replace(new, summary=_copy_entries(folder, part, new, paths))
        parts.append(new)
    manifest.parts = [
        part for part in parts if part.rows or held(part.directories, DIRECTORIES, part, folder).rows
    ]


def _copy_entries(folder: Path, part: Part, new: Part, directories: pa.Array) -> dict[str, Any] | None:
    """Copy the entries of these directories; their totals."""
    file = held(part.entries, ENTRIES, part, folder)
    with PartWriter(folder / new.entries, ENTRIES) as writer:
        for group in range(file.groups):
            table = file.read([group], words=["directory"]).cast(ENTRIES)
            writer.write(table.filter(pc.is_in(table["directory"].cast(pa.binary()), directories)))
    return writer.summary


def _numpy(column: pa.ChunkedArray) -> NDArray[Any]:
    numbers: NDArray[Any] = column.combine_chunks().to_numpy(zero_copy_only=False)
    return numbers
