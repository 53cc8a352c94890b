"""What 100 kills of aggregators and of the controller at random moments do to programs that write and read collectively.

Three nodes as namespaces, six ranks. A program writes for some seconds through `waystage mpi --io`, reads older rounds
and syncs, while processes are killed by SIGKILL at random moments: aggregators of random nodes, successors that have
just begun among them, and in one kill of four the controller with the nodes' flow agent and the policy `elastic-io`.
Each node starts its aggregator again, and the controller is started again within 2 s. One run of five is MPICH's, the
others are Open MPI's.

- `wrong_bytes`: in the file at the end, and as read back by the program.
- `failed_runs`: the program failed; `hung_runs`: it did not end in time; neither had its aggregators given up.
- `controller_kills`: of the kills.
- `lost_s`: time of writes above their median, by the number of kills.
- `fallback_runs`: in the details, runs in which the aggregators were given up for the MPI library's own way.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from _io_controller import Controller
from _io_nodes import Nodes, nodes, tidy
from numpy.typing import NDArray

from waystage.bench import BenchError, BenchOptions, installed, run_program

KILLS, KILLS_QUICK = 100, 6
NODES, RANKS = 3, 6
LINK_BIT_S = 2_000_000_000
RUN_S = 30.0
WORDS = 1 << 16
"""Of a rank and round: 1.5 MiB a round."""
PAUSE_S = (0.2, 8.0)
CONTROLLER_SHARE = 0.25
"""Of kills."""
LIMIT_S = 150.0
"""For the end after the program's own time: more than the lease of its operations."""
SOURCE = Path(__file__).parent / "collective_peers" / "crash.c"
TAG = "WAYSTAGE_BENCH_TAG"
TAKES_S = 600, 60


@dataclass
class _Counts:
    kills: int = 0
    controller_kills: int = 0
    wrong: int = 0
    failed: int = 0
    hung: int = 0
    fallbacks: int = 0
    rounds: int = 0
    above_s: float = 0.0
    complaints: list[str] = field(default_factory=list)


def run(options: BenchOptions) -> dict[str, Any]:
    kills = options.repetitions or (KILLS_QUICK if options.quick else KILLS)
    chance = random.Random(20)
    counts = _Counts()
    runs = 0
    with (
        tempfile.TemporaryDirectory(prefix="waystage-io-crash-") as folder,
        nodes(NODES, LINK_BIT_S) as made,
        contextlib.ExitStack() as stack,
    ):
        programs = _compiled(Path(folder))
        controller = stack.enter_context(Controller(Path(folder)))
        for _ in options.limit.steps(itertools.count()):
            if counts.kills >= kills or counts.hung + counts.failed >= 10:
                break
            options.progress(f"{counts.kills} of {kills} kills", counts.kills / kills)
            library = "mpich" if runs % 5 == 4 else "openmpi"
            _one(made, library, programs[library], Path(folder) / "file", controller, chance, counts)
            runs += 1
    if counts.kills == 0:
        raise BenchError("no aggregator process was found to kill")
    return {
        "figures": {
            "wrong_bytes": counts.wrong,
            "failed_runs": counts.failed,
            "hung_runs": counts.hung,
            "kills": counts.kills,
            "controller_kills": counts.controller_kills,
            "lost_s": round(counts.above_s / counts.kills, 2),
        },
        "details": {
            "runs": runs,
            "rounds": counts.rounds,
            "fallback_runs": counts.fallbacks,
            "complaints": counts.complaints,
            "nodes": NODES,
            "ranks": RANKS,
        },
    }


def _compiled(folder: Path) -> dict[str, Path]:
    programs = {}
    for library, compiler in (("openmpi", "mpicc"), ("mpich", "mpicc.mpich")):
        installed(compiler, f"lib{library}-dev")
        programs[library] = folder / f"crash-{library}"
        run_program([compiler, "-std=c11", "-O2", "-Wall", "-Wextra", "-o", programs[library], SOURCE])
    return programs


