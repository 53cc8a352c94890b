"""The files of a catalog: columns on disk, each complete or absent.

Arrives: Arrow tables.
Leaves: Parquet files under their final names, only when they are whole.
Must not know: walks, manifests.
"""

from __future__ import annotations

import io
import os
import secrets
import shutil
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from waystage.catalog.manifest import private
from waystage.catalog.schema import DIRECTORIES, ENTRIES
from waystage.catalog.sealed import leaves, put_seal, room_for_seal
from waystage.catalog.summary import Summary

COUNTED = [
    "size", "mtime", "ctime", "atime", "inode", "blocks", "mtime_seconds", "ctime_seconds", "atime_seconds",
]  # fmt: skip
"""Columns of numbers that differ little from one row to the next."""

REPEATED = [
    "directory",
    "type",
    "mode",
    "uid",
    "gid",
    "device",
    "links",
    "layout",
    "layout_generation",
    "stripe_size",
]
"""Columns of few different values. Targets of objects are too many to be worth a dictionary's pages."""

DICTIONARY_PAGE_BYTES = 16 << 20
"""A row group of 65,536 entries may be in as many directories, whose paths must still fit into one page."""

WORTH = 0.9
"""Columns of numbers are compressed where that takes at least a tenth from them."""


class PartWriter:
    """Writes one Parquet file; nothing has its name before `close`, and nothing remains after an exception."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path = path
        self.rows = 0
        self._totals = Summary() if schema is ENTRIES else None
        self._unfinished = path.with_name(path.name + ".unfinished")
        self._file = open(self._unfinished, "wb", opener=private)  # noqa: SIM115  closed by close and abandon
        self._sealed = False
        self._groups = 0
        self._schema = schema
        self._writer: pq.ParquetWriter | None = None

    def write(self, table: pa.Table) -> None:
        """Add a row group."""
        if table.num_rows:
            if self._writer is None:
                self._writer = pq.ParquetWriter(
                    self._file, self._schema, **_settings_for(table, self._schema)
                )
            self._writer.write_table(table, row_group_size=table.num_rows)
            self.rows += table.num_rows
            self._groups += 1
            if self._totals is not None:
                self._totals.add(table)

    @property
    def summary(self) -> dict[str, Any] | None:
        """Totals of the entries so far, for the manifest."""
        return None if self._totals is None else self._totals.plain()

    def close(self) -> None:
        """Make it durable and rename it into place. After an interrupt it can be called again."""
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._file, self._schema, **_settings(self._schema))
        if self._writer.is_open:
            self._writer.add_key_value_metadata(room_for_seal(self._groups, leaves(self._schema)))
            self._writer.close()
        if not self._file.closed:
            self._file.flush()
            if not self._sealed:
                put_seal(self._unfinished)
                self._sealed = True
            os.fsync(self._file.fileno())
            self._file.close()
        if self._unfinished.exists():
            os.rename(self._unfinished, self.path)

    def abandon(self) -> None:
        """Remove the file."""
        if self._writer is not None:
            with suppress(OSError, ValueError, pa.ArrowException):
                self._writer.close()  # or its destructor would complain of a closed file
        self._file.close()
        self._unfinished.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()


def give_name(file: Path, name: Path) -> None:
    """A hard link to a part, which is immutable once complete; a copy where links are not possible."""
    name.unlink(missing_ok=True)
    try:
        os.link(file, name)
    except OSError:
        shutil.copy2(file, name)


def new_tag() -> str:
    """The unique part of a part's name."""
    return secrets.token_hex(4)


def _settings_for(first: pa.Table, schema: pa.Schema) -> dict[str, Any]:
    """How to write a part that begins with these rows: numbers that zstd makes hardly smaller are left as they are.

    Differences of sizes, for one, are as good as noise in most trees, and are read in two thirds of the time without.
    """
    settings = _settings(schema)
    tried = io.BytesIO()
    pq.write_table(first, tried, row_group_size=first.num_rows, **settings)
    group = pq.read_metadata(tried).row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    pays = {column.path_in_schema: not _is_noise(column, first.num_rows) for column in columns}
    settings["compression"] = {path: "zstd" if worth else "none" for path, worth in pays.items()}
    settings["compression_level"] = {
        path: settings["compression_level"] for path, worth in pays.items() if worth
    }
    return settings


def _is_noise(column: pq.ColumnChunkMetaData, rows: int) -> bool:
    """Numbers that take a byte a row or more, and zstd less than a tenth from it.

    A column that is empty so far may yet fill.
    """
    plain = column.total_uncompressed_size
    counted = "DELTA_BINARY_PACKED" in column.encodings
    return counted and plain >= rows and column.total_compressed_size > WORTH * plain


def _settings(schema: pa.Schema) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "compression": "zstd",
        "compression_level": 1,
        "write_statistics": True,
        "write_page_checksum": True,
    }
    if schema is DIRECTORIES:
        encoding = {"path": "DELTA_BYTE_ARRAY", "bytes": "DELTA_BINARY_PACKED"}
        repeated = ["mode", "uid", "gid", "device", "state"]
    elif schema is ENTRIES:
        # Names stay plain: zstd compresses them as well as DELTA_BYTE_ARRAY, and reading takes two thirds of the time.
        encoding = dict.fromkeys(COUNTED, "DELTA_BINARY_PACKED")
        encoding["objects.list.element.length"] = "DELTA_BINARY_PACKED"
        # The first bytes of objects are multiples of stripes: few, and read quicker than differences.
        repeated = [*REPEATED, "objects.list.element.target", "objects.list.element.offset"]
        settings["dictionary_pagesize_limit"] = DICTIONARY_PAGE_BYTES
    else:
        raise ValueError("a part has the schema of entries or of directories")
    return settings | {"column_encoding": encoding, "use_dictionary": repeated}
