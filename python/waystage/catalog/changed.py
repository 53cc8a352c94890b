"""A catalog updated from a list of changes.

Arrives: a catalog, or the tree of a new one; the paths that changed.
Leaves: a catalog in which these are what they are now, under its name at one moment; or what may be missing from it.
Must not know: how it became known what changed.

The catalog says that a recording is in progress before anything changes, so that a killed one is not forgotten.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from waystage._native import CatalogChanges
from waystage.catalog.build import empty, publish, workplace
from waystage.catalog.errors import BuildError, CatalogError, SourceMissing
from waystage.catalog.options import JOURNAL, BuildOptions, own_patterns
from waystage.catalog.parts import PartWriter, give_name, new_tag
from waystage.catalog.recording import Recorder
from waystage.catalog.schema import DIRECTORIES, ENTRIES
from waystage.catalog.store import GAPS, MANIFEST, Catalog, Manifest, Part, held, of_type, paths_of
from waystage.catalog.walking import batches, start_walk
from waystage.display import display
from waystage.native_options.walks import WalkOptions

COUNTS = ("entries", "directories", "unchanged", "bytes", "excluded", "vanished", "errors")

Dropped = dict[bytes, tuple[int, int]]
"""How many entries of a directory are superseded, and their bytes as files."""

Inodes = set[tuple[int, int]]
"""Devices and inodes of files with several hard links."""


@dataclass(frozen=True)
class Applied:
    """The result of an update."""

    path: Path
    entries: int
    looked_at: int
    """Entries that were checked and are in it."""
    gaps: dict[str, int]
    seconds: float


@dataclass
class Changing:
    """A catalog that is locked until its changes are applied."""

    target: Path
    folder: Path
    was: Manifest
    options: BuildOptions
    began: float = field(default_factory=time.time)
    targets: set[tuple[int, str]] = field(default_factory=set)
    """Storage targets found on walks."""

    @property
    def root(self) -> Path:
        return Path(self.was.root)

    @property
    def left_out(self) -> list[bytes]:
        patterns = (*self.was.exclude, *own_patterns(self.root, self.target))
        return [os.fsencode(pattern) for pattern in patterns]

    def apply(self, changes: CatalogChanges) -> Applied:
        """Check what changed, and write the catalog. Raises BuildError where it cannot be written."""
        began = time.monotonic()
        try:
            manifest, looked_at = self._apply(changes)
        except OSError as error:
            raise BuildError(f"{self.folder} cannot be written: {error.strerror or error}") from None
        entries = sum(part.rows for part in manifest.parts)
        return Applied(self.target, entries, looked_at, manifest.gaps, time.monotonic() - began)

    def _apply(self, changes: CatalogChanges) -> tuple[Manifest, int]:
        counts = changes.counts()
        gaps = {name: self.was.gaps.get(name, 0) + counts.get(name, 0) for name in GAPS}
        new = replace(self.was, parts=list(self.was.parts), gaps={n: c for n, c in gaps.items() if c})
        recorder = Recorder(self.folder, new, journal=False)
        try:
            linked = self._look(changes, recorder)
            linked |= self._walk(changes, recorder)
            linked |= self._linked_before(changes)
            changes.add(self._other_names(linked))
            self._look(changes, recorder)
            recorder.close_part()
        finally:
            recorder.abandon()
        added = new.parts[len(self.was.parts) :]
        new.parts = [*self._keep(changes, 1 + max((p.number for p in new.parts), default=-1)), *added]
        new.targets = sorted({*new.targets, *changes.targets(), *self.targets})
        new.errors = [*new.errors, *recorder.done.errors]
        new.counts = dict.fromkeys(COUNTS, 0) | new.counts
        new.counts |= {"entries": sum(p.rows for p in new.parts), "errors": len(new.errors)}
        new.started = self.was.started or self.began
        new.finished = time.time()
        new.save(self.folder / MANIFEST)
        publish(self.folder, self.target)
        return new, recorder.done.rows

    def _look(self, changes: CatalogChanges, recorder: Recorder) -> Inodes:
        linked: Inodes = set()
        while batches := changes.look():
            for batch in batches:
                linked |= _linked(recorder.add(batch))
        return linked

    def _walk(self, changes: CatalogChanges, recorder: Recorder) -> Inodes:
        """Everything below renamed directories."""
        linked: Inodes = set()
        tops = changes.to_walk()
        if not tops:
            return linked
        walk = start_walk(
            self.root,
            WalkOptions(
                threads=self.options.thread_count(),
                exclude=self.left_out,
                one_file_system=self.was.one_file_system,
                layouts=self.was.layouts,
                tops=tops,
            ),
        )
        for batch in batches(walk):
            linked |= _linked(recorder.add(batch))
        self.targets.update(walk.targets())
        return linked

    def _linked_before(self, changes: CatalogChanges) -> Inodes:
        """Files with several hard links of which one changed or is gone."""
        linked: Inodes = set()
        for table in self._entries(["directory", "name", "links", "inode", "device"]):
            some = table.filter(pc.greater(table["links"], 1))
            if some.num_rows:
                linked |= _linked(some.filter(pa.array(_ask(changes.covers, paths_of(some)))))
        return linked

    def _other_names(self, linked: Inodes) -> list[bytes]:
        """Names in the catalog of files that changed by another hard link."""
        found: list[bytes] = []
        if not linked:
            return found
        for table in self._entries(["directory", "name", "links", "inode", "device"]):
            some = table.filter(pc.greater(table["links"], 1))
            keys = zip(some["device"].to_pylist(), some["inode"].to_pylist(), strict=True)
            mask = [key in linked for key in keys]
            found += paths_of(some.filter(pa.array(mask, pa.bool_()))).to_pylist()
        return found

    def _entries(self, columns: list[str]) -> Iterator[pa.Table]:
        for part in self.was.parts:
            file = held(part.entries, ENTRIES, part, self.target)
            for group in range(file.groups):
                yield file.read([group], columns, ["directory"])

    def _keep(self, changes: CatalogChanges, number: int) -> list[Part]:
        """The former parts without superseded entries; unaffected parts stay."""
        parts = []
        for part in self.was.parts:
            dropped = self._dropped(changes, part)
            directories = held(part.directories, DIRECTORIES, part, self.target).read()
            kept = _directories(changes, directories, dropped)
            if kept is directories:
                for name in (part.entries, part.directories):
                    give_name(self.target / name, self.folder / name)
                parts.append(part)
                continue
            rows = part.rows - sum(rows for rows, _ in dropped.values())
            new = Part(number, rows, part.summary, tag=new_tag())
            number += 1
            with PartWriter(self.folder / new.directories, DIRECTORIES) as writer:
                writer.write(kept)
            if dropped or not part.sealed:
                new = replace(new, summary=self._copy(changes, part, new))
            else:
                give_name(self.target / part.entries, self.folder / new.entries)
            parts.append(new)
        return parts

    def _dropped(self, changes: CatalogChanges, part: Part) -> Dropped:
        dropped: Dropped = {}
        file = held(part.entries, ENTRIES, part, self.target)
        for group in range(file.groups):
            table = file.read([group], ["directory", "name", "type", "size"], ["directory", "type"])
            gone = table.filter(pa.array(_ask(changes.covers, paths_of(table))))
            is_file = of_type(gone, "f")
            sizes = pa.table(
                {
                    "directory": gone["directory"].cast(pa.binary()),
                    "bytes": pc.if_else(is_file, gone["size"], 0),
                }
            )
            sums = sizes.group_by("directory").aggregate([("bytes", "count"), ("bytes", "sum")])
            for row in sums.to_pylist():
                rows, size = dropped.get(row["directory"], (0, 0))
                dropped[row["directory"]] = (rows + row["bytes_count"], size + row["bytes_sum"])
        return dropped

    def _copy(self, changes: CatalogChanges, part: Part, new: Part) -> dict[str, Any] | None:
        """Copy the valid entries; their totals."""
        file = held(part.entries, ENTRIES, part, self.target)
        with PartWriter(self.folder / new.entries, ENTRIES) as writer:
            for group in range(file.groups):
                table = file.read([group], words=["directory"]).cast(ENTRIES)
                writer.write(table.filter(pa.array(~_ask(changes.covers, paths_of(table)))))
        return writer.summary


@contextmanager
def changing(target: Path, tree: Path | None, options: BuildOptions) -> Iterator[Changing]:
    """Hold the catalog at `target`, or its place where it is new, while `tree` changes.

    A new catalog of a tree that holds something already has only what changes. Raises CatalogError where `target`
    is something else or of another tree, and BuildError where it cannot be written.
    """
    existing = target.exists()
    if existing:
        was = Catalog(target).manifest
        if was.sections:
            raise CatalogError(f"{target} is a shared catalog: record into the one it was made of")
        if tree is not None and tree.resolve() != Path(was.root):
            raise CatalogError(f"{target} is of {display(was.root)}, not of {display(str(tree))}")
    else:
        root = (tree or Path.cwd()).resolve()
        was = Manifest(str(root), list(options.exclude), options.one_file_system, options.layouts)
    if not Path(was.root).is_dir():
        raise SourceMissing(f"{display(was.root)} is no directory that can be read: name the top of a tree")
    with workplace(target) as folder:
        if (folder / JOURNAL).exists():
            raise BuildError(f"{folder} holds an unfinished catalog: finish it by 'waystage catalog build'")
        empty(folder)
        if existing:
            replace(was, gaps=was.gaps | {"recording": 1}).save(target / MANIFEST)
        else:
            was = replace(was, gaps=_held_before(was, target, folder))
        try:
            yield Changing(target, folder, was, options)
        except BaseException:
            # What had not begun leaves no trace; what had leaves its mark, and a catalog without it.
            if not existing:
                for path in folder.iterdir():
                    path.unlink()
                folder.rmdir()
            raise


def unmark(target: Path) -> None:
    """Release it without a change."""
    manifest = Manifest.load(target / MANIFEST)
    manifest.gaps.pop("recording", None)
    manifest.save(target / MANIFEST)


def _held_before(manifest: Manifest, target: Path, folder: Path) -> dict[str, int]:
    own = {target.name, folder.name} if target.parent.resolve() == Path(manifest.root) else set()
    with os.scandir(manifest.root) as entries:
        return {"before": 1} if any(entry.name not in own for entry in entries) else {}


def _linked(table: pa.Table) -> Inodes:
    some = table.filter(pc.and_(pc.greater(table["links"], 1), _is_file(table)))
    return set(zip(some["device"].to_pylist(), some["inode"].to_pylist(), strict=True))


def _is_file(table: pa.Table) -> Any:
    """Directories have several links too."""
    if "type" not in table.column_names:
        return pa.scalar(True)
    return pc.invert(of_type(table, "d"))


def _directories(changes: CatalogChanges, table: pa.Table, dropped: Dropped) -> pa.Table:
    """Directories that still exist. `refresh` reads those that changed."""
    if table.num_rows == 0:
        return table
    gone = _ask(changes.replaces_directories, table["path"])
    touched = _ask(changes.touches_directories, table["path"])
    if not (gone.any() or touched.any() or dropped):
        return table
    # A directory may be in several rows: its first one takes what all of them lose.
    left = dict(dropped)
    paths = table["path"].to_pylist()
    fewer = np.array([left.pop(path, (0, 0)) for path in paths], np.int64)
    touched |= np.array([path in dropped for path in paths])
    columns = {
        "rows": pc.subtract(table["rows"], pa.array(fewer[:, 0])),
        "total": pa.array(np.where(touched, -1, table["total"].to_numpy())),
        "bytes": pc.subtract(table["bytes"], pa.array(fewer[:, 1])),
    }
    for name, column in columns.items():
        index = table.schema.get_field_index(name)
        table = table.set_column(index, table.schema.field(index), column)
    return table.filter(pa.array(~gone))


def _ask(question: Any, paths: pa.ChunkedArray) -> NDArray[np.bool_]:
    """The answer for each path."""
    array = paths.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], pa.binary())
    _, offsets, data = array.buffers()
    if len(array) == 0:
        return np.zeros(0, np.bool_)
    starts = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
    held = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    answer: NDArray[np.bool_] = question(starts, held)
    return answer
