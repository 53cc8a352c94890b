"""Parquet files that detect corruption, and one version of several held open.

Arrives: a finished Parquet file; or the name of one in an open folder.
Leaves: the file with digests of all its parts; tables of what was written, or one clear error.
Must not know: what the columns mean.

Parquet's own checksums cover pages without their headers and without the footer: a changed bit there gives other
data. So the footer holds a digest of each column chunk, headers among them, and of itself. Pages have their own
checksums as well, for other programs. A file is held by its descriptor, so that it stays readable when its folder
is replaced.
"""

from __future__ import annotations

import errno
import os
import resource
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from waystage._native import digest_bytes, digest_ranges
from waystage.catalog.errors import CatalogError

KEY = b"waystage.seal"
DIGITS = 16
"""Of a digest of 64 bits. The first is the footer's, taken while its own digits are zeros; the others are the
column chunks'."""

TAIL = 8
"""Bytes behind the footer: its length, and Parquet's mark."""

FEW_VALUES = 300_000
"""Values that are decoded before another thread has begun."""

MARK = b"PAR1"

DAMAGE = (
    pa.ArrowException, OSError, ValueError, KeyError, IndexError, TypeError, OverflowError, MemoryError, RecursionError,
)  # fmt: skip
"""What Arrow raises for a corrupted file: among others for names that are no text, and for excessive sizes."""


class Damaged(ValueError):
    """A file is corrupted."""


def room_for_seal(groups: int, columns: int) -> dict[bytes, bytes]:
    """Metadata to be written with a file, where its seal is put."""
    return {KEY: b"0" * (DIGITS * (1 + groups * columns))}


def leaves(schema: pa.Schema) -> int:
    """How many columns a file of this schema has: each field of a structure is one."""

    def count(kind: pa.DataType) -> int:
        if pa.types.is_list(kind):
            return count(kind.value_type)
        if pa.types.is_struct(kind):
            return sum(count(kind.field(index).type) for index in range(kind.num_fields))
        return 1

    return sum(count(field.type) for field in schema)


def put_seal(path: Path) -> None:
    """Seal a file that was written with room for it."""
    with open(path, "r+b") as file:
        tail, start = _tail(file.fileno())
        metadata = pq.read_metadata(pa.BufferReader(tail))
        digests = digest_ranges(
            str(path),
            [run for group in range(metadata.num_row_groups) for run in _runs(metadata.row_group(group))],
        )
        empty = room_for_seal(metadata.num_row_groups, metadata.num_columns)[KEY]
        at = tail.index(empty, tail.index(KEY))
        # The length before it may be written as a zero's byte.
        while tail.startswith(empty, at + 1):
            at += 1
        chunks = b"".join(b"%016x" % digest for digest in digests)
        tail = tail[: at + DIGITS] + chunks + tail[at + len(empty) :]
        os.pwrite(file.fileno(), b"%016x" % digest_bytes(tail) + chunks, start + at)


