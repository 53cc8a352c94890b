"""A catalog for all users, in which the kernel shows each user what the file system would.

Arrives: a catalog, its tree.
Leaves: a shared catalog: the same rows in sections, each in a folder that only those can enter who may list its
directories.
Must not know: walks.

See docs/decisions/0028-shared-catalogs.md.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from waystage.catalog.build import empty, take_name, workplace
from waystage.catalog.errors import CatalogError, SourceMissing
from waystage.catalog.options import LOCK
from waystage.catalog.parts import PartWriter, new_tag
from waystage.catalog.rights import Condition, Guards, guarded_folder
from waystage.catalog.schema import DIRECTORIES, ENTRIES
from waystage.catalog.sealed import HeldFile
from waystage.catalog.store import MANIFEST, WORDS, Catalog, Manifest, Part, is_catalog
from waystage.display import display
from waystage.task import Progress

SECTIONS = "sections"
OPEN = f"{SECTIONS}/open"
WITHHELD = f"{SECTIONS}/withheld"
HELD_ROWS = 1 << 22
"""Entries in memory before they are written: as many as a part has at most."""

GROUP_ROWS = 65_536


@dataclass(frozen=True)
class Shared:
    """What was shared.

    `withheld` entries are in directories that were replaced or have become unreadable: only the owner of the
    shared catalog sees these.
    """

    path: Path
    entries: int
    sections: int
    withheld: int


@dataclass
class _Section:
    folder: str
    entries: list[pa.Table] = field(default_factory=list)
    directories: list[pa.Table] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)


def share(source: Path, target: Path, progress: Progress | None = None) -> Shared:
    """Write `source` to `target`, readable for every user as far as they may list its directories.

    Rights are those of the directories now, the ones above the root among them. Raises CatalogError where `source`
    cannot be shared or `target` is something else, BuildError where the rights cannot be given.
    """
    catalog = Catalog(source)
    if catalog.manifest.sections:
        raise CatalogError(f"{source} is a shared catalog: share the one it was made of")
    if target.exists() and not is_catalog(target):
        raise CatalogError(f"{target} is there already and is no catalog: choose another name")
    if target.exists() and target.resolve() == source.resolve():
        raise CatalogError(
            f"{target} cannot be shared under its own name: give the shared catalog another one"
        )
    if target.exists() and not _may_replace(target, catalog):
        raise CatalogError(f"{target} is another catalog, and none shared of this tree: choose another name")
    if not catalog.root.is_dir():
        raise SourceMissing(f"{display(str(catalog.root))}, which {source} is of, is no longer there")
    with workplace(target) as folder, _cleared(folder):
        writer = _Writer(folder)
        withheld = 0
        files = list(zip(catalog.held_entries(), catalog.held_directories(), strict=True))
        for index, (entries, directories) in enumerate(files):
            if progress is not None:
                progress("sharing", index / len(files))
            withheld += _share_part(catalog, entries, directories, writer)
        sections = writer.finish()
        # What may name hidden directories stays out: patterns, errors, counts.
        manifest = replace(catalog.manifest, exclude=[], errors=[], counts={}, parts=[], sections=sections)
        _publish(folder, target, manifest)
    return Shared(target, catalog.rows, len(sections), withheld)


def _may_replace(target: Path, catalog: Catalog) -> bool:
    """Whether the existing file may be replaced: a shared catalog of the same tree, or a damaged one."""
    try:
        there = Manifest.load(target / MANIFEST)
    except CatalogError:
        return True
    return bool(there.sections) and there.root == catalog.manifest.root


@contextmanager
def _cleared(folder: Path) -> Iterator[None]:
    """An empty work folder, removed where sharing fails."""
    empty(folder)
    try:
        yield
    except BaseException:
        shutil.rmtree(folder)
        raise


def _share_part(catalog: Catalog, entries: HeldFile, held_directories: HeldFile, writer: _Writer) -> int:
    """Distribute a part's rows to sections; the number withheld."""
    directories = held_directories.read()
    paths = directories["path"].to_pylist()
    inodes = directories["inode"].to_pylist()
    folders: dict[bytes, str] = {}
    guards = Guards(os.fsencode(catalog.manifest.root))
    try:
        for path, inode in sorted(zip(paths, inodes, strict=True)):
            # A directory that was read twice, the second time as another one, is withheld by the first.
            folder = writer.section(guards.of(path, inode))
            folders[path] = folder if folders.get(path, folder) == folder else WITHHELD
    finally:
        guards.close()
    for folder, rows in _dealt([folders[path] for path in paths]):
        writer.directories(folder, directories.take(rows))
    withheld = 0
    for group in range(entries.groups):
        table = entries.read([group], words=WORDS)
        directory = table["directory"].combine_chunks().dictionary
        where = [folders.get(path, WITHHELD) for path in directory.to_pylist()]
        index = table["directory"].combine_chunks().indices.to_numpy(zero_copy_only=False)
        for folder, chosen in _dealt(where):
            rows = np.flatnonzero(np.isin(index, chosen.to_numpy()))
            if len(rows):
                writer.entries(folder, table.take(pa.array(rows)))
                withheld += len(rows) if folder == WITHHELD else 0
    return withheld


