"""A parallel walk of a tree, batch by batch.

Arrives: a tree, and how to walk it.
Leaves: batches of entries; progress meanwhile; the walk ended in every case.
Must not know: what becomes of the entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from waystage._native import TreeWalk, WalkBatch
from waystage.catalog.errors import SourceMissing
from waystage.display import display
from waystage.native_options import WalkOptions

INTERVAL_S = 0.2
"""Between two reports of progress at most, however long a batch takes."""

Report = Callable[[dict[str, int]], None]


def start_walk(root: Path, options: WalkOptions) -> TreeWalk:
    """The walk. Raises SourceMissing where `root` cannot be read as a directory."""
    try:
        return TreeWalk(root, options)
    except OSError as error:
        raise SourceMissing(f"{display(str(root))} cannot be read: {error.strerror or error}") from None


def batches(walk: TreeWalk, report: Report | None = None) -> Iterator[WalkBatch]:
    """The batches of `walk`, which stops when the iterator ends or is closed. `report` receives the walk's counts."""
    with walk:
        ended = False
        while not ended:
            ended = walk.wait(INTERVAL_S)
            if (batch := walk.next()) is not None:
                yield batch
            if report is not None:
                report(walk.progress())