class HeldFile:
    """A Parquet file that is held open. Reads return what was written, or raise CatalogError.

    `sealed` says whether it must have a seal: those of earlier releases have none. Raises FileNotFoundError or
    CatalogError.
    """

    def __init__(
        self,
        name: str,
        schema: pa.Schema,
        *,
        folder: int | None,
        shown: Path,
        sealed: bool,
        remedy: str = "build the catalog anew",
    ) -> None:
        self.shown = shown
        self._remedy = remedy
        self._schema = schema
        self._fd = _opened(name, folder, shown)
        weakref.finalize(self, os.close, self._fd)
        self._checked: set[tuple[int, int]] = set()
        self._digests: NDArray[np.uint64] | None = None
        self._runs: dict[int, list[tuple[int, int]]] = {}
        self._files: dict[tuple[str, ...], pq.ParquetFile] = {}
        try:
            self.metadata = self._footer(sealed)
            schema = self.metadata.schema
            self._leaves = [schema.column(leaf).path for leaf in range(self.metadata.num_columns)]
        except DAMAGE as error:
            raise self._damaged(error) from None

    @property
    def path(self) -> str:
        """A path of this file that is valid as long as this object, also when the file is removed."""
        return f"/proc/self/fd/{self._fd}"

    @property
    def rows(self) -> int:
        count: int = self.metadata.num_rows
        return count

    @property
    def groups(self) -> int:
        count: int = self.metadata.num_row_groups
        return count

    @property
    def is_sealed(self) -> bool:
        return self._digests is not None

    def check(self, groups: Iterable[int] | None = None, columns: Sequence[str] | None = None) -> None:
        """Compare column chunks with their digests, each once."""
        if self._digests is None:
            return
        places = self._unchecked(range(self.groups) if groups is None else groups, columns)
        try:
            found = digest_ranges(self.path, [self._run(group, leaf) for group, leaf in places])
        except DAMAGE as error:
            raise self._damaged(error) from None
        for (group, leaf), digest in zip(places, found, strict=True):
            if self._digests[group * len(self._leaves) + leaf] != digest:
                raise self._damaged(Damaged(f"column {self._leaves[leaf]}, row group {group}"))
        self._checked.update(places)

    def read_ahead(self, groups: Iterable[int], columns: Sequence[str] | None = None) -> None:
        """Have the kernel fetch column chunks that were not read before, posix_fadvise(2)."""
        for group, leaf in self._unchecked(groups, columns):
            os.posix_fadvise(self._fd, *self._run(group, leaf), os.POSIX_FADV_WILLNEED)

    def _run(self, group: int, leaf: int) -> tuple[int, int]:
        """The first byte and the number of bytes of a column chunk. A large catalog has too many to find all of them
        when it is opened.
        """
        runs = self._runs.get(group)
        if runs is None:
            runs = self._runs[group] = _runs(self.metadata.row_group(group))
        return runs[leaf]

    def _unchecked(self, groups: Iterable[int], columns: Sequence[str] | None) -> list[tuple[int, int]]:
        wanted = None if columns is None else set(columns)
        return [
            (group, leaf)
            for group in groups
            for leaf, path in enumerate(self._leaves)
            if (wanted is None or path.partition(".")[0] in wanted) and (group, leaf) not in self._checked
        ]

    def read(
        self,
        groups: Sequence[int] | None = None,
        columns: Sequence[str] | None = None,
        words: Sequence[str] = (),
    ) -> pa.Table:
        """Row groups as a table of the schema, all or some; `words` stay dictionaries. Columns that the file has
        not are null."""
        self.check(groups, columns)
        names = self._schema.names if columns is None else list(columns)
        try:
            file = self._parquet(tuple(words))
            there = [name for name in names if name in file.schema_arrow.names]
            chosen = range(self.groups) if groups is None else groups
            tables = [file.read_row_group(group, columns=there) for group in chosen]
            table = pa.concat_tables(tables) if tables else file.schema_arrow.empty_table().select(there)
        except DAMAGE as error:
            raise self._damaged(error) from None
        return self._completed(table, names)

    def read_at_once(self, columns: Sequence[str], words: Sequence[str]) -> pa.Table:
        """All row groups, which were checked; few values in the calling thread alone, else a column a thread."""
        try:
            file = self._parquet(tuple(words))
            there = [name for name in columns if name in file.schema_arrow.names]
            shared = self.rows * len(there) > FEW_VALUES
            table = file.read_row_groups(range(self.groups), columns=there, use_threads=shared)
            table = self._completed(table, columns)
            wanted = pa.schema([self._schema.field(name) for name in columns])
            return table if table.schema.equals(wanted) else table.cast(wanted)
        except DAMAGE as error:
            raise self._damaged(error) from None

    def _completed(self, table: pa.Table, names: Sequence[str]) -> pa.Table:
        """All of the columns in this order, those that the file has not as nulls."""
        absent = [name for name in names if name not in table.column_names]
        for name in absent:
            kind = self._schema.field(name)
            table = table.append_column(kind, pa.nulls(table.num_rows, kind.type))
        return table.select(names)

    def _parquet(self, words: tuple[str, ...]) -> pq.ParquetFile:
        if words not in self._files:
            self._files[words] = pq.ParquetFile(
                self.open(), read_dictionary=list(words), metadata=self.metadata
            )
        return self._files[words]

    def open(self) -> pa.NativeFile:
        """Open it again, with a separate descriptor."""
        return pa.OSFile(self.path)

    def _footer(self, sealed: bool) -> pq.FileMetaData:
        tail, _ = _tail(self._fd)
        metadata = pq.read_metadata(pa.BufferReader(tail))
        seal = (metadata.metadata or {}).get(KEY)
        if seal is None:
            if sealed:
                raise Damaged("it has no digests")
            return metadata
        at = tail.index(seal, tail.index(KEY))
        if _number(seal[:DIGITS]) != digest_bytes(tail[:at] + b"0" * DIGITS + tail[at + DIGITS :]):
            raise Damaged("its footer was changed")
        count = metadata.num_row_groups * metadata.num_columns
        if len(seal) != DIGITS * (1 + count):
            raise Damaged("its digests were cut")
        self._digests = np.frombuffer(bytes.fromhex(seal[DIGITS:].decode("ascii")), ">u8")
        return metadata

    def _damaged(self, error: Exception) -> CatalogError:
        return CatalogError(f"{self.shown} is damaged ({short(error)}): {self._remedy}")


def short(error: Exception) -> str:
    """The first line of an error."""
    lines: list[str] = str(error).splitlines() or [type(error).__name__]
    return lines[0][:120].rstrip(".")


def _number(digits: bytes) -> int:
    if len(digits) != DIGITS:
        raise Damaged("its digests were cut")
    return int(digits, 16)


def _opened(name: str, folder: int | None, shown: Path) -> int:
    try:
        return os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise CatalogError(f"{shown} cannot be read: {error.strerror}") from None
    _take_descriptors()
    try:
        return os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise CatalogError(
            f"{shown} cannot be opened besides the other files of its catalog: {error.strerror}: raise 'ulimit -n'"
        ) from None


def _take_descriptors() -> None:
    """Raise the limit of open files: a catalog of thousands of parts holds as many."""
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _tail(fd: int) -> tuple[bytes, int]:
    """The footer with what follows it, and where it begins."""
    size = os.fstat(fd).st_size
    end = os.pread(fd, TAIL, max(0, size - TAIL))
    length = int.from_bytes(end[:4], "little")
    if end[4:] != MARK or length + TAIL > size:
        raise Damaged("it does not end as a Parquet file")
    start = size - TAIL - length
    tail = os.pread(fd, length + TAIL, start)
    if len(tail) != length + TAIL:
        raise Damaged("it became shorter")
    return tail, start


def _runs(group: Any) -> list[tuple[int, int]]:
    """The first byte and the number of bytes of each column chunk of a row group."""
    return [_run(group.column(leaf)) for leaf in range(group.num_columns)]


def _run(column: Any) -> tuple[int, int]:
    first = column.data_page_offset
    if column.has_dictionary_page and 0 < column.dictionary_page_offset < first:
        first = column.dictionary_page_offset
    if first < 0 or column.total_compressed_size < 0:
        raise Damaged("a column chunk has no place")
    return first, column.total_compressed_size
