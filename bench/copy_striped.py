"""How much faster `waystage copy` is when it reads a striped source target by target than in the order of the walk.

The source is the emulated striped file system (docs/reference/pfs.md) in the shape `nurion`: 24 targets whose reads slow
each other down, of which one is four times slower, as in `straggler`; nothing is cached. `small` are files of one
stripe, `large` files in stripes over four targets. Every contestant copies with as many threads, from a new mount to a
folder in memory, the complete command from start to end.

Peers: the same command with `--order walk`; `cp -r`, with one thread; and the way of mpifileutils' dcp, which lists all
files, cuts them into chunks of 4 MiB, and gives each rank an equal run of the list (here a thread, for which starting
costs nothing). A turn in which the emulation was late is not valid. It measures the method, and no Lustre.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from waystage.bench import BenchError, BenchOptions, Figures, run_program, take_turns
from waystage.machine import SHORT_OF_CPU_IDLE_PCT
from waystage.worlds.lab import pfs
from waystage.worlds.lab.pfs.validity import late_pct

THREADS = 48
TURNS = 3
CHUNK = 4 << 20
"""As dcp cuts files (its default `--chunksize`)."""

PIECE = 1 << 20
SLOWER = ((5, 4.0),)
TAKES_S = 200, 30


@dataclass(frozen=True)
class Case:
    """A tree; `dilation` real seconds are one emulated second, so that this machine keeps up."""

    files: int
    quick: int
    size: int
    stripes: int
    dilation: float


CASES = {
    "small": Case(6_000, 400, 256 << 10, 1, 8.0),
    "large": Case(8, 1, 128 << 20, 4, 8.0),
}


def run(options: BenchOptions) -> dict[str, Any]:
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        raise BenchError("mounting the emulated file system needs root and /dev/fuse")
    ways: dict[str, Callable[[Path, Path], None]] = {
        "waystage": _waystage,
        "waystage --order walk": partial(_waystage, order="walk"),
        "ranks": _ranks,
        "cp -r": _cp,
    }
    with tempfile.TemporaryDirectory(prefix="waystage-striped-", dir="/dev/shm") as name:
        folder = Path(name)
        (folder / "point").mkdir()
        contestants = {
            (case, way): partial(_once, case, copy, folder, options.quick)
            for case in CASES
            for way, copy in ways.items()
        }
        turns = take_turns(
            options,
            contestants,
            turns=TURNS,
            quick=1,
            least_idle_pct=SHORT_OF_CPU_IDLE_PCT,
            invalid=lambda figures: figures["emulation"] or None,
        )

    def times(case: str, way: str) -> float:
        return round(turns.ratio((case, way), (case, "waystage"), "seconds"), 2)

    return {
        "figures": {f"{case}_x_walk": times(case, "waystage --order walk") for case in CASES}
        | {f"{case}_x_ranks": times(case, "ranks") for case in CASES},
        "peers": {f"{case}_x_cp": times(case, "cp -r") for case in CASES}
        | {f"{case}_{way}_s": round(turns.median((case, way), "emulated_s"), 3) for case, way in contestants},
        "details": turns.details() | {"threads": THREADS},
    }


def _shape(case: Case, quick: bool) -> pfs.shape.Shape:
    shape = pfs.load("nurion")
    files = case.quick if quick else case.files
    part = msgspec.structs.replace(shape.layout.parts[0], stripes=case.stripes)
    return msgspec.structs.replace(
        shape,
        targets=msgspec.structs.replace(shape.targets, slower=SLOWER),
        tree=pfs.shape.Tree(files=files, size=case.size, files_per_directory=500),
        layout=msgspec.structs.replace(shape.layout, parts=(part,)),
        client=msgspec.structs.replace(shape.client, pages="direct"),
        dilation=case.dilation,
    )


def _once(name: str, copy: Callable[[Path, Path], None], folder: Path, quick: bool, turn: int) -> Figures:
    """One copy from a new mount, of which every byte arrives."""
    case, point, target = CASES[name], folder / "point", folder / "copy"
    mounted = pfs.mount(point, _shape(case, quick))
    try:
        began = time.perf_counter()
        copy(point, target)
        seconds = time.perf_counter() - began
        counted = pfs.statistics(mounted)
        files = [path for path in target.rglob("f*") if path.is_file()]
        if len(files) != (case.quick if quick else case.files) or any(
            path.stat().st_size != case.size for path in files
        ):
            raise BenchError(f"{name}: the copy lacks files or bytes")
    finally:
        pfs.unmount(point, force=True)
        shutil.rmtree(target, ignore_errors=True)
    busy = [target["busy_s"] for target in counted["targets"]]
    return {
        "seconds": seconds,
        "emulated_s": seconds / case.dilation,
        "late_pct": round(late_pct(counted), 3),
        "targets_busy_pct": round(100 * sum(busy) / len(busy) / (seconds / case.dilation), 1),
        "most_on_a_target": max(target["most_in_service"] for target in counted["targets"]),
        "emulation": pfs.why_invalid(counted) or "",
    }


def _waystage(source: Path, target: Path, order: str = "auto") -> None:
    words = ["--order", order, "--workers", str(THREADS), "--exclude", ".waystage-statistics", "--quiet"]
    run_program([sys.executable, "-m", "waystage", "copy", str(source), str(target), *words])


def _cp(source: Path, target: Path) -> None:
    run_program(["cp", "-r", str(source), str(target)])


def _ranks(source: Path, target: Path) -> None:
    """As dcp: directories walked by all, then every rank copies its run of the chunks, in the order of the list."""
    folders = sorted(entry.name for entry in os.scandir(source) if entry.is_dir())
    found: list[list[tuple[str, int]]] = [[] for _ in range(THREADS)]

    def walk(rank: int) -> None:
        for folder in folders[rank::THREADS]:
            os.makedirs(target / folder)
            with os.scandir(source / folder) as entries:
                found[rank] += [(f"{folder}/{entry.name}", entry.stat().st_size) for entry in entries]

    _together(walk)
    files = [file for part in found for file in part]
    chunks = [(path, at, min(CHUNK, size - at)) for path, size in files for at in range(0, size, CHUNK)]
    for path, size in files:
        with open(target / path, "wb") as file:
            file.truncate(size)

    def copy(rank: int) -> None:
        first, end = (len(chunks) * (rank + more) // THREADS for more in (0, 1))
        for path, at, size in chunks[first:end]:
            with (
                open(source / path, "rb", buffering=0) as one,
                open(target / path, "r+b", buffering=0) as two,
            ):
                for start in range(at, at + size, PIECE):
                    two.seek(start)
                    two.write(os.pread(one.fileno(), min(PIECE, at + size - start), start))

    _together(copy)


def _together(work: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
