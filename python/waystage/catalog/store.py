"""A catalog on disk, opened for reading: one version of it, also where it is replaced meanwhile.

Arrives: a path.
Leaves: the manifest, tables of entries and directories; or one clear error where the folder is damaged.
Must not know: how catalogs are built or what is asked of them.

A catalog is replaced at one moment by another folder of the same name, and the former one is removed. So the folder
is opened, then everything in it by its descriptor. Where something was removed before it could be opened, the name
leads to a newer catalog by then, and that is opened instead.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from waystage.catalog.errors import CatalogError, CatalogHidden
from waystage.catalog.manifest import GAPS, HIDDEN, MANIFEST, Manifest, Part, explain, is_catalog, read
from waystage.catalog.options import REPLACED
from waystage.catalog.scan import WORDS, fragment, of_type, plausible, scan
from waystage.catalog.schema import DIRECTORIES, ENTRIES
from waystage.catalog.sealed import DAMAGE, HeldFile, short
from waystage.catalog.summary import Summary

if TYPE_CHECKING:
    import pyarrow.dataset as ds

__all__ = [
    "GAPS",
    "MANIFEST",
    "WORDS",
    "Catalog",
    "Manifest",
    "Part",
    "damage_named",
    "explain",
    "held",
    "is_catalog",
    "of_type",
    "paths_of",
    "read_directories",
    "text_of",
]

SMALL_VALUES = 1 << 22
"""Values that are decoded in less time than Arrow's scanner takes to share them out, which also reads each footer anew:
some milliseconds."""

ATTEMPTS = 1000
"""How often a catalog may be replaced while it is opened."""

NAMELESS_S = 1.0
"""Where names cannot be exchanged, a catalog that is replaced has none for a moment."""

T = TypeVar("T")


class Catalog:
    """A finished catalog, opened for reading. Raises CatalogError."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        _one_version(self.path, self._open)
        self.root = Path(self.manifest.root)

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.manifest.parts)

    @property
    def identity(self) -> str:
        """A fingerprint of the catalog and its version."""
        return hashlib.blake2b(self._manifest_bytes, digest_size=16).hexdigest()

    def entries_files(self) -> list[Path]:
        return [self.path / part.entries for part in self.manifest.parts]

    def held_entries(self) -> Sequence[HeldFile]:
        """The files of entries, for reading row groups."""
        return self._entries

    def held_directories(self) -> Sequence[HeldFile]:
        """The files of directories, in the same order."""
        return self._directories

    def dataset(self) -> ds.Dataset:
        """Every entry, to be scanned in pieces; the columns `directory`, `type` and `layout` stay dictionaries.

        All of it is held against its digests first.
        """
        with damage_named(self.path):
            for file in self._entries:
                file.check()
            return self._dataset(self._entries)

    def entries(self, columns: list[str] | None = None) -> pa.Table:
        """Entries in memory, all columns or some."""
        with damage_named(self.path):
            for file in self._entries:
                file.check(None, columns)
            names = ENTRIES.names if columns is None else columns
            if self.rows * len(names) > SMALL_VALUES:
                table = self._dataset(self._entries).to_table(columns=columns)
            else:
                empty = ENTRIES.empty_table().select(names)
                table = pa.concat_tables(
                    [empty, *(file.read_at_once(names, WORDS) for file in self._entries)]
                )
            return plausible(table)

    def batches(
        self,
        columns: list[str] | None = None,
        rows: int = 1 << 17,
        which: pc.Expression | None = None,
        of_linked: Sequence[str] = (),
    ) -> Iterator[pa.RecordBatch]:
        """Entries in pieces of at most `rows` rows, to bound memory; `which` selects entries.

        `columns` has those that `which` asks for. Row groups whose statistics exclude `which` are not read.
        Parts with files of several names, or without totals, have the columns `of_linked` as well.
        """
        sources = (
            (file, self._columns_of(part, columns, of_linked))
            for part, file in zip(self.manifest.parts, self._entries, strict=True)
        )
        with damage_named(self.path):
            yield from scan(sources, which, rows)

    @staticmethod
    def _columns_of(part: Part, columns: list[str] | None, of_linked: Sequence[str]) -> list[str] | None:
        if columns is None or (part.summary is not None and not Summary.of(part.summary).linked):
            return columns
        return [*columns, *(name for name in of_linked if name not in columns)]

    def summary(self) -> Summary | None:
        """Totals of all entries; None where a part has none."""
        made = [None if part.summary is None else Summary.of(part.summary) for part in self.manifest.parts]
        return Summary.whole(made)

    def directories(self) -> pa.Table:
        """Every directory as it was when it was read."""
        tables = [file.read() for file in self._directories]
        return pa.concat_tables(tables) if tables else DIRECTORIES.empty_table()

    def _dataset(self, files: Sequence[HeldFile]) -> ds.Dataset:
        import pyarrow.dataset as ds

        if not files:
            return ds.dataset(ENTRIES.empty_table())
        fragments = [fragment(file) for file in files]
        return ds.FileSystemDataset(fragments, ENTRIES, fragments[0].format)

    def _open(self, folder: int) -> None:
        """Open all that belongs to the catalog in this folder, and nothing by another way."""
        self._manifest_bytes = read(MANIFEST, self.path / MANIFEST, folder)
        self.manifest = Manifest.parse(self._manifest_bytes, self.path / MANIFEST)
        self.hidden_sections = 0
        """Sections of a shared catalog that the file system does not let this user read."""
        for section in self.manifest.sections:
            name = os.path.join(section, MANIFEST)
            try:
                found = Manifest.parse(read(name, self.path / name, folder), self.path / name)
            except CatalogHidden:
                self.hidden_sections += 1
            else:
                self.manifest.parts += [replace(part, section=section) for part in found.parts]
        self._entries: list[HeldFile] = []
        self._directories: list[HeldFile] = []
        for part in self.manifest.parts:
            self._entries.append(held(part.entries, ENTRIES, part, self.path, folder))
            self._directories.append(held(part.directories, DIRECTORIES, part, self.path, folder))
            found_rows = self._entries[-1].rows
            if found_rows != part.rows:
                raise CatalogError(
                    f"{self.path / part.entries} has {found_rows} entries, not {part.rows}: build the catalog anew"
                )


