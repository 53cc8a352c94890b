"""Seconds to the first batch of a training loader on 1.28 M catalogued files.

A catalog as large as ImageNet's is written: 1.28 million files of 110 KB in a thousand directories, of which those
that the first batches read exist. A new process imports the loader, opens the catalog, draws the epoch's order and
takes 256 files. `seconds` is the median from the start of that process's own code, imports included, to the 256th
buffer. The peer is the same batch from a program that walks a tree of as many files, of which only the walk is
measured, at the rate of a smaller tree in the same run.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from _generated_catalog import Columns, directory_columns, entry_columns, write_catalog

from waystage._native import LAYOUT_KINDS
from waystage.bench import BenchError, BenchOptions, Figures, run_program, take_turns, timed
from waystage.loader import Loader
from waystage.loader.files import file_set

FILES = 1_281_167
"""ImageNet-1k's training set."""

FILES_QUICK = 50_000
CLASSES = 1_000
FILE_BYTES = 110_000
BATCH = 256
SEED = 1
TURNS = 7
WALKED = 20_000

PROGRAM = """
import sys, time
began = time.perf_counter()
from waystage.loader import Loader
imported = time.perf_counter()
loader = Loader(sys.argv[1], seed=int(sys.argv[2]))
opened = time.perf_counter()
with loader:
    batch = [item for _, item in zip(range(int(sys.argv[3])), loader)]
    ended = time.perf_counter()
import json
print(json.dumps([imported - began, opened - imported, ended - opened, sum(len(data) for _, data in batch)]))
"""
TAKES_S = 120, 15


def run(options: BenchOptions) -> dict[str, Any]:
    count = FILES_QUICK if options.quick else FILES
    with tempfile.TemporaryDirectory(prefix="waystage-first-batch-") as folder:
        root, catalog = Path(folder) / "data", Path(folder) / "catalog"
        options.progress("writing the catalog", 0.0)
        root.mkdir()
        write_catalog(catalog, str(root), count, _batches(count))
        options.progress("making the files of the first batches", 0.3)
        _make_first(catalog, root)
        # The first start reads the program itself from disk.
        starts = options.part("starting", 0.5, 0.95)
        turns = take_turns(starts, {"waystage": partial(_start, catalog)}, turns=TURNS, quick=1, warm_up=1)
        options.progress("walking", 0.95)
        walk_s = _walk_seconds(Path(folder) / "walked", count)
    return {
        "figures": {"seconds": round(turns.median("waystage", "seconds"), 3)},
        "peers": {"walk_alone_s": round(walk_s, 2)},
        "details": turns.details()
        | {"files": count, "first_start_s": round(turns.warm_up["waystage"][0]["seconds"], 3)},
    }


def _start(catalog: Path, turn: int) -> Figures:
    import_s, open_s, batch_s, size = json.loads(
        run_program([sys.executable, "-c", PROGRAM, catalog, SEED, BATCH])
    )
    if size != BATCH * FILE_BYTES:
        raise BenchError(f"the first batch has {size} bytes and not {BATCH * FILE_BYTES}")
    return {
        "seconds": import_s + open_s + batch_s,
        "import_s": import_s,
        "open_s": open_s,
        "batch_s": batch_s,
    }


def _batches(count: int) -> Iterator[tuple[Columns, Columns]]:
    """Several classes of files each, as a walk of a tree of classes gives them."""
    each = -(-count // CLASSES)
    together = max(1, 65_536 // each)
    for first in range(0, CLASSES, together):
        classes = range(first, min(first + together, CLASSES))
        numbers = np.arange(first * each, min(classes.stop * each, count))
        if len(numbers):
            yield _columns(numbers, classes, each)


def _columns(numbers: Any, classes: range, each: int) -> tuple[Columns, Columns]:
    count = len(numbers)
    rng = np.random.default_rng(int(numbers[0]))
    directory = (numbers // each - classes.start).astype(np.int32)
    rows = entry_columns(
        [b"n%04d_%07d.JPEG" % (n // each, n) for n in numbers.tolist()],
        directory=directory,
        size=np.full(count, FILE_BYTES, np.int64),
        mtime=1_700_000_000_000_000_000 + numbers * 1_000_003,
        inode=(5_000_000 + numbers).astype(np.uint64),
        layout_kind=np.full(count, LAYOUT_KINDS.index("local"), np.int8),
        objects=np.arange(count + 1, dtype=np.int32),
        object_target=rng.integers(0, 24, count).astype(np.uint32),
        object_offset=np.zeros(count, np.int64),
        object_length=np.full(count, FILE_BYTES, np.int64),
    )
    return rows, directory_columns([b"train/n%04d" % n for n in classes], directory, each, 1)


def _make_first(catalog: Path, root: Path) -> None:
    """Make the files that come first in the epoch, those that a loader reads ahead of the first batch included."""
    content = bytes(FILE_BYTES)
    files = file_set(catalog)
    for path in _first(files, 16 * BATCH):
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


def _first(files: Any, count: int) -> list[str]:
    """The first paths of the epoch, learnt from the errors of a loader that finds none of them."""
    with Loader(files, seed=SEED, on_error="raise", loaders=1, memory_bytes=1 << 20) as loader:
        iterator = iter(loader)
        paths = []
        for _ in range(min(count, len(loader))):
            try:
                next(iterator)
            except RuntimeError as error:
                paths.append(error.path)  # type: ignore[attr-defined]
        return paths


def _walk_seconds(root: Path, count: int) -> float:
    """The time of a walk of `count` files, by the rate on fewer of them."""
    root.mkdir()
    for number in range(0, WALKED, 1000):
        folder = root / f"n{number:04d}"
        folder.mkdir()
        for name in range(1000):
            (folder / f"{name}.JPEG").touch()
    return timed(lambda: file_set(root, "file", threads=2))["seconds"] * count / WALKED
