"""Collective I/O of unmodified MPI-IO and HDF5 programs, against ROMIO, OMPIO, two phases by hand, independent requests.

Eight ranks on four nodes, namespaces with one limited link each, write one file of an emulated striped file system and
read it back: `contiguous`, a block a rank; `strided`, blocks of 40,000 bytes in turn; `subarray`, a 4-D array of 576-byte
sites (mpich#7935); `pieces`, 4 KiB in turn; `vpic` and `vorpal`, the kernels of CLARISSE's section V by parallel HDF5.
The same program runs under each implementation of MPI-IO: OMPIO, Open MPI's ROMIO, MPICH's, and Waystage.

Writing is set_view, write_all and close, in HDF5 open to close; reading is read_all. For each case `x_best` is the best
peer's median over Waystage's: `worst_x_best` and `median_x_best` are over all cases, written and read.
`subarray_x_romio` is the better ROMIO's, written. `subarray_x_floor` is the time over ours of the storage alone: the same
bytes in bare requests of a stripe each, as many in flight as all aggregators have, without MPI. `details.floor` has that
time, and what `subarray_x_romio` would be with it. `wrong_bytes` is Waystage's, in the file and read back. A peer with
wrong bytes is no peer in that case, and `details.wrong` names it. Links and servers are slowed by `DILATION`, so that
this machine keeps up; a turn whose emulation was late is not valid. It measures methods, and no Lustre. A run that ends
early has the cases that come first, and names the others.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from _io_nodes import Nodes, nodes
from _io_programs import Programs, compile_programs, wrong_bytes
from _io_storage import DILATION, STRIPE_BYTES, TARGETS, shape

from waystage.bench import BenchError, BenchOptions, Figures, TurnFailed, Turns, run_program, take_turns
from waystage.bench.turns import label
from waystage.stats import median
from waystage.worlds.lab import pfs

NODES, RANKS = 4, 8
LINK_BIT_S = 1_000_000_000
"""As emulated; the real links are `DILATION` times slower."""
BYTES_A_RANK, BYTES_A_RANK_QUICK = 8 << 20, 1 << 20
STEPS, STEPS_QUICK = {"vpic": 10, "vorpal": 2}, {"vpic": 2, "vorpal": 1}
LIMIT_S = 120.0

FLOOR = ("storage alone", "subarray")
IN_FLIGHT = 32 * TARGETS
"""Requests of all aggregators together: 32 at a target."""
SITE_BYTES = 576

RAW, KERNELS = ("contiguous", "strided", "subarray", "pieces"), ("vpic", "vorpal")
MPI_IO = ("waystage", "ompio", "romio321", "mpich")
BY_HAND = ("alltoallv", "independent")
TAKES_S = 900, 35
LEAST_S = 70, 30


def run(options: BenchOptions) -> dict[str, Any]:
    if os.geteuid() != 0:
        raise BenchError("mounting the emulated file system needs root")
    # Its contents stay in memory: this machine's disk must not be what is measured.
    with (
        tempfile.TemporaryDirectory(prefix="waystage-collective-", dir="/dev/shm") as name,
        nodes(NODES, int(LINK_BIT_S / DILATION)) as made,
    ):
        folder = Path(name)
        bench = _Bench(folder, made, compile_programs(folder), options.quick)
        (folder / "files").mkdir()
        (folder / "point").mkdir()
        bench.mounted = pfs.mount(folder / "point", shape(), folder / "files")
        try:
            turns = take_turns(
                options,
                {
                    (way, case): partial(bench.measure, way, case)
                    for case in RAW + KERNELS
                    for way in ways(case)
                }
                | {FLOOR: bench.floor},
                turns=3,
                quick=1,
                invalid=lambda figures: figures.get("emulation") or None,
                case=lambda name: name[1],
                quick_cases=("contiguous", "subarray", "vpic"),
            )
        finally:
            pfs.unmount(folder / "point", force=True)
    return _result(turns)


def ways(case: str) -> list[str]:
    """Who takes part in a case."""
    return [*MPI_IO, *(BY_HAND if case in RAW else ())]


class _Bench:
    """Programs, nodes and a mounted file system."""

    mounted: pfs.Mounted

    def __init__(self, folder: Path, made: Nodes, programs: Programs, quick: bool) -> None:
        self._folder, self._nodes, self._programs = folder, made, programs
        self._bytes = BYTES_A_RANK_QUICK if quick else BYTES_A_RANK
        self._steps = STEPS_QUICK if quick else STEPS

    def measure(self, way: str, case: str, turn: int) -> Figures:
        """One run; TurnFailed where it ends with an error or not at all."""
        file = self._folder / "point" / "file"
        file.unlink(missing_ok=True)
        pfs.reset(self.mounted)
        try:
            out = self._nodes.run(
                self.command(way, case, file), limit_s=LIMIT_S, may_hang_at_end=way == "mpich"
            )
            printed = json.loads(out.splitlines()[-1])
        except (BenchError, ValueError, IndexError) as error:
            raise TurnFailed(f"{way}, {case}: {error}") from None
        return self._figures(printed)

    def floor(self, turn: int) -> Figures:
        """The bytes of the subarray's file by bare requests of a stripe each."""
        file, size = self._folder / "point" / "file", array_bytes(self._bytes)
        file.unlink(missing_ok=True)
        with file.open("xb") as made:
            made.truncate(size)
        pfs.reset(self.mounted)
        try:
            out = run_program([self._programs.floor, size, STRIPE_BYTES, IN_FLIGHT, file], timeout=LIMIT_S)
        except (BenchError, subprocess.TimeoutExpired) as error:
            raise TurnFailed(f"{label(FLOOR)}: {error}") from None
        return self._figures(json.loads(out))

    def _figures(self, printed: dict[str, Any]) -> Figures:
        counted = pfs.statistics(self.mounted)
        targets = counted["targets"]
        steps = ("view_s", "write_s", "close_s")
        return {
            "write_s": sum(printed.get(step, 0.0) for step in steps),
            "read_s": printed.get("read_s"),
            "open_s": printed.get("open_s"),
            "view_s": printed.get("view_s"),
            "wrong_file": wrong_bytes(self._folder / "files" / "file", printed),
            "wrong_read": printed["wrong_read"],
            "requests": sum(target["requests"] for target in targets),
            "x_written": sum(target["written_bytes"] for target in targets) / printed["bytes"],
            "emulation": pfs.why_invalid(counted) or "",
        }

    def command(self, way: str, case: str, file: Path) -> list[str]:
        """The launch of a case."""
        library = "mpich" if way == "mpich" else "openmpi"
        if case in KERNELS:
            program: list[object] = [self._programs.kernels[library], case, self._steps[case], file]
        else:
            how = way if way in BY_HAND else "mpiio"
            program = [self._programs.raw[library], how, case, self._bytes, file]
        if way == "mpich":
            return self._nodes.mpich(RANKS, ["env", f"LD_PRELOAD={self._programs.yields}", *program])
        if way == "waystage":
            launch = self._nodes.open_mpi(RANKS, program)
            return [sys.executable, "-m", "waystage", "mpi", "--io", "--", *launch]
        return self._nodes.open_mpi(RANKS, program, ("--mca", "io", way) if way in MPI_IO else ())


