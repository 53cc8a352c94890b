"""Writes acknowledged with a copy at a second aggregator: what they gain over slow storage, what they cost over fast one.

Eight ranks on four nodes write a shared file in bursts, pieces of 32 KiB in turn: first with a pause before each write, in
which a program would compute, then with a sync behind each write. `slow` is the emulated striped file system of
`collective`, `fast` this machine's memory. The same program runs under Waystage with `--write-behind` and without,
Open MPI's ROMIO and OMPIO, in turns. Every figure is another's time over that with write-behind: above 1 it gains.

- `slow_write_x_without`, `slow_write_x_romio`: median time of a write call with a pause before it.
- `slow_run_x_without`, `slow_run_x_romio`: all of these phases, pauses and a sync at the end included.
- `slow_sync_x_without`, `slow_sync_x_romio`: a write and its sync, without a pause.
- `fast_*`: the same in memory, where the copy is not repaid.
- `wrong_bytes`: in the files of both ways of Waystage.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from _io_nodes import Nodes, nodes
from _io_programs import SOURCES, wrong_bytes
from _io_storage import DILATION, TARGETS, shape

from waystage.bench import BenchError, BenchOptions, Figures, TurnFailed, installed, run_program, take_turns
from waystage.worlds.lab import pfs

NODES, RANKS = 4, 8
LINK_BIT_S = 10_000_000_000
"""Divided by `DILATION`, as links of the other benchmarks of collective I/O."""
PHASES, PHASES_QUICK = 8, 2
BYTES_A_RANK = 1 << 20
COMPUTE_S = 0.5
STORAGE_DILATION = 16.0
"""A burst of 8 MiB takes the targets 0.3 s."""
LIMIT_S = 60.0
LEAST_IDLE_PCT = 5.0
OURS = ("behind", "without")
PEERS = ("romio321", "ompio")
CASES = ("slow", "fast")
TAKES_S = 280, 25


@dataclass
class _Bench:
    folder: Path
    nodes: Nodes
    program: Path
    phases: int
    mounted: pfs.Mounted | None = None

    def measure(self, way: str, case: str, turn: int) -> Figures:
        """One run; TurnFailed where it ends with an error or not at all."""
        file = self.folder / ("point" if case == "slow" else "memory") / "file"
        file.unlink(missing_ok=True)
        assert self.mounted is not None
        pfs.reset(self.mounted)
        words = [self.program, self.phases, COMPUTE_S, BYTES_A_RANK, file]
        launch = self.nodes.open_mpi(RANKS, words, ("--mca", "io", way) if way in PEERS else ())
        if way in OURS:
            behind = ["--write-behind"] * (way == "behind")
            launch = [sys.executable, "-m", "waystage", "mpi", "--io", *behind, "--", *launch]
        try:
            printed: dict[str, Any] = json.loads(self.nodes.run(launch, limit_s=LIMIT_S).splitlines()[-1])
        except (BenchError, ValueError, IndexError) as error:
            raise TurnFailed(f"{way}, {case}: {error}") from None
        late = pfs.why_invalid(pfs.statistics(self.mounted)) if case == "slow" else None
        written = self.folder / ("files" if case == "slow" else "memory") / "file"
        return printed | {"wrong": wrong_bytes(written, printed), "emulation": late or ""}


def run(options: BenchOptions) -> dict[str, Any]:
    if os.geteuid() != 0:
        raise BenchError("mounting the emulated file system needs root")
    # Its contents stay in memory: this machine's disk must not be what is measured.
    with (
        tempfile.TemporaryDirectory(prefix="waystage-write-behind-", dir="/dev/shm") as name,
        nodes(NODES, int(LINK_BIT_S / DILATION)) as made,
    ):
        folder = Path(name)
        installed("mpicc", "libopenmpi-dev")
        program = folder / "burst"
        flags = ("-std=c11", "-O2", "-Wall", "-Wextra")
        run_program(["mpicc", *flags, "-o", program, SOURCES / "burst.c"])
        for part in ("files", "point", "memory"):
            (folder / part).mkdir()
        slow = msgspec.structs.replace(shape(), dilation=STORAGE_DILATION)
        bench = _Bench(folder, made, program, PHASES_QUICK if options.quick else PHASES)
        bench.mounted = pfs.mount(folder / "point", slow, folder / "files")
        try:
            turns = take_turns(
                options,
                {(way, case): partial(bench.measure, way, case) for case in CASES for way in OURS + PEERS},
                turns=3,
                quick=1,
                least_idle_pct=LEAST_IDLE_PCT,
                invalid=lambda figures: figures.get("emulation") or None,
                case=lambda name: name[1],
                quick_cases=CASES[:1],
            )
        finally:
            pfs.unmount(folder / "point", force=True)
    figures: dict[str, Any] = {
        "wrong_bytes": int(sum(sum(turns.values((way, case), "wrong")) for way in OURS for case in CASES)),
    }
    for case in CASES:
        for step in ("write", "run", "sync"):
            for other, label in (("without", "without"), ("romio321", "romio")):
                if turns.values((other, case), f"{step}_s"):
                    ratio = turns.ratio((other, case), ("behind", case), f"{step}_s")
                    figures[f"{case}_{step}_x_{label}"] = round(ratio, 3)
    return {
        "figures": figures,
        "peers": {
            f"{way}_{case}_{step}": round(turns.median((way, case), step), 4)
            for case in CASES
            for way in PEERS
            for step in ("write_s", "run_s", "sync_s")
            if turns.values((way, case), step)
        },
        "details": turns.details()
        | {
            "emulated": f"slow: {TARGETS} targets, {STORAGE_DILATION:g} times slower than the shape's; "
            f"links of {LINK_BIT_S / DILATION / 1e9:g} Gbit/s in both cases"
        },
    }
