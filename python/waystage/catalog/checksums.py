"""Checksums of objects, in a file beside a catalog: computed, compared with the files, and damage repaired from a
copy.

Arrives: a catalog; perhaps a copy of its tree.
Leaves: `CATALOG.checksums`, one Parquet file of the documented schema (docs/reference/catalog.md); damaged objects
by path, and which of them are whole again.
Must not know: how objects are summed.

The file has a row for each object of each regular file that has bytes. A file whose size, mtime and inode are as in
its rows and whose objects have other checksums is damaged; one whose size, mtime or inode differ has been modified,
and is summed again.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from waystage._native import ENTRY_TYPES, LAYOUT_KINDS, CheckedTree
from waystage.catalog.check import LOOKED_AT, CheckedOpener, kinds, path_hashes
from waystage.catalog.errors import BuildError, CatalogError, SourceMissing
from waystage.catalog.options import CHECKSUMS
from waystage.catalog.store import Catalog, paths_of
from waystage.catalog.sums import KEY, VERSION, Row, Sums, Writer, files_of_sums, groups_of, open_sums
from waystage.task import Progress

__all__ = ["KEY", "Damage", "SumsMade", "SumsVerified", "make", "sums_path", "verify"]

LOOK_S = 0.2
WAITING = 64
"""Files queued for each thread."""

Recorded = tuple[int, int, int, int, int, int, int]
"""(type, size, mtime, ctime, inode, layout, generation), as `CheckedTree` takes it."""


@dataclass(frozen=True)
class SumsMade:
    """The result of computing checksums."""

    path: Path
    files: int
    bytes_read: int
    kept: int
    """Files with valid checksums: size, mtime and inode are unchanged."""
    unread: list[tuple[bytes, str]]
    """Files that were unreadable or changed meanwhile, and why; some of their objects have no checksum."""


@dataclass
class Damage:
    """One damaged object."""

    path: bytes
    component: int
    object: int
    target: int | None
    offset: int
    length: int
    mended: bool = False


@dataclass
class SumsVerified:
    """The result of verifying checksums."""

    files: int = 0
    objects: int = 0
    bytes_read: int = 0
    damaged: list[Damage] = field(default_factory=list)
    changed: list[tuple[bytes, tuple[str, ...]]] = field(default_factory=list)
    """Files modified since, and how they differ: to be summed again."""
    failed: list[tuple[bytes, str]] = field(default_factory=list)
    """Files that could not be repaired, and why."""

    def __bool__(self) -> bool:
        return any(not damage.mended for damage in self.damaged)


def sums_path(catalog: Catalog) -> Path:
    """The path of a catalog's checksums."""
    return catalog.path.with_name(catalog.path.name + CHECKSUMS)


def make(catalog: Catalog, threads: int | None = None, progress: Progress | None = None) -> SumsMade:
    """Compute the checksums of every regular file of the catalog that has none, or has changed since.

    Raises BuildError where the file cannot be written. It has its name only when it is whole; one that was there
    stays until then.
    """
    target = sums_path(catalog)
    tree = CheckedOpener(catalog).tree
    before, known = _known(target, catalog)
    version = VERSION if before is None else before.version
    writer = Writer(target, catalog, version)
    files = size = kept = kept_bytes = 0
    total = max(1, _file_bytes(catalog))

    def tell() -> None:
        if progress is not None:
            done = tree.summed_bytes() + kept_bytes
            progress(
                f"{files:,} files, {done / 1e9:,.1f} of {total / 1e9:,.1f} GB summed", min(0.99, done / total)
            )

    unread: list[tuple[bytes, str]] = []
    try:
        seen: list[NDArray[np.uint64]] = []
        todo = _Ordered(threads, tell)
        for batch in catalog.batches([*LOOKED_AT, "layout", "layout_generation"]):
            table = pa.Table.from_batches([batch])
            is_file = np.asarray(table["type"].cast(pa.string()).to_numpy(zero_copy_only=False)) == "f"
            wanted = is_file & (table["size"].to_numpy() > 0)
            identity = _identity(
                path_hashes(batch), table["size"].to_numpy(), _ns(table["mtime"]), table["inode"].to_numpy()
            )
            have = np.isin(identity, known) if len(known) else np.zeros(len(identity), np.bool_)
            kept += int((wanted & have).sum())
            kept_bytes += int(table["size"].to_numpy()[wanted & have].sum())
            seen.append(identity[wanted & have])
            for path, recorded in _recorded(table.filter(pa.array(wanted & ~have))):
                todo.add(_sum, tree, path, recorded, version)
                for summed in todo.ready():
                    files, size = files + 1, size + summed.bytes_read
                    writer.add(summed.rows)
                    unread += summed.unread
            tell()
        for summed in todo.rest():
            files, size = files + 1, size + summed.bytes_read
            writer.add(summed.rows)
            unread += summed.unread
        _keep(before, np.unique(np.concatenate([known[:0], *seen])), writer)
        writer.close()
    except OSError as error:
        raise BuildError(f"{target} cannot be written: {error.strerror or error}") from None
    finally:
        writer.abandon()
    return SumsMade(target, files, size, kept, sorted(unread))


