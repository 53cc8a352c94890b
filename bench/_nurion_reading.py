"""Strategies of reading a tree with many loaders: by files, by objects, by objects from a catalog. Used by `nurion`.

Each loader is a thread with its own share, a process in the paper; they do not communicate. The paper's
ways, FL and OL, are written here as in the paper: open, one read of what is wanted, close. The catalog's is our
loader as it is shipped.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Literal

from waystage._native import read_layout
from waystage.loader import Loader
from waystage.loader.files import FileSet, file_set

MEMORY_BYTES = 512 << 20
"""Read ahead by all loaders together."""

Piece = tuple[str | bytes, int, int]
"""Path, offset, length."""

Deal = Callable[[int, Piece], None]
"""Gives a loader a piece."""


@dataclass(frozen=True)
class Work:
    """What is read by how many; `compute_s` is what a loader does after each piece, in real seconds."""

    top: Path
    catalog: Path
    loaders: int
    targets: int
    compute_s: float = 0.0
    overlapped: bool = False
    """Whether files are read while the walk goes on (the paper's augmentation), or after it (its profiler)."""


@dataclass
class Done:
    """Bytes and pieces that were read, and real seconds until all had been, and until all was known."""

    bytes: int = 0
    pieces: int = 0
    known_s: float = 0.0
    total_s: float = 0.0


def by_files(work: Work) -> Done:
    """FL: one process walks and stats every file, each loader reads its share of files (SwiftLoad, section V.A)."""

    def find(deal: Deal) -> None:
        for number, (path, size) in enumerate(_walk(work.top)):
            deal(number % work.loaders, (path, 0, size))

    return _run(work, find)


def by_files_walked_together(work: Work) -> Done:
    """FL with a better walk than the paper's: every loader walks its share of directories, then all share the files."""
    began = time.monotonic()
    folders = [entry.path for entry in os.scandir(work.top)]
    found: list[list[tuple[str, int]]] = [[] for _ in range(work.loaders)]

    def walk(loader: int) -> None:
        for folder in folders[loader :: work.loaders]:
            found[loader].extend(_walk(Path(folder)))

    _together([partial(walk, loader) for loader in range(work.loaders)])

    def find(deal: Deal) -> None:
        for number, (path, size) in enumerate(file for part in found for file in part):
            deal(number % work.loaders, (path, 0, size))

    return _run(work, find, began)


def by_objects(work: Work) -> Done:
    """OL: as FL, but each loader reads the layouts of its share; objects go to loaders bound to their targets."""
    began = time.monotonic()
    files = list(_walk(work.top))
    found: list[list[tuple[int, Piece]]] = [[] for _ in range(work.loaders)]

    def ask(loader: int) -> None:
        for path, size in files[loader :: work.loaders]:
            layout = read_layout(Path(path), size=size)
            assert layout is not None, f"{path} has no layout"
            for extent in layout["extents"]:
                target = int(str(extent["target"]).removeprefix("ost:"))
                found[loader].append((target, (path, extent["offset"], extent["length"])))

    _together([partial(ask, loader) for loader in range(work.loaders)])
    objects = [piece for part in found for piece in part]
    return _run(work, _bound(work, objects), began)


def by_catalog(work: Work) -> Done:
    """Our loader on a catalog: no walk, no layouts to read, loaders bound to targets, each file checked when
    opened.
    """
    return _loaded(work, time.monotonic(), file_set(work.catalog, "catalog", tree=work.top))


def by_our_file_mode(work: Work) -> Done:
    """Our loader without catalog or layouts: a walk in parallel, and then whole files."""
    began = time.monotonic()
    return _loaded(work, began, file_set(work.top, "file"), deliver="files")


def _loaded(
    work: Work, began: float, files: FileSet, deliver: Literal["files", "objects"] = "objects"
) -> Done:
    """Read by the loader: one with all loaders or, where each computes, one for each as on separate nodes."""
    known = time.monotonic()
    ranks = work.loaders if work.compute_s else 1
    parts = [Done() for _ in range(ranks)]

    def load(rank: int) -> None:
        part = parts[rank]
        with Loader(
            files,
            rank=rank,
            world=ranks,
            loaders=work.loaders // ranks,
            deliver=deliver,
            order="arrival",
            memory_bytes=MEMORY_BYTES // ranks,
        ) as loader:
            for item in loader:
                part.bytes += len(item[-1])
                part.pieces += 1
                if work.compute_s:
                    time.sleep(work.compute_s)

    _together([partial(load, rank) for rank in range(ranks)])
    return Done(
        bytes=sum(p.bytes for p in parts),
        pieces=sum(p.pieces for p in parts),
        known_s=known - began,
        total_s=time.monotonic() - began,
    )


def _bound(work: Work, objects: list[tuple[int, Piece]]) -> Callable[[Deal], None]:
    """Loaders are bound to targets round robin and read nothing else; surplus loaders of a target share its objects."""
    of_target = [list(range(t, work.loaders, work.targets)) for t in range(work.targets)]

    def find(deal: Deal) -> None:
        seen = [0] * work.targets
        for target, piece in objects:
            # With fewer loaders than targets, a loader is bound to several.
            mine = of_target[target] or [target % work.loaders]
            deal(mine[seen[target] % len(mine)], piece)
            seen[target] += 1

    return find


def _walk(top: Path) -> Iterator[tuple[str, int]]:
    waiting = [str(top)]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                elif entry.is_file(follow_symlinks=False):
                    yield entry.path, entry.stat(follow_symlinks=False).st_size


def _run(work: Work, find: Callable[[Deal], None], began: float | None = None) -> Done:
    """Start the loaders, give them what `find` deals out, and wait for all."""
    began = time.monotonic() if began is None else began
    queues: list[SimpleQueue[Piece | None]] = [SimpleQueue() for _ in range(work.loaders)]
    parts = [Done() for _ in range(work.loaders)]
    known: list[float] = []

    def load(loader: int) -> None:
        queue, part = queues[loader], parts[loader]
        while (piece := queue.get()) is not None:
            part.bytes += _read(piece)
            part.pieces += 1
            if work.compute_s:
                time.sleep(work.compute_s)

    def deal() -> None:
        held: list[tuple[int, Piece]] = []
        try:
            find(
                (lambda loader, piece: queues[loader].put(piece))
                if work.overlapped
                else lambda *piece: held.append(piece)
            )
            known.append(time.monotonic())
            for loader, piece in held:
                queues[loader].put(piece)
        finally:
            for queue in queues:
                queue.put(None)  # the end, also where the search fails

    _together([*(partial(load, loader) for loader in range(work.loaders)), deal])
    return Done(
        bytes=sum(p.bytes for p in parts),
        pieces=sum(p.pieces for p in parts),
        known_s=max(known) - began,
        total_s=time.monotonic() - began,
    )


def _read(piece: Piece) -> int:
    path, offset, length = piece
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return len(os.pread(descriptor, length, offset))
    finally:
        os.close(descriptor)


def _together(tasks: Sequence[Callable[[], None]]) -> None:
    """Each in its own thread. Raises the exception of the first that failed."""
    with ThreadPoolExecutor(len(tasks)) as pool:
        running = [pool.submit(task) for task in tasks]
    for task in running:
        task.result()
