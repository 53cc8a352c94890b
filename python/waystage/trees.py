"""Differences between two trees: attributes, extended attributes, contents.

Arrives: two trees, or catalogs of trees.
Leaves: paths in only one of them, and the differences of paths in both.
Must not know: how trees are walked, how files are read.

The tree of a catalog is not walked. Contents and extended attributes are always read from the trees.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from waystage._native import TreeComparison
from waystage.catalog import BuildOptions, Catalog, build
from waystage.catalog.difference import Difference, diff
from waystage.catalog.store import is_catalog, of_type, paths_of
from waystage.display import display
from waystage.flows import FlowDescription, reported, storage
from waystage.task import Progress, follow

ATTRIBUTES = ("type", "size", "mtime", "mode", "uid", "gid", "symlink")
"""Compared attributes: those that a copy preserves. Also `links`: which names in the tree are hard links of one file;
not the link count, because names may be outside the tree. Not inode numbers; sizes only of regular files, because
file systems differ in others; not modes of symbolic links, which no call sets."""

OF_ROOT = ("mtime", "mode", "uid", "gid")

_HEX = "[0-9a-f]"
OWN_FILES = (
    ".waystage-copy",
    f".waystage-copy-{_HEX * 32}",
    f".waystage-copy-{_HEX * 16}-*{_HEX}.part",
)
"""The journal and temporary files of an interrupted copy are not data."""


class TreeError(ValueError):
    """Neither a tree nor a catalog."""


@dataclass(frozen=True)
class Contents:
    """First different byte, and the digests (XXH3, 128 bits) of both; None for a file with large holes."""

    first_byte: int
    digest: str | None
    other_digest: str | None


@dataclass
class Comparison:
    """The differences. Paths are bytes relative to the roots, sorted."""

    only_first: list[bytes]
    only_second: list[bytes]
    changed: dict[bytes, list[str]]
    """Path -> names of different attributes, among them `links`, `xattrs`, `device` and `content`."""

    contents: dict[bytes, Contents] = field(default_factory=dict)
    errors: list[tuple[bytes, str]] = field(default_factory=list)
    """Entries that could not be compared."""

    same: int = 0
    bytes_read: int = 0
    """Of each side."""


@dataclass(frozen=True)
class Wanted:
    """What to compare; `ignore` names attributes to skip."""

    content: bool = False
    xattrs: bool = False
    ignore: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    threads: int | None = None


@dataclass(frozen=True)
class Pair:
    """An entry of both trees to open; `content` where its contents are read, `size` bytes of each."""

    path: bytes
    content: bool
    size: int


Unlike = tuple[int, tuple[int, str | None, str | None] | None, bool, bool, str]
"""A pair that differs, as `waystage._native.TreeComparison` tells it: its index first."""


class Readers(Protocol):
    """What reads trees: this machine, or many nodes (`waystage.trees_on_nodes`)."""

    def catalog(self, tree: Path, folder: Path, options: BuildOptions) -> None:
        """Catalogue a tree."""

    def read(self, roots: tuple[Path, Path], pairs: list[Pair], wanted: Wanted) -> tuple[int, list[Unlike]]:
        """Compare pairs; the bytes read of each side, and those that differ, in order."""


class _ThisMachine:
    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress

    def catalog(self, tree: Path, folder: Path, options: BuildOptions) -> None:
        build(tree, folder, options, self._progress)

    def read(self, roots: tuple[Path, Path], pairs: list[Pair], wanted: Wanted) -> tuple[int, list[Unlike]]:
        threads = wanted.threads or min(16, 2 * len(os.sched_getaffinity(0)))
        return read_pairs(roots, pairs, wanted.xattrs, threads, self._progress)


def compare(
    first: Path,
    second: Path,
    wanted: Wanted,
    progress: Progress | None = None,
    *,
    readers: Readers | None = None,
    folder: Path | None = None,
) -> Comparison:
    """Compare two trees, by `readers` with catalogs in `folder`, else on this machine.

    Raises TreeError, CatalogError or BuildError.
    """
    readers = readers or _ThisMachine(progress)
    with ExitStack() as held:
        if folder is None:
            folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="waystage-compare-")))
        sides = [
            _side(path, folder / name, wanted, readers)
            for path, name in ((first, "first"), (second, "second"))
        ]
        columns = tuple(name for name in ATTRIBUTES if name not in wanted.ignore)
        different = diff(sides[0], sides[1], columns, progress=progress)
        changed = _that_matters(sides[0], different)
        if "links" not in wanted.ignore:
            for path in _other_links(sides, different):
                changed.setdefault(path, []).append("links")
        if of_root := _root_differs(sides, wanted):
            changed[b""] = of_root
        comparison = Comparison(different.removed, different.added, changed)
        comparison.errors = [
            (os.fsencode(path), text) for side in sides for path, text in side.manifest.errors
        ]
        roots = (sides[0].root, sides[1].root)
        # A tree beside a catalog of itself: there is nothing to read twice.
        if roots[0] != roots[1] and all(root.is_dir() for root in roots):
            pairs = _pairs(sides[0], different, wanted)
            if pairs:
                comparison.bytes_read, unlike = readers.read(roots, pairs, wanted)
                _add(comparison, pairs, unlike)
        # The root is in both.
        total = 1 + different.same + different.changed_count
    comparison.same = total - len(comparison.changed)
    return comparison


def _side(path: Path, folder: Path, wanted: Wanted, readers: Readers) -> Catalog:
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
    options = BuildOptions(wanted.threads, (*wanted.exclude, *OWN_FILES), layouts=None)
    readers.catalog(path, folder, options)
    return Catalog(folder)


def _that_matters(catalog: Catalog, different: Difference) -> dict[bytes, list[str]]:
    """The changes, without attributes that file systems define differently."""
    kinds = _types_of(catalog, [path for path, _ in different.changed])

    def matters(path: bytes, name: str) -> bool:
        if name == "size":
            return kinds[path] == "f"
        return name != "mode" or kinds[path] != "l"

    changed = {
        path: list(what) if "type" in what else [name for name in what if matters(path, name)]
        for path, what in different.changed
    }
    return {path: what for path, what in changed.items() if what}


def _types_of(catalog: Catalog, paths: list[bytes]) -> dict[bytes, str]:
    """The types of these entries."""
    wanted = pa.array(paths, pa.binary())
    found: dict[bytes, str] = {}
    for batch in catalog.batches(["directory", "name", "type"]) if paths else ():
        table = pa.Table.from_batches([batch])
        there = paths_of(table)
        chosen = pc.is_in(there, wanted)
        names, types = there.filter(chosen), table["type"].cast(pa.string()).filter(chosen)
        found |= zip(names.to_pylist(), types.to_pylist(), strict=True)
    return found


def _other_links(sides: list[Catalog], different: Difference) -> list[bytes]:
    """Names that are hard-linked in one tree and not in the other, among names in both trees."""
    in_one = ({*different.removed}, {*different.added})
    first, second = (_linked(side, gone) for side, gone in zip(sides, in_one, strict=True))
    return sorted(path for path in {*first, *second} if first.get(path, path) != second.get(path, path))


def _linked(catalog: Catalog, gone: set[bytes]) -> dict[bytes, bytes]:
    """Each name of a file with several names -> the first of them, without removed names."""
    files: dict[tuple[int, int], list[bytes]] = {}
    columns = ["directory", "name", "type", "links", "device", "inode"]
    for batch in catalog.batches(columns, which=pc.field("links") > 1):
        table = pa.Table.from_batches([batch])
        table = table.filter(pc.invert(of_type(table, "d")))
        rows = (paths_of(table), table["device"], table["inode"])
        for path, device, inode in zip(*(row.to_pylist() for row in rows), strict=True):
            if path not in gone:
                files.setdefault((device, inode), []).append(path)
    return {path: min(names) for names in files.values() if len(names) > 1 for path in names}


def _root_differs(sides: list[Catalog], wanted: Wanted) -> list[str]:
    """Differences of the roots; empty if a catalog does not record its root."""
    roots = [_root_of(side) for side in sides]
    if not all(roots):
        return []
    one, other = roots
    return [name for name in OF_ROOT if name not in wanted.ignore and one[name] != other[name]]


def _root_of(catalog: Catalog) -> dict[str, int]:
    table = catalog.directories()
    table = table.filter(pc.and_(pc.equal(table["path"], b""), pc.equal(table["state"], 0)))
    if not table.num_rows:
        return {}
    return {name: table[name].cast(pa.int64())[0].as_py() for name in OF_ROOT}


def _pairs(catalog: Catalog, different: Difference, wanted: Wanted) -> list[Pair]:
    """Entries of both trees to open."""
    other_size = {path for path, what in different.changed if "size" in what}
    unlike = {path for path, what in different.changed if "type" in what}
    gone = pa.array(sorted({*different.removed, *unlike}), pa.binary())
    pairs = [Pair(b"", False, 0)] if wanted.xattrs else []
    for batch in catalog.batches(["directory", "name", "type", "size"]):
        table = pa.Table.from_batches([batch])
        paths, types = paths_of(table), table["type"].cast(pa.string())
        # Devices are always looked at: their numbers are in no catalog.
        chosen = pc.is_in(types, pa.array(["b", "c"]))
        if wanted.content:
            chosen = pc.or_(chosen, pc.equal(types, "f"))
        if wanted.xattrs:
            chosen = pc.or_(chosen, pc.not_equal(types, "?"))
        chosen = pc.and_(chosen, pc.invert(pc.is_in(paths, gone)))
        rows = (paths.filter(chosen), types.filter(chosen), table["size"].filter(chosen))
        for path, kind, size in zip(*(row.to_pylist() for row in rows), strict=True):
            read = wanted.content and kind == "f" and path not in other_size
            if read or kind != "f" or wanted.xattrs:
                pairs.append(Pair(path, read, size if read else 0))
    return pairs


def read_pairs(
    roots: tuple[Path, Path], pairs: list[Pair], xattrs: bool, threads: int, progress: Progress | None
) -> tuple[int, list[Unlike]]:
    """Compare pairs on this machine; the bytes read of each side, and those that differ, in order. Raises OSError."""
    size = sum(pair.size for pair in pairs)

    def show(counts: dict[str, int]) -> None:
        if progress is not None:
            taken, compared = counts["pairs"], counts["bytes_compared"]
            share = compared / size if size else taken / len(pairs)
            said = f"comparing {taken:,} of {len(pairs):,}, {compared / 1e9:.2f} of {size / 1e9:.2f} GB"
            progress(said, min(share, 0.99))

    plain = [(pair.path, pair.content) for pair in pairs]
    reading = TreeComparison(*roots, plain, xattrs=xattrs, threads=threads)
    flow = FlowDescription(
        "io",
        "compare",
        source=storage(roots[0]),
        destination=storage(roots[1]),
        bytes=2 * size,
        counts=lambda counts: (counts["bytes_read"], 2 * size),
    )
    with reported(reading, flow):
        follow(reading, show)
    return reading.progress()["bytes_read"], reading.unlike()


def _add(comparison: Comparison, pairs: list[Pair], unlike: Iterable[Unlike]) -> None:
    for index, contents, xattrs, device, error in unlike:
        path = pairs[index].path
        if error:
            comparison.errors.append((path, error))
            continue
        what = comparison.changed.setdefault(path, [])
        if xattrs:
            what.append("xattrs")
        if device:
            what.append("device")
        if contents is not None:
            what.append("content")
            comparison.contents[path] = Contents(*contents)