def array_bytes(bytes_a_rank: int) -> int:
    """Bytes of the file of the 4-D array: see `array` in pattern.c."""
    side = next(side for side in itertools.count(1) if side**4 * SITE_BYTES >= bytes_a_rank)
    return RANKS * side**4 * SITE_BYTES


def _result(turns: Turns) -> dict[str, Any]:
    wrong: dict[str, int] = {}
    cases = [case for case in RAW + KERNELS if case not in turns.missing]
    for case in cases:
        for way in ways(case):
            counts = turns.values((way, case), "wrong_file") + turns.values((way, case), "wrong_read")
            if sum(counts):
                wrong[f"{way}, {case}"] = int(sum(counts))
    x_best: dict[str, float] = {}
    best: dict[str, str] = {}
    for case in cases:
        for step in ("write_s", "read_s"):
            peers = {
                way: turns.median((way, case), step)
                for way in ways(case)
                if way != "waystage" and f"{way}, {case}" not in wrong and turns.values((way, case), step)
            }
            if not peers:
                continue
            first = min(peers, key=lambda way: peers[way])
            name = f"{case} {step.removesuffix('_s')}"
            best[name] = f"{first} {peers[first]:.3f} s"
            # A case in which all turns of Waystage failed counts, as the worst.
            done = bool(turns.values(("waystage", case), step))
            x_best[name] = round(peers[first] / turns.median(("waystage", case), step), 3) if done else 0.0
    floors: dict[str, Any] = {}
    figures: dict[str, Any] = {
        "wrong_bytes": sum(n for name, n in wrong.items() if name.startswith("waystage"))
    }
    if x_best:
        figures |= {
            "worst_x_best": min(x_best.values()),
            "median_x_best": round(median(list(x_best.values())), 3),
        }
    if x_best.get("subarray write"):
        romio = min(
            turns.median((way, "subarray"), "write_s")
            for way in ("romio321", "mpich")
            if turns.values((way, "subarray"), "write_s")
        )
        ours = turns.median(("waystage", "subarray"), "write_s")
        figures["subarray_x_romio"] = round(romio / ours, 2)
        if turns.values(FLOOR, "write_s"):
            floor = turns.median(FLOOR, "write_s")
            figures["subarray_x_floor"] = round(floor / ours, 3)
            floors = {
                "floor": {"subarray write": round(floor, 4), "subarray_x_romio": round(romio / floor, 2)}
            }
    return {
        "figures": figures,
        "peers": {"best": best},
        "details": turns.details()
        | floors
        | {
            "x_best": x_best,
            "wrong": wrong,
            "emulated": f"servers and links are {DILATION:g} times slower than the shape's",
        },
    }