def verify(
    catalog: Catalog,
    threads: int | None = None,
    progress: Progress | None = None,
    *,
    repair_from: Path | None = None,
) -> SumsVerified:
    """Compare every file with its checksums, and repair damaged objects from the tree `repair_from`.

    An object is written only where the copy's bytes have the checksum wanted. A repaired file has its former mtime.
    Raises CatalogError where there are no checksums or they are damaged, BuildError where a tree cannot be opened.
    """
    tree = CheckedOpener(catalog).tree
    donor = None
    if repair_from is not None:
        try:
            donor = CheckedTree(repair_from)
        except OSError as error:
            raise SourceMissing(f"{repair_from} cannot be opened: {os.strerror(error.errno or 0)}") from None
    sums = open_sums(sums_path(catalog), catalog)
    found = SumsVerified()
    total = max(1, sum(int(pc.sum(group["length"]).as_py() or 0) for group in groups_of(sums, ["length"])))

    def tell() -> None:
        if progress is not None:
            done = tree.summed_bytes()
            progress(
                f"{found.files:,} files, {done / 1e9:,.1f} of {total / 1e9:,.1f} GB verified",
                min(0.99, done / total),
            )

    todo = _Ordered(threads, tell)
    for held in files_of_sums(sums):
        todo.add(_verify, tree, donor, held, sums.version)
        for one in todo.ready():
            _add(found, one)
    for one in todo.rest():
        _add(found, one)
    return found


@dataclass(frozen=True)
class _Summed:
    rows: list[Row]
    bytes_read: int
    unread: list[tuple[bytes, str]]


def _sum(tree: CheckedTree, path: bytes, recorded: Recorded, version: int) -> _Summed:
    bits, now, sums, number = tree.sum(path, recorded, version)
    if now is None:
        return _Summed([], 0, [(path, os.strerror(number) if number else ", ".join(kinds(bits)))])
    if sums is None:
        return _Summed([], 0, [(path, "changed while it was read")])
    _, size, mtime, _, inode, layout, generation = now
    of_file = {
        "path": path,
        "size": size,
        "mtime": mtime,
        "inode": inode,
        "layout": LAYOUT_KINDS[layout] if layout >= 0 else None,
        "layout_generation": generation,
    }
    names = ("component", "object", "target", "offset", "length", "digest")
    rows = [of_file | dict(zip(names, one, strict=True)) for one in sums]
    lost = [(path, "an object could not be read")] if any(row["digest"] is None for row in rows) else []
    return _Summed(rows, size, lost)


def _verify(tree: CheckedTree, donor: CheckedTree | None, rows: list[Row], version: int) -> SumsVerified:
    found = SumsVerified(files=1)
    first = rows[0]
    path: bytes = first["path"]
    layout = -1 if first["layout"] is None else LAYOUT_KINDS.index(first["layout"])
    recorded: Recorded = (
        ENTRY_TYPES.index("f"), first["size"], first["mtime"], 0, first["inode"],
        layout, first["layout_generation"],
    )  # fmt: skip
    bits, now, sums, number = tree.sum(path, recorded, version)
    # Attributes may change without the content, and a repair changes the ctime itself.
    differs = tuple(kind for kind in kinds(bits) if kind != "ctime")
    if now is None and "unreadable" in differs:
        found.failed.append((path, os.strerror(number)))
        return found
    if differs or sums is None or len(sums) != len(rows):
        found.changed.append((path, differs or ("content",)))
        return found
    found.objects, found.bytes_read = len(sums), first["size"]
    # What could not be read when it was summed cannot be judged.
    wrong = [
        (index, row)
        for index, (row, one) in enumerate(zip(rows, sums, strict=True))
        if row["digest"] is not None and row["digest"] != one[5]
    ]
    for _, row in wrong:
        about = {name: row[name] for name in ("component", "object", "target", "offset", "length")}
        found.damaged.append(Damage(path, **about))
    if wrong and donor is not None:
        try:
            wanted = [(index, row["digest"]) for index, row in wrong]
            repaired = tree.repair(donor, path, recorded, version, wanted)
        except OSError as error:
            found.failed.append((path, error.strerror or str(error)))
            return found
        for damage, whole in zip(found.damaged, repaired, strict=True):
            damage.mended = whole
        if not all(repaired):
            found.failed.append((path, "the copy has not the checksum either"))
    return found


