"""The file of checksums beside a catalog: read intact or not at all.

Arrives: rows of checksums; or the path of such a file.
Leaves: one Parquet file of the documented schema (docs/reference/catalog.md); its rows, file by file.
Must not know: how objects are summed.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from waystage._native import CHECKSUM_ALGORITHM
from waystage.catalog.errors import BuildError, CatalogError
from waystage.catalog.manifest import private
from waystage.catalog.options import UNFINISHED_FILE
from waystage.catalog.sealed import HeldFile, leaves, put_seal, room_for_seal
from waystage.catalog.store import Catalog
from waystage.display import display

FORMAT = "waystage-checksums"
VERSION = 2
"""Of files that are made anew. Version 1 hashes every byte, zeros in holes too, and has no seal; it is gone on with
where it is there."""

READ_VERSIONS = (1, 2)
REMEDY = "remove it and make it anew"
KEY = b"waystage"
TIME = pa.timestamp("ns", tz="UTC")

SCHEMA = pa.schema(
    [
        pa.field("path", pa.binary(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("mtime", TIME, nullable=False),
        pa.field("inode", pa.uint64(), nullable=False),
        pa.field("layout", pa.string()),
        pa.field("layout_generation", pa.uint32(), nullable=False),
        pa.field("component", pa.int32(), nullable=False),
        pa.field("object", pa.uint64(), nullable=False),
        pa.field("target", pa.uint32()),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("length", pa.int64(), nullable=False),
        pa.field("digest", pa.binary(16)),
    ]
)

GROUP_ROWS = 1 << 16

Row = dict[str, Any]


@dataclass(frozen=True)
class Sums:
    """A file of checksums, held open, and the version that says what is hashed."""

    file: HeldFile
    version: int


def open_sums(path: Path, catalog: Catalog) -> Sums:
    """The file of checksums at `path`.

    Raises CatalogError where it is damaged, of another version or of another tree.
    """
    try:
        file = HeldFile(str(path), SCHEMA, folder=None, shown=path, sealed=False, remedy=REMEDY)
        about = json.loads((file.metadata.metadata or {})[KEY])
        form, version, algorithm = about["format"], about["version"], about["algorithm"]
        root = about["root"]
    except FileNotFoundError:
        raise CatalogError(
            f"{path} is not there: make checksums with 'waystage catalog checksum {catalog.path}'"
        ) from None
    except (CatalogError, OSError, ValueError, KeyError, TypeError, RecursionError):
        raise CatalogError(f"{path} is damaged or has no checksums: {REMEDY}") from None
    known = type(version) is int and version in READ_VERSIONS
    if form != FORMAT or not known or algorithm != CHECKSUM_ALGORITHM:
        raise CatalogError(
            f"{path} has {form!r} {version!r} by {algorithm!r}, and this Waystage reads versions 1 and 2 by"
            f" {CHECKSUM_ALGORITHM}: {REMEDY}"
        )
    if version > 1 and not file.is_sealed:
        raise CatalogError(f"{path} is damaged (it has no digests): {REMEDY}")
    names = [file.metadata.schema.column(index).path for index in range(file.metadata.num_columns)]
    if root != catalog.manifest.root or names != SCHEMA.names:
        raise CatalogError(
            f"{path} is of {display(str(root))} and not of {display(catalog.manifest.root)}: {REMEDY}"
        )
    return Sums(file, version)


class Writer:
    """Writes the file; nothing has its name before `close`, and nothing remains after `abandon`."""

    def __init__(self, path: Path, catalog: Catalog, version: int) -> None:
        self._path = path
        self._sealed = version > 1
        self._groups = 0
        self._unfinished = path.with_name(path.name + UNFINISHED_FILE)
        about = {
            "format": FORMAT,
            "version": version,
            "algorithm": CHECKSUM_ALGORITHM,
            "root": catalog.manifest.root,
            "started": time.time(),
        }
        self._schema = SCHEMA.with_metadata({KEY: json.dumps(about).encode("ascii")})
        self._rows: list[Row] = []
        try:
            # A catalog is its builder's alone, and so is what was drawn from it.
            self._file = open(self._unfinished, "wb", opener=private)  # noqa: SIM115
        except OSError as error:
            raise BuildError(f"{self._unfinished} cannot be written: {error.strerror}") from None
        self._writer = pq.ParquetWriter(
            self._file,
            self._schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=["layout", "layout_generation", "component"],
            column_encoding={"path": "DELTA_BYTE_ARRAY", "mtime": "DELTA_BINARY_PACKED"},
            write_page_checksum=True,
        )

    def add(self, rows: list[Row]) -> None:
        self._rows += rows
        if len(self._rows) >= GROUP_ROWS:
            self._flush()

    def table(self, table: pa.Table) -> None:
        self._flush()
        if table.num_rows:
            self._write(table.cast(self._schema))

    def close(self) -> None:
        self._flush()
        if self._sealed:
            self._writer.add_key_value_metadata(room_for_seal(self._groups, leaves(SCHEMA)))
        self._writer.close()
        self._file.flush()
        if self._sealed:
            put_seal(self._unfinished)
        os.fsync(self._file.fileno())
        self._file.close()
        os.rename(self._unfinished, self._path)

    def abandon(self) -> None:
        with suppress(OSError, ValueError, pa.ArrowException):
            self._writer.close()  # or its destructor would complain of a closed file
        self._file.close()
        self._unfinished.unlink(missing_ok=True)

    def _flush(self) -> None:
        if self._rows:
            self._write(pa.Table.from_pylist(self._rows, schema=self._schema))
            self._rows = []

    def _write(self, table: pa.Table) -> None:
        self._writer.write_table(table, row_group_size=table.num_rows)
        self._groups += 1


def groups_of(sums: Sums, columns: list[str] | None = None) -> Iterator[pa.Table]:
    for number in range(sums.file.groups):
        table = sums.file.read([number], columns)
        for name in ("size", "offset", "length"):
            if name in table.column_names and (pc.min(table[name]).as_py() or 0) < 0:
                raise CatalogError(f"{sums.file.shown} is damaged (a negative {name}): {REMEDY}")
        yield table


def files_of_sums(sums: Sums) -> Iterator[list[Row]]:
    """The rows of each file together: they follow one another, perhaps over the border of two groups."""
    held: list[Row] = []
    for group in groups_of(sums):
        table = group.set_column(2, "mtime", group["mtime"].cast(pa.int64()))
        for row in table.to_pylist():
            if held and row["path"] != held[0]["path"]:
                yield held
                held = []
            held.append(row)
    if held:
        yield held
