"""What 100 kills of aggregators and of the controller at random moments do to programs that write and read collectively.

Three nodes as namespaces, six ranks. A program writes for some seconds through `waystage mpi --io`, reads older rounds
and syncs, while processes are killed by SIGKILL at random moments: aggregators of random nodes, successors that have
just begun among them, and in one kill of four the controller with the nodes' flow agent and the policy `elastic-io`.
Each node starts its aggregator again, and the controller is started again within 2 s. One run of five is MPICH's, the
others are Open MPI's. Every other run has `--write-behind`, mostly with slow storage, so that kills meet windows that are
in memory only. What it promises is tested: an aggregator is killed once a write has begun and ended after the last kill.

- `wrong_bytes`: in the file at the end, and as read back by the program.
- `failed_runs`: the program failed; `hung_runs`: it did not end in time; neither had its aggregators given up.
- `controller_kills`: of the kills.
- `behind_wrong_bytes`, `behind_failed_runs`, `behind_kills`: of these, those with `--write-behind`.
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

from waystage.bench import BenchError, BenchOptions, Stopped, installed, run_program

KILLS, KILLS_QUICK = 100, 3
NODES, RANKS = 3, 6
LINK_BIT_S = 2_000_000_000
RUN_S, RUN_S_QUICK = 30.0, 8.0
WORDS = 1 << 16
"""Of a rank and round: 1.5 MiB a round."""
PAUSE_S = (0.2, 8.0)
CONTROLLER_SHARE = 0.25
"""Of kills."""
LIMIT_S = 150.0
"""For the end after the program's own time: more than the lease of its operations."""
SOURCE = Path(__file__).parent / "collective_peers" / "crash.c"
TAG = "WAYSTAGE_BENCH_TAG"
DELAYS_US = (0, 5_000, 30_000, 100_000)
"""Of a window, in runs with write-behind."""
SETTLED_ROUNDS = 2
"""The operation in progress at a kill, and one that began after it: at its begin nothing was behind."""
TAKES_S = 600, 40
LEAST_S = 60, 40


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
    runs: int = 0
    complaints: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Run:
    """A program, and how it is run."""

    library: str
    program: Path
    file: Path
    seconds: float
    delay_us: int | None
    """With write-behind, else None."""

    def rounds(self) -> int:
        """Writes that have ended."""
        with contextlib.suppress(OSError):
            return int.from_bytes(self.progress.read_bytes(), sys.byteorder)
        return 0

    @property
    def progress(self) -> Path:
        return self.file.with_suffix(".rounds")


