"""How small a catalog is, and how fast it is loaded.

A million entries with layouts are generated: files of log-normal size in directories of a thousand, one object each
up to a MiB and four above, on 24 targets. Once with names, times and inodes in order, as one program writes them;
once with the same values shuffled over all entries. There is no peer: the bars are absolute.

`aggregate_rows_per_s` is a question over two columns: the sum of one and the maximum of the other. Two bare operations
beside it give its floor: Arrow alone reads the same columns of the same files and computes the same, with no digest
compared and no value checked (`aggregate_x_floor` is its time over ours); and it computes the same of columns that are
in memory already (`details.memory_rows_per_s`), where nothing is read or decoded.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from _generated_catalog import Columns, directory_columns, entry_columns, write_catalog
from numpy.typing import NDArray

from waystage.bench import BenchOptions, take_turns, timing
from waystage.catalog import Catalog

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
COLUMNS = ["size", "uid"]
"""Those that the aggregate is of."""

TAKES_S = 60, 15


def run(options: BenchOptions) -> dict[str, Any]:
    count = ENTRIES_QUICK if options.quick else ENTRIES_COUNT
    with tempfile.TemporaryDirectory(prefix="waystage-catalog-") as folder:
        options.progress("writing, in order", 0.0)
        regular, write_s = _write(Path(folder) / "regular", count, shuffled=False)
        options.progress("writing, shuffled", 0.3)
        shuffled, _ = _write(Path(folder) / "shuffled", count, shuffled=True)
        files, held = [str(path) for path in regular.entries_files()], regular.entries(COLUMNS)
        works: dict[str, Callable[[], object]] = {
            "load": regular.entries,
            "load_shuffled": shuffled.entries,
            "aggregate": lambda: _aggregate(regular.entries(COLUMNS)),
            "floor": lambda: _aggregate(_read(files)),
            "memory": lambda: _aggregate(held),
        }
        contestants = {name: timing(work) for name, work in works.items()}
        reading = options.part("reading", 0.6, 1.0)
        turns = take_turns(reading, contestants, turns=TURNS, quick=TURNS, warm_up=1)
        sizes = {catalog: _bytes(catalog) / count for catalog in (regular, shuffled)}
    rates = {name: round(count / seconds) for name, seconds in turns.medians("seconds").items()}
    return {
        "figures": {
            "bytes_per_entry": round(sizes[regular], 2),
            "bytes_per_entry_shuffled": round(sizes[shuffled], 2),
            "load_rows_per_s": rates["load"],
            "aggregate_rows_per_s": rates["aggregate"],
            "aggregate_x_floor": round(turns.ratio("floor", "aggregate", "seconds"), 2),
        },
        "details": turns.details()
        | {
            "entries": count,
            "write_rows_per_s": round(count / write_s),
            "load_rows_per_s_shuffled": rates["load_shuffled"],
            "floor_rows_per_s": rates["floor"],
            "memory_rows_per_s": rates["memory"],
        },
    }


def _write(folder: Path, count: int, *, shuffled: bool) -> tuple[Catalog, float]:
    """A generated catalog, and the seconds that writing it took."""
    rng = np.random.default_rng(SEED)
    order = rng.permutation(count) if shuffled else np.arange(count)
    sizes = np.minimum(rng.lognormal(np.log(256 << 10), 1.5, count), 1 << 36).astype(np.int64)

    def batches() -> Iterator[tuple[Columns, Columns]]:
        for start in range(0, count, ROWS):
            chosen = slice(start, min(start + ROWS, count))
            yield _batch(start, order[chosen], sizes[chosen], rng)

    took = write_catalog(folder, "/generated", count, batches())
    return Catalog(folder), took


def _batch(
    start: int, order: NDArray[np.int64], sizes: NDArray[np.int64], rng: np.random.Generator
) -> tuple[Columns, Columns]:
    """Columns as the walk gives them, of entries `start` and on; `order` has the number in their names, times and
    inodes.
    """
    count = len(order)
    number = start + np.arange(count)
    first = start // PER_DIRECTORY
    directory = (number // PER_DIRECTORY - first).astype(np.int32)
    paths = [f"project/simulation/step-{first + i:06d}".encode() for i in range(int(directory[-1]) + 1)]
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
    rows = entry_columns(
        [b"particles-%09d.h5" % n for n in order.tolist()],
        directory=directory,
        size=sizes,
        mtime=START_NS + order * 3_000_000,
        inode=(1_000_000 + order).astype(np.uint64),
        objects=lists,
        object_target=target.astype(np.uint32),
        object_offset=turn.astype(np.int64) * STRIPE,
        object_length=held.astype(np.int64),
    )
    return rows, directory_columns(paths, directory, PER_DIRECTORY, START_NS)


def _aggregate(found: pa.Table) -> tuple[int, int]:
    """Bytes of all entries and the highest owner."""
    return int(pc.sum(found["size"]).as_py()), int(pc.max(found["uid"]).as_py())


def _read(files: list[str]) -> pa.Table:
    """The columns, by Arrow alone."""
    return pa.concat_tables([pq.ParquetFile(file).read(columns=COLUMNS) for file in files])


def _bytes(catalog: Catalog) -> int:
    """The size of all the catalog's files."""
    return sum(path.stat().st_size for path in catalog.path.iterdir())
