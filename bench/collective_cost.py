"""What collective I/O costs where nothing is gained: one node without contention, a view of 10^8 runs, 10^6 extents a rank.

`overhead_pct` is how much longer four ranks of one node take to write a contiguous block each under Waystage than under
the best of OMPIO, ROMIO and independent writes, on the emulated file system. `view_us` and `view_kib` are time and memory
of `MPI_File_set_view` with 10^8 runs at a client; OMPIO and ROMIO get 10^6, and `peers` has what that costs them. All
have Open MPI's parameter checks off there: they check each run, 26 ns, before any implementation of MPI-IO is called.
`aggregator_peak_x_buffer` is how much an aggregator's memory grows at most over what `--memory` gives it, while four
ranks write and read 10^6 interleaved extents each. `small_x_best` is the median time of a write of 4 KiB a rank to a file
in memory, the best of OMPIO and ROMIO over Waystage; `small_us` is Waystage's. `wrong_bytes` is Waystage's. A peer with
wrong bytes is no peer in that case, and `details.wrong` names it. `details.core` has the same view without MPI, from
`crates/collective/examples/set_view.rs`.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from _io_nodes import Nodes, nodes
from _io_programs import SOURCES, Programs, compile_programs, wrong_bytes
from _io_storage import shape

from waystage.bench import BenchError, BenchOptions, Figures, TurnFailed, Turns, run_program, take_turns
from waystage.bench.turns import label
from waystage.worlds.lab import pfs

RANKS = 4
BYTES_A_RANK, BYTES_A_RANK_QUICK = 16 << 20, 2 << 20
RUNS, RUNS_OF_PEERS = 100_000_000, 1_000_000
EXTENTS, EXTENTS_QUICK = 1_000_000, 50_000
CALLS, CALLS_QUICK = 500, 50
MEMORY_MIB = 64
LINK_BIT_S = 10_000_000_000
LIMIT_S = 180.0
REPOSITORY = Path(__file__).parents[1]
PEERS = ("ompio", "romio321", "independent")
TAKES_S = 240, 25


def run(options: BenchOptions) -> dict[str, Any]:
    if os.geteuid() != 0:
        raise BenchError("mounting the emulated file system needs root")
    with (
        tempfile.TemporaryDirectory(prefix="waystage-collective-cost-", dir="/dev/shm") as name,
        nodes(1, LINK_BIT_S) as made,
    ):
        folder = Path(name)
        bench = _Bench(folder, made, compile_programs(folder), options.quick)
        (folder / "files").mkdir()
        (folder / "point").mkdir()
        bench.mounted = pfs.mount(folder / "point", shape(), folder / "files")
        try:
            turns = take_turns(
                options,
                bench.contestants(),
                turns=7,
                quick=1,
                invalid=lambda found: found.get("emulation") or None,
            )
        finally:
            pfs.unmount(folder / "point", force=True)
    return _result(turns, _core(options.quick))


def _result(turns: Turns, core: dict[str, Any] | None) -> dict[str, Any]:
    wrong = {label(name): int(count) for name in turns.names if (count := _wrong(turns, name))}

    def peers(case: str, key: str) -> dict[str, float]:
        names = {way: (way, case) for way in PEERS if (way, case) in turns.names}
        return {
            way: turns.median(name, key)
            for way, name in names.items()
            if label(name) not in wrong and turns.values(name, key)
        }

    ours = {
        key: turns.median(("waystage", case), key)
        for case, key in (
            ("contiguous", "write_s"),
            ("view", "view_us"),
            ("view", "view_kib"),
            ("peak", "peak_kib"),
            ("small", "small_us"),
        )
    }
    figures: dict[str, Any] = {
        "view_us": round(ours["view_us"], 1),
        "view_kib": ours["view_kib"],
        "aggregator_peak_x_buffer": round(ours["peak_kib"] / (MEMORY_MIB << 10), 3),
        "small_us": round(ours["small_us"], 1),
        "wrong_bytes": sum(count for name, count in wrong.items() if name.startswith("waystage")),
    }
    found: dict[str, Any] = {}
    if writes := peers("contiguous", "write_s"):
        best = min(writes, key=lambda way: writes[way])
        figures["overhead_pct"] = round(100 * (ours["write_s"] / writes[best] - 1), 2)
        found["best"] = f"{best} {writes[best]:.3f} s"
    if small := peers("small", "small_us"):
        figures["small_x_best"] = round(min(small.values()) / ours["small_us"], 3)
    for key in ("us", "kib"):
        for way, value in peers("view", f"view_{key}").items():
            found[f"{way}_view_{key}_of_1e6_runs"] = value
    found |= {f"{way}_small_us": round(value, 1) for way, value in small.items()}
    return {
        "figures": figures,
        "peers": found,
        "details": turns.details() | {"wrong": wrong, "core": core},
    }


def _wrong(turns: Turns, name: Any) -> float:
    """Wrong bytes of all turns of a contestant, in its file and read back."""
    return sum(sum(turns.values(name, key)) for key in ("wrong", "wrong_read"))


class _Bench:
    """A node, programs and a mounted file system."""

    mounted: pfs.Mounted

    def __init__(self, folder: Path, made: Nodes, programs: Programs, quick: bool) -> None:
        self._folder, self._nodes, self._programs = folder, made, programs
        self._bytes = BYTES_A_RANK_QUICK if quick else BYTES_A_RANK
        self._extents = EXTENTS_QUICK if quick else EXTENTS
        self._calls = CALLS_QUICK if quick else CALLS
        self._cost = folder / "cost"
        run_program(["mpicc", "-std=c11", "-O2", "-Wall", "-Wextra", "-o", self._cost, SOURCES / "cost.c"])

    def contestants(self) -> dict[tuple[str, str], Any]:
        found: dict[tuple[str, str], Any] = {}
        for way in ("waystage", *PEERS):
            found[way, "contiguous"] = partial(self._contiguous, way)
        for way in ("waystage", "ompio", "romio321"):
            found[way, "view"] = partial(
                self._cost_of, way, "view", RUNS if way == "waystage" else RUNS_OF_PEERS
            )
            found[way, "small"] = partial(self._cost_of, way, "small", self._calls)
        found["waystage", "peak"] = partial(self._cost_of, "waystage", "peak", self._extents)
        return found

    def _contiguous(self, way: str, turn: int) -> Figures:
        how = "independent" if way == "independent" else "mpiio"
        file = self._folder / "point" / "file"
        file.unlink(missing_ok=True)
        pfs.reset(self.mounted)
        printed = self._run(way, [self._programs.raw["openmpi"], how, "contiguous", self._bytes, file])
        counted = pfs.statistics(self.mounted)
        wrong = wrong_bytes(self._folder / "files" / "file", printed) + printed["wrong_read"]
        return {
            "write_s": printed["view_s"] + printed["write_s"] + printed["close_s"],
            "read_s": printed["read_s"],
            "open_s": printed["open_s"],
            "wrong": wrong,
            "emulation": pfs.why_invalid(counted) or "",
        }

    def _cost_of(self, way: str, what: str, number: int, turn: int) -> Figures:
        # Memory and time of processes, not of storage.
        file = self._folder / "files" / f"{what}.cost"
        file.unlink(missing_ok=True)
        checks = ("--mca", "mpi_param_check", "0") if what == "view" else ()
        return self._run(way, [self._cost, what, number, file], checks)

    def _run(self, way: str, program: list[object], options: tuple[str, ...] = ()) -> Figures:
        if way in ("ompio", "romio321"):
            options = (*options, "--mca", "io", way)
        launch = self._nodes.open_mpi(RANKS, program, options)
        if way == "waystage":
            memory = ("--memory", f"{MEMORY_MIB}M")
            launch = [sys.executable, "-m", "waystage", "mpi", "--io", *memory, "--", *launch]
        try:
            found: Figures = json.loads(self._nodes.run(launch, limit_s=LIMIT_S).splitlines()[-1])
        except (BenchError, ValueError, IndexError) as error:
            raise TurnFailed(f"{way}: {error}") from None
        return found


def _core(quick: bool) -> dict[str, Any] | None:
    """The view alone; None where there is no cargo."""
    cargo = shutil.which("cargo", path=f"{os.environ.get('PATH', '')}:{Path.home() / '.cargo/bin'}")
    if cargo is None:
        return None
    words = [
        cargo,
        "run",
        "-q",
        "--release",
        "--locked",
        "-p",
        "waystage-collective",
        "--example",
        "set_view",
    ]
    printed = run_program([*words, "--", RUNS, 11 if quick else 1001], cwd=REPOSITORY)
    found: dict[str, Any] = json.loads(printed)
    return found
