"""A catalog on disk: a folder of parts and the manifest that says what belongs to it.

Arrives: a path.
Leaves: the manifest, tables of entries and directories; or one clear error where the folder is damaged.
Must not know: how catalogs are built or what is asked of them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from waystage.catalog.errors import CatalogError, CatalogHidden
from waystage.catalog.schema import DIRECTORIES, ENTRIES, SCHEMA_VERSION
from waystage.catalog.summary import Summary

FORMAT = "waystage-catalog"
MANIFEST = "_catalog.json"
"""The underscore lets readers of Parquet folders pass over it."""

GROUPS_AT_ONCE = 4
"""Row groups, of 65,536 entries at most, that are read together: enough for the cores."""

WORDS = ["directory", "type", "layout"]
"""Columns that stay dictionaries in memory."""

GAPS = {
    "recording": "a recording is under way, or was killed",
    "before": "what the tree held before the recording",
    "lost": "changes that came faster than they could be read",
    "unplaced": "changes whose path could not be told",
    "damaged": "records that could not be understood",
    "doubtful": "symbolic links that were pointed elsewhere after being used",
    "running": "processes that were still running at the end",
}
"""Why a recorded catalog may not be whole."""

DAMAGE = (pa.ArrowException, OSError, ValueError, KeyError, MemoryError)
"""What Arrow raises for a file whose bytes were changed: among others names that are no text, and sizes beyond reason."""


@dataclass(frozen=True)
class Part:
    """One pair of files, `entries-N.parquet` and `directories-N.parquet`."""

    number: int
    rows: int
    summary: dict[str, Any] | None = field(default=None, compare=False)
    """Totals of its entries as `Summary.plain` gives them; None in catalogs that have none."""
    section: str = ""
    """In a shared catalog, the folder it lies in."""

    @property
    def entries(self) -> str:
        return os.path.join(self.section, f"entries-{self.number:05d}.parquet")

    @property
    def directories(self) -> str:
        return os.path.join(self.section, f"directories-{self.number:05d}.parquet")


@dataclass
class Manifest:
    """What a catalog is of, how it was made, and which parts it has. Times are seconds since 1970."""

    root: str
    """An absolute path; bytes that are no UTF-8 are kept as Python's surrogateescape does."""
    exclude: list[str] = field(default_factory=list)
    one_file_system: bool = False
    layouts: Literal["each", "attribute"] | None = "each"
    targets: list[tuple[int, str]] = field(default_factory=list)
    """The number and the name of every storage target that a layout names."""
    trusting: bool = False
    """In a journal: whether parts of an older catalog were taken over, to be kept where directories say so."""
    started: float = 0.0
    finished: float | None = None
    counts: dict[str, int] = field(default_factory=dict)
    errors: list[tuple[str, str]] = field(default_factory=list)
    gaps: dict[str, int] = field(default_factory=dict)
    """What a recording may have missed, by cause (see GAPS): `refresh` mends it."""
    parts: list[Part] = field(default_factory=list)
    sections: list[str] = field(default_factory=list)
    """In a shared catalog, the folders that hold parts, each with a manifest of its own."""

    def asked_for(self) -> tuple[object, ...]:
        """What two builds must have in common for one to go on with what the other left."""
        return (self.root, self.exclude, self.one_file_system, self.layouts)

    def save(self, path: Path) -> None:
        """Write it durably, at one moment."""
        unfinished = path.with_name(path.name + ".unfinished")
        text = json.dumps({"format": FORMAT, "version": SCHEMA_VERSION} | asdict(self), indent=1)
        with open(unfinished, "w", encoding="ascii", opener=_private) as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.rename(unfinished, path)

    @classmethod
    def load(cls, path: Path) -> Manifest:
        """Raises CatalogError where it is not a manifest of this version."""
        try:
            text = path.read_text(encoding="ascii")
        except FileNotFoundError:
            raise CatalogError(f"{path.parent} is no catalog: it has no {path.name}") from None
        except NotADirectoryError:
            raise CatalogError(f"{path.parent} is no catalog: it is not a folder") from None
        except PermissionError:
            raise CatalogHidden(
                f"{path.parent}: permission denied: a catalog shows what its builder could see, and is the"
                " builder's alone; build your own, or ask for one made by 'waystage catalog share'"
            ) from None
        except UnicodeDecodeError:
            raise CatalogError(f"{path} is damaged: build the catalog anew") from None
        try:
            value = json.loads(text)
            known_format, version = value.pop("format"), value.pop("version")
        except (ValueError, KeyError, AttributeError, TypeError):
            raise CatalogError(f"{path} is damaged or of no catalog: build the catalog anew") from None
        if known_format != FORMAT:
            raise CatalogError(f"{path} is not a catalog of Waystage but of {known_format!r}")
        if version != SCHEMA_VERSION:
            raise CatalogError(
                f"{path} has version {version!r}, and this Waystage reads version {SCHEMA_VERSION}:"
                " build the catalog anew, or use the Waystage that wrote it"
            )
        try:
            parts = [
                Part(int(part["number"]), int(part["rows"]), part.get("summary"))
                for part in value.pop("parts")
            ]
            for part in parts:
                if part.summary is not None:
                    Summary.of(part.summary)
            errors = [(str(where), str(what)) for where, what in value.pop("errors")]
            targets = [(int(number), str(name)) for number, name in value.pop("targets")]
            gaps = {str(name): int(count) for name, count in value.pop("gaps", {}).items()}
            sections = [_below(section) for section in value.pop("sections", [])]
            return cls(**value, parts=parts, errors=errors, targets=targets, gaps=gaps, sections=sections)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise CatalogError(f"{path} is damaged: build the catalog anew") from None


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _below(section: str) -> str:
    """The path of a section, which leads nowhere else. Raises ValueError."""
    if not section or section.startswith("/") or ".." in section.split("/"):
        raise ValueError(section)
    return section


