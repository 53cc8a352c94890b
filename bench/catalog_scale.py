"""Whether a catalog of 100 M entries is built and queried in bounded memory, and in time linear from 1 M.

Entries with layouts are generated in Rust as a walk gives them, and go through the writer of every build; then the
catalog is asked. Each size has its own process and peak of memory. `peak_gib` is the largest of the
peaks; `growth` is the time of the largest size over that of the smallest, over the ratio of their entries: 1 is
linear. Up to 10 M the catalog is also compared with itself, with its own peak in `details`: at 100 M that
takes a quarter of an hour. `scan_s` is the question for the bytes of old large files, by two columns, of the largest
catalog; root drops the kernel's caches before it. `scan_floor_s` in `details` is the time of a bare loop that reads the
bytes of the columns needed, from disk too, and computes nothing.

$WAYSTAGE_BENCH_CATALOG_ENTRIES adds a size, such as 1000000000: some 12 minutes and 12 GB of disk.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from waystage._native import generated_batch
from waystage.bench import BenchError, BenchOptions, drop_caches, measure_apart, timed
from waystage.catalog import Catalog
from waystage.catalog import query as ask
from waystage.catalog.difference import diff
from waystage.catalog.recording import Recorder
from waystage.catalog.store import MANIFEST, Manifest
from waystage.machine import peak_gib

SIZES = (1_000_000, 10_000_000, 100_000_000)
SIZES_QUICK = (100_000, 500_000)
MOST_COMPARED = 10_000_000
BATCH_ROWS = 65_536
SCANNED = {"type", "size", "mtime", "blocks"}
"""The columns that the question of `scan_s` needs: two to decide, two to add up."""

TAKES_S = 240, 5


def run(options: BenchOptions) -> dict[str, Any]:
    sizes = SIZES_QUICK if options.quick else _sizes()
    found: dict[int, dict[str, Any]] = {}
    for number, size in enumerate(sizes):
        options.progress(f"{size:,} entries", sum(sizes[:number]) / sum(sizes))
        with tempfile.TemporaryDirectory(prefix="waystage-scale-") as folder:
            found[size] = measure_apart(__file__, folder, size)
    small, large = sizes[0], sizes[-1]

    def growth(part: str) -> float:
        ratio: float = found[large][part] / found[small][part] / (large / small)
        return round(ratio, 3)

    return {
        "figures": {
            "peak_gib": round(max(one["peak_gib"] for one in found.values()), 3),
            "growth": max(growth("build_s"), growth("query_s")),
            "scan_s": found[large]["scan_s"],
        },
        "details": {
            "growth_build": growth("build_s"),
            "growth_query": growth("query_s"),
            "sizes": {str(size): one for size, one in found.items()},
        },
    }


def _sizes() -> tuple[int, ...]:
    given = os.environ.get("WAYSTAGE_BENCH_CATALOG_ENTRIES")
    if given is None:
        return SIZES
    if not given.isdigit() or int(given) <= SIZES[-1]:
        raise BenchError(f"WAYSTAGE_BENCH_CATALOG_ENTRIES is {given!r}: give a number above {SIZES[-1]}")
    return (*SIZES, int(given))


def _scan(catalog: Catalog) -> dict[str, float]:
    """Seconds of a question by the columns `size` and `mtime`, from disk where this process may drop the caches, and
    then of a bare loop that reads the bytes of the columns it needs, and computes nothing.
    """
    may_drop = os.geteuid() == 0
    if may_drop:
        drop_caches()
    began = time.perf_counter()
    found = ask.totals(catalog, ask.Filter(size="+1M", age="+365d"))
    took = time.perf_counter() - began
    if not found["entries"]:
        raise BenchError(
            "no generated file is large and old: the statistics of the parts answered, and nothing was read"
        )
    if may_drop:
        drop_caches()
    floor = timed(lambda: sum(_read_columns(path, SCANNED) for path in catalog.entries_files()))
    return {"scan_s": round(took, 4), "scan_floor_s": round(floor["seconds"], 4)}


def _read_columns(path: Path, names: set[str]) -> int:
    """How many bytes these columns of a file have: all are read, in the order of the file."""
    metadata = pq.read_metadata(path)
    read = 0
    with path.open("rb", buffering=0) as file:
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            for column in (group.column(index) for index in range(group.num_columns)):
                if column.path_in_schema in names:
                    first = column.dictionary_page_offset or column.data_page_offset
                    read += len(os.pread(file.fileno(), column.total_compressed_size, first))
    return read


def measure(folder: Path, count: int) -> dict[str, Any]:
    """Build, query and compare; runs in a separate process."""
    began = time.perf_counter()
    manifest = Manifest("/generated")
    recorder = Recorder(folder, manifest)
    for first in range(0, count, BATCH_ROWS):
        recorder.add(generated_batch(first, min(BATCH_ROWS, count - first)))
    recorder.close_part()
    manifest.save(folder / MANIFEST)
    build_s = time.perf_counter() - began
    build_peak = peak_gib()
    catalog = Catalog(folder)
    if catalog.rows != count:
        raise BenchError(f"{catalog.rows} entries were written, not {count}")
    listed = ["directory", "name"]
    queries: dict[str, Callable[[], object]] = {
        "totals": lambda: ask.totals(catalog, ask.Filter()),
        "by_uid": lambda: ask.by_column(catalog, ask.Filter(), "uid"),
        "by_directory": lambda: ask.by_column(catalog, ask.Filter(), "directory"),
        "by_target": lambda: ask.by_target(catalog, ask.Filter()),
        "size_histogram": lambda: ask.size_histogram(catalog, ask.Filter()),
        "age_histogram": lambda: ask.age_histogram(catalog, ask.Filter()),
        "top_20": lambda: ask.top(catalog, ask.Filter(types="f"), "size", 20),
        "name": lambda: list(ask.select(catalog, ask.Filter(name=b"*-000000777.h5"), listed)),
        "large": lambda: ask.totals(catalog, ask.Filter(size="+1G")),
    }
    took: dict[str, float] = {}
    for name, query in queries.items():
        began = time.perf_counter()
        query()
        took[name] = round(time.perf_counter() - began, 4)
    scanned = _scan(catalog)
    query_peak = peak_gib()
    compared: dict[str, float] = {}
    if count <= MOST_COMPARED:
        began = time.perf_counter()
        found = diff(catalog, catalog, limit=20)
        compared["diff_s"] = round(time.perf_counter() - began, 3)
        compared["diff_peak_gib"] = peak_gib()
        if found or found.same != count:
            raise BenchError("a catalog differs from itself")
    return {
        "build_s": round(build_s, 3),
        "build_rows_per_s": round(count / build_s),
        "query_s": round(sum(took.values()), 4),
        "queries_s": took,
        **scanned,
        **compared,
        "build_peak_gib": build_peak,
        "peak_gib": query_peak,
        "bytes_per_entry": round(sum(path.stat().st_size for path in folder.iterdir()) / count, 2),
    }


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]), int(sys.argv[2]))))
