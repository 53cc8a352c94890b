"""What differs between two trees: by what file systems tell of entries, by extended attributes, by contents.

Arrives: two trees, or catalogs of trees.
Leaves: paths that are in only one of them, and what differs of those that are in both.
Must not know: how trees are walked, how files are read.

A tree that comes as a catalog is not walked again. Contents and extended attributes are always read from the trees.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from waystage._native import TreeComparison
from waystage.catalog import BuildOptions, Catalog, build
from waystage.catalog.difference import Difference, diff
from waystage.catalog.store import MANIFEST, paths_of
from waystage.display import display

Progress = Callable[[str, float], None]
"""Called with what is being done and the share of it, 0 to 1."""

ATTRIBUTES = ("type", "size", "mtime", "mode", "uid", "gid", "links", "symlink")
"""What is compared of an entry: what a copy keeps. Not inodes, and of directories neither size nor links, which file
systems count in their own ways."""

OF_FILES = ("size", "links")

OWN_FILES = ".waystage-copy*"
"""What an interrupted copy leaves for itself is nobody's data."""

LOOK_S = 0.2


class TreeError(ValueError):
    """Something that is neither a tree nor a catalog; says what to name instead."""


@dataclass(frozen=True)
class Contents:
    """Where contents differ first, and the digests (XXH3, 128 bits) of both."""

    first_byte: int
    digest: str
    other_digest: str


@dataclass
class Comparison:
    """What differs. Paths are bytes below the roots, sorted."""

    only_first: list[bytes]
    only_second: list[bytes]
    changed: dict[bytes, list[str]]
    """What differs of the entries in both, `xattrs` and `content` among the attributes' names."""

    contents: dict[bytes, Contents] = field(default_factory=dict)
    errors: list[tuple[bytes, str]] = field(default_factory=list)
    """What could not be told."""

    same: int = 0
    bytes_read: int = 0
    """Of each side."""


@dataclass(frozen=True)
class Wanted:
    """What to compare; `ignore` names attributes that do not matter."""

    content: bool = False
    xattrs: bool = False
    ignore: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    threads: int | None = None


def is_catalog(path: Path) -> bool:
    return (path / MANIFEST).is_file()


def compare(first: Path, second: Path, wanted: Wanted, progress: Progress | None = None) -> Comparison:
    """Compare two trees. Raises TreeError, CatalogError or BuildError where one cannot be used."""
    with tempfile.TemporaryDirectory(prefix="waystage-compare-") as folder:
        sides = [
            _side(path, Path(folder) / name, wanted, progress)
            for path, name in ((first, "first"), (second, "second"))
        ]
        columns = tuple(name for name in ATTRIBUTES if name not in wanted.ignore)
        different = diff(sides[0], sides[1], columns, progress=progress)
        changed = _without_counts(sides[0], different)
        comparison = Comparison(different.removed, different.added, changed)
        comparison.errors = [
            (os.fsencode(path), text) for side in sides for path, text in side.manifest.errors
        ]
        roots = (sides[0].root, sides[1].root)
        # A tree beside a catalog of itself: there is nothing to read twice.
        if (wanted.content or wanted.xattrs) and roots[0] != roots[1]:
            pairs = _pairs(sides[0], different, wanted)
            _read(roots, pairs, wanted, comparison, progress)
        total = different.same + len(different.changed)
    comparison.same = total - len(comparison.changed)
    return comparison


def _side(path: Path, folder: Path, wanted: Wanted, progress: Progress | None) -> Catalog:
    if is_catalog(path):
        catalog = Catalog(path)
        if (wanted.content or wanted.xattrs) and not catalog.root.is_dir():
            raise TreeError(
                f"{display(str(catalog.root))}, which {path} is of, is no longer there, so its files cannot be read:"
                " compare without contents and extended attributes"
            )
        return catalog
    if not path.is_dir():
        raise TreeError(f"{display(str(path))} is neither a directory nor a catalog: name the top of a tree")
    options = BuildOptions(wanted.threads, (*wanted.exclude, OWN_FILES), layouts=None)
    build(path, folder, options, progress)
    return Catalog(folder)


def _without_counts(catalog: Catalog, different: Difference) -> dict[bytes, list[str]]:
    """What changed, less what file systems count of directories in their own ways."""
    paths = pa.array([path for path, _ in different.changed], pa.binary())
    table = catalog.entries(["directory", "name", "type"])
    table = table.filter(pc.equal(table["type"].cast(pa.string()), "d"))
    there = paths_of(table)
    directories = set(there.filter(pc.is_in(there, paths)).to_pylist())
    changed = {
        path: [name for name in what if path not in directories or name not in OF_FILES]
        for path, what in different.changed
    }
    return {path: what for path, what in changed.items() if what}


def _pairs(catalog: Catalog, different: Difference, wanted: Wanted) -> list[tuple[bytes, bool]]:
    """Entries of both trees whose files are to be opened, and whether contents are to be read."""
    table = catalog.entries(["directory", "name", "type"])
    paths, types = paths_of(table), table["type"].cast(pa.string())
    unlike = {path for path, what in different.changed if "type" in what or "size" in what}
    gone = pa.array(sorted({*different.removed, *unlike}), pa.binary())
    kinds = ["f", "d"] if wanted.xattrs else ["f"]
    there = pc.and_(pc.is_in(types, pa.array(kinds)), pc.invert(pc.is_in(paths, gone)))
    kept, is_file = paths.filter(there).to_pylist(), pc.equal(types.filter(there), "f").to_pylist()
    pairs = [(path, wanted.content and file) for path, file in zip(kept, is_file, strict=True)]
    return [(b"", False), *pairs] if wanted.xattrs else pairs


def _read(
    roots: tuple[Path, Path],
    pairs: list[tuple[bytes, bool]],
    wanted: Wanted,
    comparison: Comparison,
    progress: Progress | None,
) -> None:
    threads = wanted.threads or min(16, 2 * len(os.sched_getaffinity(0)))
    reading = TreeComparison(*roots, pairs, xattrs=wanted.xattrs, threads=threads)
    try:
        while not reading.wait(LOOK_S):
            taken, size = reading.progress()
            if progress is not None:
                progress(f"comparing {taken:,} of {len(pairs):,}, {size / 1e9:.2f} GB", taken / len(pairs))
    finally:
        reading.stop()
    comparison.bytes_read = reading.progress()[1]
    for index, contents, xattrs, error in reading.unlike():
        path = pairs[index][0]
        if error:
            comparison.errors.append((path, error))
            continue
        what = comparison.changed.setdefault(path, [])
        if xattrs:
            what.append("xattrs")
        if contents is not None:
            what.append("content")
            comparison.contents[path] = Contents(*contents)