def _add(found: SumsVerified, one: SumsVerified) -> None:
    found.files += one.files
    found.objects += one.objects
    found.bytes_read += one.bytes_read
    found.damaged += one.damaged
    found.changed += one.changed
    found.failed += one.failed


class _Ordered:
    """Runs calls in threads and returns results in order, with a bounded queue. `tell` is called while it waits."""

    def __init__(self, threads: int | None, tell: Callable[[], None]) -> None:
        self._tell = tell
        workers = threads or max(2, len(os.sched_getaffinity(0)))
        self._pool = ThreadPoolExecutor(workers)
        self._most = WAITING * workers
        self._waiting: deque[Future[Any]] = deque()

    def add(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._waiting.append(self._pool.submit(function, *arguments))

    def ready(self) -> Iterator[Any]:
        while len(self._waiting) > self._most:
            yield self._next()

    def rest(self) -> Iterator[Any]:
        while self._waiting:
            yield self._next()
        self._pool.shutdown()

    def _next(self) -> Any:
        first = self._waiting.popleft()
        try:
            while not wait([first], LOOK_S).done:
                self._tell()
            self._tell()
            return first.result()
        except BaseException:
            self._pool.shutdown(wait=True, cancel_futures=True)
            raise


def _known(path: Path, catalog: Catalog) -> tuple[Sums | None, NDArray[np.uint64]]:
    """The existing checksums, and the identity of their files; those of another version or tree are computed again."""
    try:
        sums = open_sums(path, catalog)
        found = [np.zeros(0, np.uint64), *(_identities(group) for group in groups_of(sums))]
    except CatalogError:
        return None, np.zeros(0, np.uint64)
    return sums, np.unique(np.concatenate(found))


def _keep(sums: Sums | None, wanted: NDArray[np.uint64], writer: Writer) -> None:
    """Keep rows of unchanged files."""
    if sums is not None:
        for group in groups_of(sums):
            writer.table(group.filter(pa.array(np.isin(_identities(group), wanted))))


def _file_bytes(catalog: Catalog) -> int:
    """Bytes of all regular files, counting each name."""
    kept = catalog.summary()
    by_type = None if kept is None else kept.by["type"]
    if by_type is not None:
        return by_type.get("f", [0, 0])[1]
    sizes = 0
    for batch in catalog.batches(["type", "size"]):
        files = batch.filter(pc.equal(batch["type"].cast(pa.string()), "f"))
        sizes += int(pc.sum(files["size"]).as_py() or 0)
    return sizes


def _identities(table: pa.Table) -> NDArray[np.uint64]:
    path = table["path"].combine_chunks()
    hashes = path_hashes(
        pa.RecordBatch.from_arrays([pa.array([b""] * len(path)), path], ["directory", "name"])
    )
    return _identity(hashes, table["size"].to_numpy(), _ns(table["mtime"]), table["inode"].to_numpy())


def _identity(
    paths: NDArray[np.uint64], size: NDArray[Any], mtime: NDArray[Any], inode: NDArray[Any]
) -> NDArray[np.uint64]:
    """A 64-bit hash of path, size, mtime and inode.

    It collides once in some thousand catalogs of a hundred million files, and then only a file that was changed
    keeps its former checksums.
    """
    mixed = paths
    for column in (size, mtime, inode):
        # The multiplier of Knuth's hashing (2^64 over the golden ratio): each column spreads over all bits.
        mixed = (mixed ^ column.astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        mixed = mixed ^ (mixed >> np.uint64(32))
    return mixed


def _recorded(table: pa.Table) -> Iterator[tuple[bytes, Recorded]]:
    mtime = table["mtime"].cast(pa.int64())
    ctime = table["ctime"].cast(pa.int64())
    columns = (
        paths_of(table), table["size"], mtime, ctime, table["inode"],
        table["layout"].cast(pa.string()), table["layout_generation"],
    )  # fmt: skip
    kind = ENTRY_TYPES.index("f")
    for path, size, changed, attributes, inode, layout, generation in zip(
        *(column.to_pylist() for column in columns), strict=True
    ):
        index = -1 if layout is None else LAYOUT_KINDS.index(layout)
        moment = changed if attributes is None else attributes
        yield path, (kind, size, changed, moment, inode, index, generation or 0)


def _ns(column: pa.ChunkedArray) -> NDArray[Any]:
    numbers: NDArray[Any] = column.cast(pa.int64()).to_numpy()
    return numbers
