"""The entries of a catalog in pieces: while one is worked on, the next are decoded and some after them read from disk.

Arrives: the files of the catalog's parts, with the columns to read of each, and a condition.
Leaves: batches of entries for which it holds, in the catalog's order.
Must not know: what is asked, and how a catalog is opened.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from waystage.catalog.schema import ENTRIES
from waystage.catalog.sealed import HeldFile, leaves

if TYPE_CHECKING:
    import pyarrow.dataset as ds

WORDS = ["directory", "type", "layout"]
"""Columns that remain dictionaries in memory."""

LEAST_GROUPS, MOST_GROUPS = 4, 8
"""Row groups, of 65,536 entries at most, that are read together: enough for the cores, and few of many columns."""

COLUMNS_AT_ONCE = 48
"""Column chunks that are read together: 24 MiB of numbers."""

HOLDS = "which holds"
"""A column for the condition, beside those of a catalog."""

DECODED_AHEAD = 2
"""Pieces that are decoded while one is worked on, each in a thread: one leaves cores idle between its steps."""

STEPS_AHEAD = 8
"""Pieces that the kernel is asked to fetch before they are decoded: some 20 MB of two columns, enough for a disk to be
busy all the time."""

Source = tuple[HeldFile, list[str] | None]
"""A file of entries and the columns to read of it; None is all."""


def scan(sources: Iterable[Source], which: pc.Expression | None, rows: int) -> Iterator[pa.RecordBatch]:
    """Batches of at most `rows` entries. The columns include those that `which` is of.

    Raises CatalogError where a file is corrupted, or what Arrow raises.
    """
    # Arrow's own scanner reads ahead of a slow reader by up to a GB; so it is asked for a little at a time.
    readers = ThreadPoolExecutor(DECODED_AHEAD, "waystage-scan")
    try:
        decoded: deque[Future[pa.Table]] = deque()
        for step in _read_ahead(_steps(sources, which)):
            decoded.append(readers.submit(step.read, which))
            if len(decoded) > DECODED_AHEAD:
                yield from decoded.popleft().result().to_batches(max_chunksize=rows)
        while decoded:
            yield from decoded.popleft().result().to_batches(max_chunksize=rows)
    finally:
        readers.shutdown(cancel_futures=True)


@dataclass(frozen=True)
class _Step:
    """Row groups of one file that are read together."""

    file: HeldFile
    columns: list[str] | None
    fragments: list[ds.ParquetFileFragment]

    @property
    def groups(self) -> list[int]:
        return [fragment.row_groups[0].id for fragment in self.fragments]

    def read(self, which: pc.Expression | None) -> pa.Table:
        import pyarrow.dataset as ds

        self.file.check(self.groups, self.columns)
        together = ds.FileSystemDataset(self.fragments, ENTRIES, self.fragments[0].format)
        if which is None:
            return plausible(together.to_table(self.columns))
        # Twice as fast as Arrow's own filter of a scan, which cuts each column into pieces of some hundred rows.
        names = ENTRIES.names if self.columns is None else self.columns
        table = together.to_table({**{name: pc.field(name) for name in names}, HOLDS: which})
        return plausible(table.drop_columns(HOLDS).filter(table[HOLDS]))


def _read_ahead(steps: Iterable[_Step]) -> Iterator[_Step]:
    """The same steps, of which the kernel fetches some before they are decoded."""
    ahead: deque[_Step] = deque()
    for step in steps:
        step.file.read_ahead(step.groups, step.columns)
        ahead.append(step)
        if len(ahead) > STEPS_AHEAD:
            yield ahead.popleft()
    yield from ahead


def _steps(sources: Iterable[Source], which: pc.Expression | None) -> Iterator[_Step]:
    for file, columns in sources:
        groups = [
            group
            for group in fragment(file).split_by_row_group(which, ENTRIES)
            if group.row_groups is None or len(group.row_groups)
        ]
        at_once = _groups_at_once(columns)
        for first in range(0, len(groups), at_once):
            yield _Step(file, columns, groups[first : first + at_once])


def _groups_at_once(columns: Sequence[str] | None) -> int:
    read = ENTRIES if columns is None else pa.schema([ENTRIES.field(name) for name in columns])
    return min(MOST_GROUPS, max(LEAST_GROUPS, COLUMNS_AT_ONCE // max(1, leaves(read))))


def fragment(file: HeldFile) -> ds.ParquetFileFragment:
    """A file of entries as Arrow's datasets take it."""
    import pyarrow.dataset as ds  # It takes a third of a second, and many commands scan nothing.

    return ds.ParquetFileFormat(dictionary_columns=WORDS).make_fragment(file.open())


def plausible(table: pa.Table) -> pa.Table:
    """The same. Raises ValueError where a column holds what no walk writes: not all files were written by one."""
    for name in ("size", "blocks"):
        if name in table.column_names and (pc.min(table[name]).as_py() or 0) < 0:
            raise ValueError(f"a negative {name}")
    for name in ("directory", "name", "type", "size", "mtime", "inode"):
        if name in table.column_names and table[name].null_count:
            raise ValueError(f"an entry without {name}")
    for name in ("type", "layout"):
        if name in table.column_names:
            for chunk in table[name].chunks:
                words = chunk.dictionary if isinstance(chunk, pa.DictionaryArray) else chunk
                words.validate(full=True)
    return table


def of_type(table: pa.Table, letter: str) -> pa.ChunkedArray:
    """Which entries are of the type that find(1) names by this letter."""
    return pa.chunked_array(
        [
            pc.equal(chunk.dictionary, letter).take(chunk.indices)
            if isinstance(chunk, pa.DictionaryArray)
            else pc.equal(chunk, letter)
            for chunk in table["type"].chunks
        ],
        pa.bool_(),
    )
