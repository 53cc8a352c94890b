"""The entries of a catalog cut into ranges of about the same work, for tasks on many nodes.

Arrives: a catalog, a number of tasks that suits.
Leaves: ranges, each some rows of one row group; large files, hard links and directories apart from them.
Must not know: what is done with entries.

A range is named by numbers: the task that works on them reads the rows themselves.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from waystage.catalog.store import Catalog, damage_named, paths_of

ENTRY_COST = 1 << 16
"""Bytes whose transfer takes about as long as the metadata of one entry."""

LEAST_COST, MOST_COST = 4 << 20, 16 << 30
"""Of a range: at least far more than the scheduler takes for a task, at most what may be lost with a worker."""

LARGE_BYTES = 256 << 20
"""A file from this size on is a separate task: its parts are kept when the task is run again."""

TASKS_A_THREAD = 8
"""Enough that the last ones end at about the same time."""


@dataclass(frozen=True)
class Range:
    """Rows `first` to `end` of row group `group` in part `part`; `cost` in bytes, with ENTRY_COST for each entry."""

    part: int
    group: int
    first: int
    end: int
    cost: float


@dataclass
class Split:
    """A catalog's entries: ranges; (path, size) of large files; how many directories and hard links there are."""

    ranges: list[Range] = field(default_factory=list)
    large: list[tuple[bytes, int]] = field(default_factory=list)
    directories: int = 0
    linked: int = 0
    entries: int = 0
    bytes: int = 0

    @property
    def cost(self) -> float:
        return sum(range.cost for range in self.ranges) + sum(size for _, size in self.large)


def split(catalog: Catalog, threads: int, *, links_apart: bool, report: Callable[[], None]) -> Split:
    """Cut the entries into ranges for `threads` concurrent tasks. `report` is called now and then.

    Directories, large files and, with `links_apart`, entries with several hard links are in no range's work.
    Raises CatalogError.
    """
    most = _cost_of_a_range(catalog, threads)
    found = Split()
    for part, file in enumerate(catalog.held_entries()):
        for group in range(file.groups):
            report()
            with damage_named(catalog.path):
                table = file.read([group], columns=["type", "size", "links"], words=["type"])
            taken, large = _selected(table, links_apart)
            size = table["size"].to_numpy()
            is_file = _is(table, "f")
            found.entries += table.num_rows
            found.bytes += int(size[is_file].sum())
            found.directories += int(_is(table, "d").sum())
            found.linked += int((~_is(table, "d") & ~taken & ~large).sum())
            cost = np.where(taken, ENTRY_COST + np.where(is_file, size, 0), 0).astype(np.float64)
            found.ranges += [Range(part, group, *bounds) for bounds in _cut(cost, most)]
            if large.any():
                with damage_named(catalog.path):
                    names = file.read([group], columns=["directory", "name"], words=["directory"])
                paths = paths_of(names.filter(pa.array(large))).to_pylist()
                found.large += zip(paths, size[large].tolist(), strict=True)
    return found


def paths_in(catalog: Catalog, of: Range, *, links_apart: bool) -> list[bytes]:
    """The paths of a range's work. Raises CatalogError."""
    table = _rows(catalog, of, ["directory", "name", "type", "size", "links"])
    taken, _ = _selected(table, links_apart)
    paths: list[bytes] = paths_of(table.filter(pa.array(taken))).to_pylist()
    return paths


def paths_apart(catalog: Catalog, *, links_apart: bool) -> Iterator[list[bytes]]:
    """The paths of all directories, and with `links_apart` of all entries with several hard links."""
    for batch in catalog.batches(["directory", "name", "type", "size", "links"]):
        table = pa.Table.from_batches([batch])
        taken, large = _selected(table, links_apart)
        yield paths_of(table.filter(pa.array(~taken & ~large))).to_pylist()


@functools.lru_cache(maxsize=2)
def opened(path: str) -> Catalog:
    """A catalog that no command replaces while it is used, kept open between tasks of a worker."""
    return Catalog(Path(path))


def _rows(catalog: Catalog, of: Range, columns: list[str]) -> pa.Table:
    file = catalog.held_entries()[of.part]
    with damage_named(catalog.path):
        table = file.read([of.group], columns=columns, words=["directory", "type"])
    return table.slice(of.first, of.end - of.first)


def _selected(table: pa.Table, links_apart: bool) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which rows are a range's work, and which are large files."""
    taken = ~_is(table, "d")
    if links_apart:
        taken &= table["links"].to_numpy() <= 1
    large = taken & _is(table, "f") & (table["size"].to_numpy() >= LARGE_BYTES)
    return taken & ~large, large


def _is(table: pa.Table, letter: str) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = pc.equal(table["type"].cast(pa.string()), letter).to_numpy()
    return found


def _cost_of_a_range(catalog: Catalog, threads: int) -> float:
    summary = catalog.summary()
    by_type = None if summary is None else summary.by["type"]
    size = 0 if by_type is None else by_type.get("f", [0, 0])[1]
    cost = (size + ENTRY_COST * catalog.rows) / (TASKS_A_THREAD * max(1, threads))
    return float(min(max(cost, LEAST_COST), MOST_COST))


def _cut(cost: NDArray[np.float64], most: float) -> Iterator[tuple[int, int, float]]:
    """First row, end and cost of each piece of at most about `most`; none without work."""
    total = np.concatenate([[0.0], np.cumsum(cost)])
    first = 0
    while first < len(cost):
        end = int(np.searchsorted(total, total[first] + most, side="right")) - 1
        end = min(max(end, first + 1), len(cost))
        piece = float(total[end] - total[first])
        if piece:
            yield first, end, piece
        first = end