def _dealt(folders: list[str]) -> Iterator[tuple[str, pa.Array]]:
    """The indices of each folder."""
    held: dict[str, list[int]] = {}
    for index, folder in enumerate(folders):
        held.setdefault(folder, []).append(index)
    for folder, rows in held.items():
        yield folder, pa.array(rows, pa.int64())


class _Writer:
    """Sections of a shared catalog: rows gathered in memory, written as parts."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sections: dict[str, _Section] = {}
        self._numbers: dict[tuple[Condition, ...], str] = {(): SECTIONS}
        self._rows = 0
        (folder / SECTIONS).mkdir(mode=0o755)
        (folder / SECTIONS).chmod(0o755)

    def section(self, conditions: tuple[Condition, ...] | None) -> str:
        """The folder guarded by these conditions: nested folders, one for each condition."""
        if not conditions:
            return WITHHELD if conditions is None else OPEN
        known = self._numbers.get(conditions)
        if known is None:
            above = self._numbers[()] if len(conditions) == 1 else self.section(conditions[:-1])
            known = f"{above}/{len(self._numbers)}"
            guarded_folder(self._folder / known, conditions[-1])
            self._numbers[conditions] = known
        return known

    def entries(self, folder: str, table: pa.Table) -> None:
        self._at(folder).entries.append(table)
        self._rows += table.num_rows
        if self._rows >= HELD_ROWS:
            self._write()

    def directories(self, folder: str, table: pa.Table) -> None:
        self._at(folder).directories.append(table)

    def finish(self) -> list[str]:
        """The folders of all sections, each with its manifest."""
        self._write()
        for section in self._sections.values():
            path = self._folder / section.folder
            Manifest("", parts=section.parts).save(path / MANIFEST)
            for file in path.iterdir():
                if file.is_file():
                    file.chmod(0o644)
        return sorted(self._sections)

    def _at(self, folder: str) -> _Section:
        if folder not in self._sections:
            self._sections[folder] = _Section(folder)
            for name, mode in ((OPEN, 0o755), (WITHHELD, 0o700)):
                if folder == name:
                    (self._folder / name).mkdir()
                    (self._folder / name).chmod(mode)
        return self._sections[folder]

    def _write(self) -> None:
        for section in self._sections.values():
            if not section.entries and not section.directories:
                continue
            rows = sum(table.num_rows for table in section.entries)
            part = Part(len(section.parts), rows, tag=new_tag())
            path = self._folder / section.folder
            with (
                PartWriter(path / part.entries, ENTRIES) as entries,
                PartWriter(path / part.directories, DIRECTORIES) as directories,
            ):
                for start in range(0, part.rows, GROUP_ROWS):
                    entries.write(_own_words(pa.concat_tables(section.entries).slice(start, GROUP_ROWS)))
                for table in section.directories:
                    directories.write(table)
            section.parts.append(replace(part, summary=entries.summary))
            section.entries, section.directories = [], []
        self._rows = 0


def _own_words(table: pa.Table) -> pa.Table:
    """The same, with nothing in its dictionaries that no row has: that would be names of other sections."""
    for name in WORDS:
        wanted = ENTRIES.field(name)
        column = table[name].cast(wanted.type.value_type).dictionary_encode()
        table = table.set_column(table.schema.get_field_index(name), wanted, column)
    return table.cast(ENTRIES)


def _publish(folder: Path, target: Path, manifest: Manifest) -> None:
    manifest.save(folder / MANIFEST)
    (folder / MANIFEST).chmod(0o644)
    (folder / LOCK).unlink()
    folder.chmod(0o755)
    take_name(folder, target)
