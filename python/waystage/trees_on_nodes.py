"""Comparison of trees by many nodes: both are catalogued by them, and ranges of pairs are read as tasks.

Arrives: two trees or catalogs, what to compare, an engine.
Leaves: the differences that one machine finds.
Must not know: how files are compared, how tasks reach nodes.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from waystage.catalog import BuildOptions
from waystage.catalog.listing import hold_lists_apart
from waystage.catalog.manifest import private
from waystage.catalog.on_nodes import build_on_nodes
from waystage.catalog.ranges import ENTRY_COST, LEAST_COST, MOST_COST, TASKS_A_THREAD
from waystage.nodes import Engine, Here, Mark, Task, shared_folder
from waystage.nodes.shared import needed
from waystage.task import Progress
from waystage.trees import Comparison, Pair, Unlike, Wanted, compare, read_pairs

HEAD = struct.Struct("<I?q")
"""Before each path in a list: its length, whether its contents are read, its size."""


def compare_on_nodes(
    engine: Engine, first: Path, second: Path, wanted: Wanted, progress: Progress, *, directory: Path
) -> Comparison:
    """Compare two trees, as `waystage.trees.compare` does, by the workers of `engine`.

    `directory` takes lists that all nodes read. Raises what that raises, and NodesError.
    """
    for path in (first, second):
        hold_lists_apart(path, directory)
    with shared_folder(directory) as (folder, mark):
        readers = _Nodes(engine, folder, mark, progress)
        return compare(first, second, wanted, progress, readers=readers, folder=folder)


@dataclass(frozen=True)
class _Nodes:
    engine: Engine
    folder: Path
    mark: Mark
    progress: Progress

    def catalog(self, tree: Path, folder: Path, options: BuildOptions) -> None:
        def show(what: str, share: float) -> None:
            self.progress(f"listing {tree}: {what}", share)

        build_on_nodes(self.engine, tree, folder, options, show, (self.mark,))

    def read(self, roots: tuple[Path, Path], pairs: list[Pair], wanted: Wanted) -> tuple[int, list[Unlike]]:
        lists = self.folder / "pairs"
        total = sum(pair.size + ENTRY_COST for pair in pairs)
        most = min(max(total / (TASKS_A_THREAD * max(1, self.engine.threads())), LEAST_COST), MOST_COST)
        tasks = list(_written(lists, roots, pairs, wanted, most))
        read = 0
        unlike: list[Unlike] = []

        def finished(task: Task, found: tuple[int, list[Unlike]]) -> None:
            nonlocal read
            read += found[0]
            first: int = task.arguments[0].first
            unlike.extend((first + index, *more) for index, *more in found[1])  # type: ignore[misc]

        marks = (self.mark, *(needed(root) for root in roots))
        self.engine.run(tasks, finished, self.progress, marks=marks, total=float(total))
        return read, sorted(unlike, key=lambda one: one[0])


@dataclass(frozen=True)
class Work:
    """Bytes `start` to `end` of a list of pairs, of which the first has the index `first`."""

    list: str
    start: int
    end: int
    first: int
    roots: tuple[Path, Path]
    xattrs: bool
    threads: int | None


def _written(
    lists: Path, roots: tuple[Path, Path], pairs: list[Pair], wanted: Wanted, most: float
) -> Iterator[Task]:
    """The tasks, after their list has been written."""
    tasks: list[Task] = []
    with open(lists, "xb", opener=private) as file:
        first, start, cost = 0, 0, 0
        for index, pair in enumerate(pairs):
            file.write(HEAD.pack(len(pair.path), pair.content, pair.size) + pair.path)
            cost += pair.size + ENTRY_COST
            if cost >= most or index + 1 == len(pairs):
                end = file.tell()
                work = Work(str(lists), start, end, first, roots, wanted.xattrs, wanted.threads)
                tasks.append(Task(f"comparison of pairs from {first}", compare_range, (work,), weight=cost))
                first, start, cost = index + 1, end, 0
        file.flush()
        os.fsync(file.fileno())
    yield from tasks


def compare_range(here: Here, work: Work) -> tuple[int, list[Unlike]]:
    """In a worker: the bytes read of each side, and the pairs that differ, by index in the range. Raises OSError."""
    with open(work.list, "rb") as file:
        file.seek(work.start)
        text = file.read(work.end - work.start)
    pairs: list[Pair] = []
    at = 0
    while at < len(text):
        length, content, size = HEAD.unpack_from(text, at)
        at += HEAD.size + length
        pairs.append(Pair(text[at - length : at], content, size))
    usual = min(16, 2 * len(os.sched_getaffinity(0)))
    return read_pairs(work.roots, pairs, work.xattrs, here.threads(work.threads, usual), here.progress)
