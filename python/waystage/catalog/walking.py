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
from waystage.native_options.walks import WalkOptions
from waystage.task import INTERVAL_S, Progress


def start_walk(root: Path, options: WalkOptions) -> TreeWalk:
    """The walk. Raises SourceMissing where `root` cannot be read as a directory."""
    try:
        return TreeWalk(root, options)
    except OSError as error:
        raise SourceMissing(f"{display(str(root))} cannot be read: {error.strerror or error}") from None


def entries_found(counts: dict[str, int]) -> tuple[str, float]:
    """What `batches` reports where the number of entries to come is unknown."""
    return f"{counts['entries']:,} entries", 0.0


def batches(
    walk: TreeWalk,
    progress: Progress | None = None,
    describe: Callable[[dict[str, int]], tuple[str, float]] = entries_found,
    interval_s: float = INTERVAL_S,
) -> Iterator[WalkBatch]:
    """The batches of `walk`, which stops when the iterator ends or is closed.

    `progress` is called at least every `interval_s` with what `describe` makes of the walk's counts.
    """
    with walk:
        ended = False
        while not ended:
            ended = walk.wait(interval_s)
            if (batch := walk.next()) is not None:
                yield batch
            if progress is not None:
                progress(*describe(walk.progress()))