def _one(
    made: Nodes,
    library: str,
    program: Path,
    file: Path,
    controller: Controller,
    chance: random.Random,
    counts: _Counts,
) -> None:
    """One run with kills."""
    file.unlink(missing_ok=True)
    words = [program, RUN_S, WORDS, file]
    launch = made.mpich(RANKS, words) if library == "mpich" else made.open_mpi(RANKS, words)
    tag = f"{os.getpid()}-{counts.kills}-{counts.hung}"
    began = time.time()
    command = made.contained([sys.executable, "-m", "waystage", "mpi", "--io", "--job", "1", "--", *launch])
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command,
            env={**os.environ, **controller.environment, "TMPDIR": str(made.folder), TAG: tag},
            cwd=made.folder,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
            start_new_session=True,
        )
        try:
            deadline = time.monotonic() + RUN_S + LIMIT_S
            next_kill = time.monotonic() + chance.uniform(1.0, 4.0)
            while process.poll() is None and not _text(out).endswith("}\n"):
                if time.monotonic() > deadline:
                    counts.hung += 1
                    counts.complaints.append(f"{library}: no end; {_text(errors)[-200:].strip()}")
                    return
                controller.look()
                if time.monotonic() > next_kill and file.exists():
                    if chance.random() < CONTROLLER_SHARE:
                        killed = controller.kill(chance.uniform(0.0, 2.0))
                        counts.controller_kills += killed
                    else:
                        killed = _kill_one(f"{TAG}={tag}", chance)
                    counts.kills += killed
                    next_kill = time.monotonic() + chance.uniform(*PAUSE_S)
                time.sleep(0.01)
        finally:
            # MPICH 4.0 with UCX over TCP often does not come back from MPI_Finalize.
            if process.poll() is None:
                process.kill()
            process.wait()
            tidy(began)
        _judge(library, file, _text(out), _text(errors), counts)


def _judge(library: str, file: Path, out: str, errors: str, counts: _Counts) -> None:
    try:
        printed = json.loads(out.strip().splitlines()[-1])
    except (IndexError, ValueError):
        counts.failed += 1
        counts.complaints.append(f"{library}: {errors[-300:].strip()}")
        return
    counts.rounds += printed["rounds"]
    counts.above_s += printed["above_s"]
    counts.wrong += printed["wrong"] + _wrong(file, printed)
    if "did not answer within the lease" in errors:
        counts.fallbacks += 1
    if "not through aggregators" in errors:
        counts.failed += 1
        counts.complaints.append(f"{library}: {errors[-300:].strip()}")


def _kill_one(tag: str, chance: random.Random) -> int:
    """Kill one of the launch's aggregator processes; how many were killed."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().split(b"\0")
            if b"aggregator" in command and tag.encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:
            continue
    if not found:
        return 0
    try:
        os.kill(chance.choice(sorted(found)), signal.SIGKILL)
    except ProcessLookupError:
        return 0
    return 1


def _wrong(file: Path, printed: dict[str, Any]) -> int:
    """Bytes that differ from the last round of each slot."""
    wrong, words, slots = 0, printed["words"], printed["slots"]
    index = np.arange(words, dtype=np.uint64)
    for slot in range(min(slots, printed["rounds"])):
        last = (printed["rounds"] - 1 - slot) // slots * slots + slot
        found: NDArray[np.uint32] = np.fromfile(file, np.uint32, words, offset=slot * words * 4)
        expected = (index * 2654435761 + 12345 + last).astype(np.uint32)[: len(found)]
        wrong += int(np.count_nonzero(found.view(np.uint8) != expected.view(np.uint8)))
        wrong += (words - len(found)) * 4
    return wrong


def _text(file: Any) -> str:
    return os.pread(file.fileno(), 1 << 20, 0).decode(errors="replace")