def held(name: str, schema: pa.Schema, part: Part, path: Path, folder: int | None = None) -> HeldFile:
    """A file of a part in the folder at `path`, which may be open already. Raises CatalogError."""
    try:
        where = str(path / name) if folder is None else name
        return HeldFile(where, schema, folder=folder, shown=path / name, sealed=part.sealed)
    except FileNotFoundError:
        raise CatalogError(f"{path / name} is missing: build the catalog anew") from None


def read_directories(folder: Path, parts: list[Part]) -> pa.Table:
    """The directories of some parts."""
    tables = [held(part.directories, DIRECTORIES, part, folder).read() for part in parts]
    return pa.concat_tables(tables) if tables else DIRECTORIES.empty_table()


def paths_of(table: pa.Table) -> pa.ChunkedArray:
    """The path of each entry below the root, from its columns `directory` and `name`."""
    directory = table["directory"].cast(pa.binary())
    prefix = pc.if_else(
        pc.equal(pc.binary_length(directory), 0),
        pa.scalar(b"", pa.binary()),
        pc.binary_join_element_wise(directory, pa.scalar(b"", pa.binary()), pa.scalar(b"/", pa.binary())),
    )
    return pc.binary_join_element_wise(prefix, table["name"], pa.scalar(b"", pa.binary()))


def text_of(paths: pa.ChunkedArray) -> pa.ChunkedArray:
    """Paths as text; bytes that are not UTF-8 become backslash sequences, so that distinct paths may read alike."""
    try:
        return paths.cast(pa.string())
    except pa.ArrowInvalid:
        chunks = [
            pa.array([path.decode("utf-8", "backslashreplace") for path in chunk.to_pylist()], pa.string())
            for chunk in paths.chunks
        ]
        return pa.chunked_array(chunks, pa.string())


@contextmanager
def damage_named(path: Path) -> Iterator[None]:
    """Damage may appear only after opening."""
    try:
        yield
    except CatalogError:
        raise
    except DAMAGE as error:
        raise CatalogError(f"{path} is damaged ({short(error)}): build the catalog anew") from None


def _one_version(path: Path, take: Callable[[int], T]) -> T:
    """The result of `take` for the folder of this name; for the newer one where it is replaced meanwhile."""
    failed: CatalogError | None = None
    deadline = time.monotonic() + NAMELESS_S
    for _ in range(ATTEMPTS):
        folder = _folder(path, deadline)
        try:
            return take(folder)
        except CatalogError as error:
            if _is_named(folder, path):
                raise
            failed = error
        finally:
            os.close(folder)
    raise failed or CatalogError(f"{path} is replaced again and again: try again later")


def _folder(path: Path, deadline: float) -> int:
    missed = 0
    while True:
        try:
            # Passing through it may be allowed where listing it is not.
            return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            aside = path.with_name(path.name + REPLACED)
            # It may have got its name again since: only a second look in vain says that there is none.
            missed = 0 if aside.exists() else missed + 1
            if missed > 1 or time.monotonic() > deadline:
                raise CatalogError(f"{path} is no catalog: it has no {MANIFEST}") from None
            time.sleep(0.001)
        except NotADirectoryError:
            raise CatalogError(f"{path} is no catalog: it is not a folder") from None
        except PermissionError:
            raise CatalogHidden(f"{path}: permission denied: {HIDDEN}") from None
        except (OSError, ValueError) as error:
            raise CatalogError(f"{path} cannot be opened: {getattr(error, 'strerror', error)}") from None


def _is_named(folder: int, path: Path) -> bool:
    """Whether the open folder still has this name."""
    try:
        return os.path.samestat(os.fstat(folder), os.stat(path))
    except OSError:
        return False