def run(options: BenchOptions) -> dict[str, Any]:
    kills = options.repetitions or (KILLS_QUICK if options.quick else KILLS)
    chance = random.Random(20)
    written, behind = _Counts(), _Counts()
    with (
        tempfile.TemporaryDirectory(prefix="waystage-io-crash-") as folder,
        nodes(NODES, LINK_BIT_S) as made,
        contextlib.ExitStack() as stack,
    ):
        programs = _compiled(Path(folder))
        controller = stack.enter_context(Controller(Path(folder)))
        stack.enter_context(options.limit.interruptible())
        for number in options.limit.steps(itertools.count()):
            done = written.kills + behind.kills
            enough = done >= kills and behind.runs > 0
            if enough or sum(each.hung + each.failed for each in (written, behind)) >= 10:
                break
            options.progress(f"{done} of {kills} kills", done / kills)
            library = "mpich" if number % 5 == 4 else "openmpi"
            is_behind = number % 2 == 1
            delay_us = chance.choice(DELAYS_US) if is_behind else None
            run_s = RUN_S_QUICK if options.quick else RUN_S
            what = _Run(library, programs[library], Path(folder) / "file", run_s, delay_us)
            counts = behind if is_behind else written
            counts.runs += 1
            _one(made, what, f"{os.getpid()}-{number}", controller, chance, counts)
    both = (written, behind)
    done = sum(each.kills for each in both)
    if done == 0 and options.limit.stopped:
        raise Stopped(f"ended by {options.limit.stopped} before a process was killed")
    if done == 0:
        raise BenchError("no aggregator process was found to kill")
    return {
        "figures": {
            "wrong_bytes": sum(each.wrong for each in both),
            "failed_runs": sum(each.failed for each in both),
            "hung_runs": sum(each.hung for each in both),
            "kills": done,
            "controller_kills": sum(each.controller_kills for each in both),
            "behind_wrong_bytes": behind.wrong,
            "behind_failed_runs": behind.failed + behind.hung,
            "behind_kills": behind.kills,
            "lost_s": round(sum(each.above_s for each in both) / done, 2),
        },
        "details": {
            "runs": {"written": written.runs, "behind": behind.runs},
            "rounds": {"written": written.rounds, "behind": behind.rounds},
            "fallback_runs": sum(each.fallbacks for each in both),
            "complaints": [*written.complaints, *behind.complaints],
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
    what: _Run,
    tag: str,
    controller: Controller,
    chance: random.Random,
    counts: _Counts,
) -> None:
    """One run with kills."""
    for old in (what.file, what.progress):
        old.unlink(missing_ok=True)
    delay = made.folder / "delay"
    delay.write_text(str(what.delay_us or 0), encoding="ascii")
    words = [what.program, what.seconds, WORDS, what.file, what.progress]
    launch = made.mpich(RANKS, words) if what.library == "mpich" else made.open_mpi(RANKS, words)
    is_behind = what.delay_us is not None
    name = f"{what.library}, write-behind" if is_behind else what.library
    began = time.time()
    ours = [sys.executable, "-m", "waystage", "mpi", "--io", *["--write-behind"] * is_behind, "--job", "1"]
    command = made.contained([*ours, "--", *launch])
    variables = {"TMPDIR": str(made.folder), TAG: tag, "WAYSTAGE_IO_DELAY_FILE": str(delay)}
    may_kill_at = 0
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command,
            env={**os.environ, **controller.environment, **variables},
            cwd=made.folder,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
            start_new_session=True,
        )
        try:
            deadline = time.monotonic() + what.seconds + LIMIT_S
            next_kill = time.monotonic() + chance.uniform(1.0, 4.0)
            while process.poll() is None and not _text(out).endswith("}\n"):
                if time.monotonic() > deadline:
                    counts.hung += 1
                    counts.complaints.append(f"{name}: no end; {_text(errors)[-2000:].strip()}")
                    return
                controller.look()
                settled = not is_behind or what.rounds() >= may_kill_at
                if time.monotonic() > next_kill and what.file.exists() and settled:
                    if chance.random() < CONTROLLER_SHARE:
                        killed = controller.kill(chance.uniform(0.0, 2.0))
                        counts.controller_kills += killed
                    else:
                        killed = _kill_one(f"{TAG}={tag}", chance)
                        may_kill_at = what.rounds() + SETTLED_ROUNDS
                    counts.kills += killed
                    next_kill = time.monotonic() + chance.uniform(*PAUSE_S)
                time.sleep(0.01)
        finally:
            # MPICH 4.0 with UCX over TCP often does not come back from MPI_Finalize.
            if process.poll() is None:
                process.kill()
            process.wait()
            tidy(began)
        _judge(name, what.file, _text(out), _text(errors), counts)


def _judge(name: str, file: Path, out: str, errors: str, counts: _Counts) -> None:
    try:
        printed = json.loads(out.strip().splitlines()[-1])
    except (IndexError, ValueError):
        counts.failed += 1
        counts.complaints.append(f"{name}: {errors[-2000:].strip()}")
        return
    counts.rounds += printed["rounds"]
    counts.above_s += printed["above_s"]
    counts.wrong += printed["wrong"] + _wrong(file, printed)
    if "did not answer within the lease" in errors:
        counts.fallbacks += 1
    if "not through aggregators" in errors:
        counts.failed += 1
        counts.complaints.append(f"{name}: {errors[-2000:].strip()}")


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
