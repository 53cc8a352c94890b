"""How small a catalog is, and how fast it is loaded.

A million entries with layouts are generated: files of log-normal size in directories of a thousand, one object each up to a
MiB and four above, on 24 targets. Once with names, times and inodes in order, as one program writes them; once with the
same values shuffled over all entries. Nothing is compared with a peer: the bars are absolute.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from waystage.bench import BenchOptions
from waystage.catalog import Catalog
from waystage.catalog.parts import PartWriter
from waystage.catalog.schema import DIRECTORIES, ENTRIES, directories_table, entries_table
from waystage.catalog.store import MANIFEST, Manifest, Part
from waystage.stats import median

ENTRIES_COUNT = 1_000_000
ENTRIES_QUICK = 200_000
PER_DIRECTORY = 1_000
ROWS = 65_536
TARGETS = 24
STRIPE = 1 << 20
STRIPES = 4
START_NS = 1_700_000_000_000_000_000
TURNS = 7
SEED = 4

Columns = dict[str, NDArray[Any]]


def run(options: BenchOptions) -> dict[str, Any]:
    count = ENTRIES_QUICK if options.quick else ENTRIES_COUNT
    turns = options.repetitions or TURNS
    with tempfile.TemporaryDirectory(prefix="waystage-catalog-") as folder:
        options.progress("writing, in order", 0.0)
        regular, write_s = _write(Path(folder) / "regular", count, shuffled=False)
        options.progress("writing, shuffled", 0.3)
        shuffled, _ = _write(Path(folder) / "shuffled", count, shuffled=True)
        options.progress("loading", 0.6)
        load = [_timed(lambda: regular.entries()) for _ in range(turns + 1)][1:]
        load_shuffled = [_timed(lambda: shuffled.entries()) for _ in range(turns + 1)][1:]
        options.progress("aggregating", 0.9)
        aggregate = [_timed(lambda: _aggregate(regular)) for _ in range(turns + 1)][1:]
        figures = {
            "bytes_per_entry": round(_bytes(regular) / count, 2),
            "bytes_per_entry_shuffled": round(_bytes(shuffled) / count, 2),
            "load_rows_per_s": round(count / median(load)),
            "aggregate_rows_per_s": round(count / median(aggregate)),
        }
    return {
        "figures": figures,
        "details": {
            "entries": count,
            "write_rows_per_s": round(count / write_s),
            "load_rows_per_s_shuffled": round(count / median(load_shuffled)),
            "load_s": [round(s, 4) for s in load],
            "aggregate_s": [round(s, 5) for s in aggregate],
        },
    }


def _write(folder: Path, count: int, *, shuffled: bool) -> tuple[Catalog, float]:
    folder.mkdir()
    rng = np.random.default_rng(SEED)
    order = rng.permutation(count) if shuffled else np.arange(count)
    sizes = np.minimum(rng.lognormal(np.log(256 << 10), 1.5, count), 1 << 36).astype(np.int64)
    part = Part(0, count)
    took = 0.0
    with (
        PartWriter(folder / part.entries, ENTRIES) as entries,
        PartWriter(folder / part.directories, DIRECTORIES) as directories,
    ):
        for start in range(0, count, ROWS):
            stop = min(start + ROWS, count)
            rows, folders = _batch(start, order[start:stop], sizes[start:stop], rng)
            began = time.monotonic()
            found = directories_table(folders, rows)
            entries.write(entries_table(rows, found["path"].combine_chunks()))
            directories.write(found)
            took += time.monotonic() - began
    Manifest("/generated", parts=[part]).save(folder / MANIFEST)
    return Catalog(folder), took


def _batch(
    start: int, order: NDArray[np.int64], sizes: NDArray[np.int64], rng: np.random.Generator
) -> tuple[Columns, Columns]:
    """Columns as the walk gives them, of entries `start` and on; `order` says whose name, times and inode they have."""
    count = len(order)
    number = start + np.arange(count)
    first = start // PER_DIRECTORY
    directory = (number // PER_DIRECTORY - first).astype(np.int32)
    paths = [f"project/simulation/step-{first + i:06d}".encode() for i in range(int(directory[-1]) + 1)]
    names = b"".join(b"particles-%09d.h5" % n for n in order.tolist())
    mtime = START_NS + order * 3_000_000
    striped = sizes > STRIPE
    stripes = np.where(striped, np.minimum(-(-sizes // STRIPE), STRIPES), 1).astype(np.int64)
    lists = np.zeros(count + 1, np.int32)
    np.cumsum(stripes, out=lists[1:])
    owner = np.repeat(np.arange(count), stripes)
    turn = np.arange(len(owner)) - lists[:-1][owner]
    target = (rng.integers(0, TARGETS, count)[owner] + turn) % TARGETS
    # What stripe `turn` of a round-robin file of this size holds: whole rounds, and its share of the last one.
    size = sizes[owner]
    round_bytes = STRIPE * STRIPES
    held = size // round_bytes * STRIPE + np.clip(size % round_bytes - turn * STRIPE, 0, STRIPE)
    held = np.where(striped[owner], held, size)
    rows: Columns = {
        "directory": directory,
        "name_offsets": np.arange(count + 1, dtype=np.int32) * len(b"particles-000000000.h5"),
        "name_data": np.frombuffer(names, np.uint8),
        "type": np.zeros(count, np.int8),
        "size": sizes,
        "mtime": mtime,
        "ctime": mtime,
        "atime": mtime,
        "mode": np.full(count, 0o640, np.uint16),
        "uid": np.full(count, 1000, np.uint32),
        "gid": np.full(count, 1000, np.uint32),
        "inode": (1_000_000 + order).astype(np.uint64),
        "device": np.full(count, 66_306, np.uint64),
        "links": np.ones(count, np.uint32),
        "blocks": -(-sizes // 4096) * 8,
        "symlink_offsets": np.zeros(count + 1, np.int32),
        "symlink_data": np.zeros(0, np.uint8),
        "layout_kind": np.zeros(count, np.int8),
        "stripe_size": np.full(count, STRIPE, np.int64),
        "generation": np.zeros(count, np.uint32),
        "objects": lists,
        "object_target": target.astype(np.uint32),
        "object_offset": turn.astype(np.int64) * STRIPE,
        "object_length": held.astype(np.int64),
    }
    ones = np.ones(len(paths), np.int64)
    folders: Columns = {
        "path_offsets": np.arange(len(paths) + 1, dtype=np.int32) * len(paths[0]),
        "path_data": np.frombuffer(b"".join(paths), np.uint8),
        "inode": (ones * 7).astype(np.uint64),
        "device": (ones * 66_306).astype(np.uint64),
        "mtime": ones * START_NS,
        "ctime": ones * START_NS,
        "mode": (ones * 0o750).astype(np.uint16),
        "uid": (ones * 1000).astype(np.uint32),
        "gid": (ones * 1000).astype(np.uint32),
        "rows": np.bincount(directory, minlength=len(paths)).astype(np.int64),
        "total": ones * PER_DIRECTORY,
        "state": np.zeros(len(paths), np.int8),
    }
    return rows, folders


def _aggregate(catalog: Catalog) -> tuple[int, int]:
    """Bytes of all entries and the highest owner: two columns."""
    found = catalog.entries(["size", "uid"])
    return int(pc.sum(found["size"]).as_py()), int(pc.max(found["uid"]).as_py())


def _bytes(catalog: Catalog) -> int:
    """Everything in the folder: a catalog is all its files."""
    return sum(path.stat().st_size for path in catalog.path.iterdir())


def _timed(function: Callable[[], object]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began
