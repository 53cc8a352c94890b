"""The entries of a catalog cut into ranges of about the same work, for tasks on many nodes.

Arrives: a catalog, a number of tasks that suits.
Leaves: ranges, each some rows of one row group; large files, hard links and directories apart from them.
Must not know: what is done with entries.

A range is named by numbers: the task that works on them reads the rows themselves. The parts of a catalog that is being
made can be cut as they come, so that work on them begins while the walk goes on.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from waystage.catalog.schema import ENTRIES
from waystage.catalog.sealed import HeldFile
from waystage.catalog.store import Catalog, Part, damage_named, held, of_type, paths_of
from waystage.catalog.summary import Summary
from waystage.catalog.targets import Objects, Targets

ENTRY_COST = 1 << 16
"""Bytes whose transfer takes about as long as the metadata of one entry."""

LEAST_COST, MOST_COST = 1 << 20, 16 << 30
"""Of a range: at least more than the scheduler takes for a task, some 10 ms, at most what may be lost with a worker. Tasks are
as small as that only at the end, where all nodes but the one with the last task wait for it."""

LARGE_BYTES = 256 << 20
"""A file from this size on is a separate task: its parts are kept when the task is run again."""

TASKS_A_THREAD = 8
"""Enough that the last ones end at about the same time."""

SHARE_OF_WAITING = 2
"""A task takes one of this number of shares, times the threads, of the work that waits: Polychronopoulos and Kuck's guided
self-scheduling (1987), halved since costs are estimates."""


@dataclass(frozen=True)
class Range:
    """Rows `first` to `end` of row group `group` in part `part`; `cost` in bytes, with ENTRY_COST for each entry."""

    part: int
    group: int
    first: int
    end: int
    cost: float
    loose: tuple[str, Part] | None = None
    """The folder and the part, where the catalog is not finished."""


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


class Waiting:
    """Ranges that wait for workers: given out in groups, large ones while much waits and small ones at the end."""

    def __init__(self) -> None:
        self._ranges: deque[Range] = deque()
        self.cost = 0.0

    def add(self, ranges: Iterable[Range]) -> None:
        """Put these behind the others, and large ones, which may be of one file, before them."""
        for of in ranges:
            (self._ranges.appendleft if of.cost >= LARGE_BYTES else self._ranges.append)(of)
            self.cost += of.cost

    def take(self, threads: int, *, is_wanted: bool) -> tuple[Range, ...]:
        """The ranges of the next task; none where none wait, or less than a task's work that no worker is idle for."""
        if not self._ranges or (self.cost < LEAST_COST and not is_wanted):
            return ()
        most = min(max(self.cost / (SHARE_OF_WAITING * max(1, threads)), LEAST_COST), MOST_COST)
        taken = [self._ranges.popleft()]
        cost = taken[0].cost
        while self._ranges and cost + self._ranges[0].cost <= most:
            taken.append(self._ranges.popleft())
            cost += taken[-1].cost
        self.cost = self.cost - cost if self._ranges else 0.0
        return tuple(taken)


def split(
    catalog: Catalog,
    threads: int,
    *,
    links_apart: bool,
    large_apart: bool = True,
    report: Callable[[], None],
) -> Split:
    """Cut the entries into ranges for `threads` concurrent tasks. `report` is called now and then.

    Directories are in no range's work, with `large_apart` no large files, and with `links_apart` no entries with several
    hard links.
    Raises CatalogError.
    """
    summary = catalog.summary()
    most = _cost_of_a_range(summary, catalog.rows, TASKS_A_THREAD * max(1, threads))
    found = Split()
    for part, file in enumerate(catalog.held_entries()):
        apart = (links_apart, large_apart)
        _cut_file(found, file, catalog.path, part, most, apart, report=report)
    return found


def split_part(
    folder: Path, part: Part, threads: int, *, links_apart: bool, large_apart: bool = True
) -> Split:
    """As `split`, of one part of a catalog in `folder` that is not finished. Raises CatalogError."""
    summary = None if part.summary is None else Summary.whole([Summary.of(part.summary)])
    # How much is to come is unknown: enough for all threads.
    most = _cost_of_a_range(summary, part.rows, 2 * max(1, threads))
    found = Split()
    loose = (str(folder), replace(part, summary=None))
    file = held(part.entries, ENTRIES, part, folder)
    apart = (links_apart, large_apart)
    _cut_file(found, file, folder, 0, most, apart, report=lambda: None, loose=loose)
    return found


