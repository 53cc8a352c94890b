"""Seconds to the first batch of a training loader on 1.28 M catalogued files.

A catalog as large as ImageNet's is written: 1.28 million files of 110 KB in a thousand directories, of which those that the
first batches read are really there. A fresh process imports the loader, opens the catalog, draws the epoch's order and takes
256 files. `seconds` is the median of what passes from the start of that process's own code, imports included, to the 256th
buffer. The peer is the same batch from a program that walks a tree of as many files, which is only part of what it would have to
do: the time of the walk alone, at the rate measured on a smaller tree in the same run.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from waystage._native import LAYOUT_KINDS
from waystage.bench import BenchError, BenchOptions
from waystage.catalog.parts import PartWriter
from waystage.catalog.schema import DIRECTORIES, ENTRIES, directories_table, entries_table
from waystage.catalog.store import MANIFEST, Manifest, Part
from waystage.loader import Loader
from waystage.loader.files import file_set
from waystage.stats import median

FILES = 1_281_167
"""ImageNet-1k's training set."""

FILES_QUICK = 100_000
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


def run(options: BenchOptions) -> dict[str, Any]:
    count = FILES_QUICK if options.quick else FILES
    turns = 3 if options.quick else options.repetitions or TURNS
    with tempfile.TemporaryDirectory(prefix="waystage-first-batch-") as folder:
        root, catalog = Path(folder) / "data", Path(folder) / "catalog"
        options.progress("writing the catalog", 0.0)
        _write(catalog, root, count)
        options.progress("making the files of the first batches", 0.3)
        _make_first(catalog, root)
        took: list[list[float]] = []
        for turn in range(turns + 1):
            options.progress("starting", 0.5 + 0.4 * turn / turns)
            took.append(_start(catalog))
        options.progress("walking", 0.95)
        walk_s = _walk_seconds(Path(folder) / "walked", count)
    # The first start reads the program itself from disk.
    seconds = [sum(parts[:3]) for parts in took[1:]]
    return {
        "figures": {"seconds": round(median(seconds), 3)},
        "peers": {"walk_alone_s": round(walk_s, 2)},
        "details": {
            "files": count,
            "seconds": [round(s, 3) for s in seconds],
            "import_s": round(median([parts[0] for parts in took[1:]]), 3),
            "open_s": round(median([parts[1] for parts in took[1:]]), 3),
            "batch_s": round(median([parts[2] for parts in took[1:]]), 3),
            "first_start_s": round(sum(took[0][:3]), 3),
        },
    }


def _start(catalog: Path) -> list[float]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(catalog), str(SEED), str(BATCH)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise BenchError(f"the loader failed: {done.stderr.strip().splitlines()[-1]}")
    parts: list[float] = json.loads(done.stdout)
    if parts[3] != BATCH * FILE_BYTES:
        raise BenchError(f"the first batch has {parts[3]} bytes and not {BATCH * FILE_BYTES}")
    return parts


def _write(folder: Path, root: Path, count: int) -> None:
    """One part a class of files, as a walk of a tree of classes gives it."""
    folder.mkdir()
    root.mkdir()
    part = Part(0, count)
    each = -(-count // CLASSES)
    with (
        PartWriter(folder / part.entries, ENTRIES) as entries,
        PartWriter(folder / part.directories, DIRECTORIES) as directories,
    ):
        together = max(1, 65_536 // each)
        for first in range(0, CLASSES, together):
            classes = range(first, min(first + together, CLASSES))
            numbers = np.arange(first * each, min(classes.stop * each, count))
            if not len(numbers):
                break
            rows, folders = _columns(numbers, classes, each)
            found = directories_table(folders, rows)
            entries.write(entries_table(rows, found["path"].combine_chunks()))
            directories.write(found)
    Manifest(str(root), parts=[part]).save(folder / MANIFEST)


def _columns(numbers: Any, classes: range, each: int) -> tuple[dict[str, Any], dict[str, Any]]:
    count = len(numbers)
    rng = np.random.default_rng(int(numbers[0]))
    names = b"".join(b"n%04d_%07d.JPEG" % (n // each, n) for n in numbers.tolist())
    paths = [b"train/n%04d" % n for n in classes]
    mtime = 1_700_000_000_000_000_000 + numbers * 1_000_003
    rows = {
        "directory": (numbers // each - classes.start).astype(np.int32),
        "name_offsets": np.arange(count + 1, dtype=np.int32) * len(b"n0000_0000000.JPEG"),
        "name_data": np.frombuffer(names, np.uint8),
        "type": np.zeros(count, np.int8),
        "size": np.full(count, FILE_BYTES, np.int64),
        "mtime": mtime,
        "ctime": mtime,
        "atime": mtime,
        "mode": np.full(count, 0o644, np.uint16),
        "uid": np.full(count, 1000, np.uint32),
        "gid": np.full(count, 1000, np.uint32),
        "inode": (5_000_000 + numbers).astype(np.uint64),
        "device": np.full(count, 66_306, np.uint64),
        "links": np.ones(count, np.uint32),
        "blocks": np.full(count, 216, np.int64),
        "symlink_offsets": np.zeros(count + 1, np.int32),
        "symlink_data": np.zeros(0, np.uint8),
        "layout_kind": np.full(count, LAYOUT_KINDS.index("local"), np.int8),
        "stripe_size": np.full(count, 1 << 20, np.int64),
        "generation": np.zeros(count, np.uint32),
        "objects": np.arange(count + 1, dtype=np.int32),
        "object_target": rng.integers(0, 24, count).astype(np.uint32),
        "object_offset": np.zeros(count, np.int64),
        "object_length": np.full(count, FILE_BYTES, np.int64),
    }
    ones = np.ones(len(paths), np.int64)
    folders = {
        "path_offsets": np.arange(len(paths) + 1, dtype=np.int32) * len(paths[0]),
        "path_data": np.frombuffer(b"".join(paths), np.uint8),
        "inode": ones.astype(np.uint64),
        "device": ones.astype(np.uint64),
        "mtime": ones,
        "ctime": ones,
        "mode": (ones * 0o755).astype(np.uint16),
        "uid": ones.astype(np.uint32),
        "gid": ones.astype(np.uint32),
        "rows": np.bincount(rows["directory"], minlength=len(paths)).astype(np.int64),
        "total": ones * each,
        "state": np.zeros(len(paths), np.int8),
    }
    return rows, folders


def _make_first(catalog: Path, root: Path) -> None:
    """Make the files that come first in the epoch: those that a loader reads ahead while the first batch is taken, too."""
    content = bytes(FILE_BYTES)
    files = file_set(catalog)
    for path in _first(files, 16 * BATCH):
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


def _first(files: Any, count: int) -> list[str]:
    """The first paths of the epoch, learnt from the troubles of a loader that finds none of them."""
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
    """What a walk of `count` files takes, by the rate on fewer of them."""
    root.mkdir()
    for number in range(0, WALKED, 1000):
        folder = root / f"n{number:04d}"
        folder.mkdir()
        for name in range(1000):
            (folder / f"{name}.JPEG").touch()
    began = time.perf_counter()
    file_set(root, "file", threads=2)
    return (time.perf_counter() - began) * count / WALKED