def explain(gaps: dict[str, int]) -> str:
    """What may be missing, in words for a sentence."""
    told = [
        f"{GAPS[name]} ({count:,})" if count > 1 else GAPS[name]
        for name, count in gaps.items()
        if name in GAPS
    ]
    return "; ".join(told)


class Catalog:
    """A finished catalog, opened for reading. Raises CatalogError where it cannot be used."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest = Manifest.load(path / MANIFEST)
        self.root = Path(self.manifest.root)
        self.hidden_sections = 0
        """Sections of a shared catalog that the file system does not let this user read."""
        for section in self.manifest.sections:
            try:
                found = Manifest.load(path / section / MANIFEST)
            except CatalogHidden:
                self.hidden_sections += 1
            else:
                self.manifest.parts += [replace(part, section=section) for part in found.parts]
        for part in self.manifest.parts:
            self._check(part)

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.manifest.parts)

    def entries_files(self) -> list[Path]:
        return [self.path / part.entries for part in self.manifest.parts]

    def open_entries(self, file: Path) -> pq.ParquetFile:
        """One of `entries_files`, for reading row groups."""
        with _damage_named(self.path):
            return pq.ParquetFile(file, read_dictionary=WORDS)

    def dataset(self) -> ds.Dataset:
        """Every entry, to be scanned in pieces; the columns `directory`, `type` and `layout` stay dictionaries."""
        form = ds.ParquetFileFormat(dictionary_columns=WORDS)
        files = [str(file) for file in self.entries_files()]
        if not files:
            return ds.dataset(ENTRIES.empty_table())
        return ds.dataset(files, schema=ENTRIES, format=form)

    def entries(self, columns: list[str] | None = None) -> pa.Table:
        """Entries in memory, all columns or some."""
        with _damage_named(self.path):
            return self.dataset().to_table(columns=columns)

    def batches(
        self,
        columns: list[str] | None = None,
        rows: int = 1 << 17,
        which: pc.Expression | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Entries in pieces of at most so many rows, for what must not hold them all; `which` says which entries.

        Row groups whose statistics exclude `which` are not read.
        """
        if not self.manifest.parts:
            return
        with _damage_named(self.path):
            for part in self.dataset().get_fragments(filter=which):
                groups = part.split_by_row_group(which, ENTRIES)
                # Arrow's own scanner reads ahead of a slow reader by up to a GB; so it is asked for a little at a time.
                for first in range(0, len(groups), GROUPS_AT_ONCE):
                    some = groups[first : first + GROUPS_AT_ONCE]
                    table = ds.FileSystemDataset(some, ENTRIES, part.format).to_table(columns, which)
                    yield from table.to_batches(max_chunksize=rows)

    def summary(self) -> Summary | None:
        """Totals of all entries; None where a part has none."""
        made = [None if part.summary is None else Summary.of(part.summary) for part in self.manifest.parts]
        return Summary.whole(made)

    def directories(self) -> pa.Table:
        """Every directory with what it was when it was read."""
        with _damage_named(self.path):
            return read_directories(self.path, self.manifest.parts)

    def _check(self, part: Part) -> None:
        path = self.path / part.entries
        for file, rows in ((path, part.rows), (self.path / part.directories, None)):
            try:
                found = pq.read_metadata(file).num_rows
            except FileNotFoundError:
                raise CatalogError(f"{file} is missing: build the catalog anew") from None
            except DAMAGE as error:
                raise CatalogError(f"{file} is damaged ({_short(error)}): build the catalog anew") from None
            if rows is not None and found != rows:
                raise CatalogError(f"{file} has {found} entries, not {rows}: build the catalog anew")


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    """Files may be damaged where opening them does not show it."""
    try:
        yield
    except DAMAGE as error:
        raise CatalogError(f"{path} is damaged ({_short(error)}): build the catalog anew") from None


def read_directories(folder: Path, parts: list[Part]) -> pa.Table:
    """The directories of some parts."""
    tables = [pq.read_table(folder / part.directories, schema=DIRECTORIES) for part in parts]
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


def _short(error: Exception) -> str:
    lines: list[str] = str(error).splitlines() or [type(error).__name__]
    return lines[0][:120].rstrip(".")