def _cut_file(
    found: Split,
    file: HeldFile,
    path: Path,
    part: int,
    most: float,
    apart: tuple[bool, bool],
    *,
    report: Callable[[], None],
    loose: tuple[str, Part] | None = None,
) -> None:
    for group in range(file.groups):
        report()
        with damage_named(path):
            table = file.read([group], columns=["type", "size", "links"], words=["type"])
        taken, large = _selected(table, *apart)
        size = table["size"].to_numpy()
        is_file = _is(table, "f")
        found.entries += table.num_rows
        found.bytes += int(size[is_file].sum())
        found.directories += int(_is(table, "d").sum())
        found.linked += int((~_is(table, "d") & ~taken & ~large).sum())
        cost = np.where(taken, ENTRY_COST + np.where(is_file, size, 0), 0).astype(np.float64)
        found.ranges += [Range(part, group, *bounds, loose) for bounds in _cut(cost, most)]
        if large.any():
            with damage_named(path):
                names = file.read([group], columns=["directory", "name"], words=["directory"])
            paths = paths_of(names.filter(pa.array(large))).to_pylist()
            found.large += zip(paths, size[large].tolist(), strict=True)


def paths_in(
    catalog: str, ranges: Iterable[Range], *, links_apart: bool
) -> tuple[list[bytes], Objects | None]:
    """The paths of the work of ranges, of the catalog at this path, and their storage targets where these are several.
    Raises CatalogError."""
    paths: list[bytes] = []
    targets = Targets()
    for of in ranges:
        table = rows_of(catalog, of, ["directory", "name", "type", "size", "links", "objects"])
        taken, _ = _selected(table, links_apart)
        table = table.filter(pa.array(taken))
        paths += paths_of(table).to_pylist()
        targets.add(table)
    return paths, targets.objects()


def paths_apart(catalog: Catalog, *, links_apart: bool) -> Iterator[tuple[list[bytes], list[bool]]]:
    """The paths of all directories, and with `links_apart` of all entries with several hard links; whether each is a
    directory."""
    for batch in catalog.batches(["directory", "name", "type", "size", "links"]):
        table = pa.Table.from_batches([batch])
        taken, large = _selected(table, links_apart)
        apart = table.filter(pa.array(~taken & ~large))
        yield paths_of(apart).to_pylist(), _is(apart, "d").tolist()


@functools.lru_cache(maxsize=2)
def opened(path: str) -> Catalog:
    """A catalog that no command replaces while it is used, kept open between tasks of a worker."""
    return Catalog(Path(path))


def rows_of(catalog: str, of: Range, columns: list[str]) -> pa.Table:
    """The rows of a range, of the catalog at this path. Raises CatalogError."""
    if of.loose is None:
        path = Path(catalog)
        file = opened(catalog).held_entries()[of.part]
    else:
        path, part = Path(of.loose[0]), of.loose[1]
        file = held(part.entries, ENTRIES, part, path)
    with damage_named(path):
        table = file.read([of.group], columns=columns, words=["directory", "type"])
    return table.slice(of.first, of.end - of.first)


def _selected(
    table: pa.Table, links_apart: bool, large_apart: bool = True
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which rows are a range's work, and which are large files apart from it."""
    taken = ~_is(table, "d")
    if links_apart:
        taken &= table["links"].to_numpy() <= 1
    large = taken & large_apart & _is(table, "f") & (table["size"].to_numpy() >= LARGE_BYTES)
    return taken & ~large, large


def _is(table: pa.Table, letter: str) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = of_type(table, letter).to_numpy()
    return found


def _cost_of_a_range(summary: Summary | None, rows: int, tasks: int) -> float:
    by_type = None if summary is None else summary.by["type"]
    size = 0 if by_type is None else by_type.get("f", [0, 0])[1]
    cost = (size + ENTRY_COST * rows) / tasks
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
