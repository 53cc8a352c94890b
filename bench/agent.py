"""What recording costs a program that makes files, and whether the catalog misses or mistakes one.

A program makes empty files in memory, so that only CPU time counts, in pairs: one is opened and closed by the preloaded
library, one by the C library itself, in the same process and one right after the other. The difference of the medians
is the library's cost for a creation and its closing together; once as usual, once with what fstat reports on closing,
and once without the library, which shows the noise. The agent reads meanwhile. Then the program writes files of 32
KiB, 1 MiB and 4 MiB in the same manner, again in memory, where a file costs least and the library's share is largest.
Figures are medians over turns; `details` has the means without the slowest hundredth, where a wait for the agent
would show, and the cost of an empty system call and of fstat on this machine.

Another program makes 100,000 files by threads, forked children, children that end by _exit or are killed, and exec;
it renames, links, truncates and removes some, and the catalog is compared with a walk: `wrong` entries differ, `lost`
ones are missing although the catalog does not report that any may be.

The peer is strace on the same calls, where it is installed. The floor is `_agent_floor.c`, preloaded in the library's
place: it copies the same bytes into a ring of shared memory that a thread reads, with fstat(2) on closing where that is
asked for, and does nothing else. `x_floor` and `stat_x_floor` are what it adds over what the library adds.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from waystage._native import CatalogAgent
from waystage.bench import BenchError, BenchOptions, Figures, compile_c, installed, run_program, take_turns
from waystage.catalog import BuildOptions, Catalog
from waystage.catalog.build import build as build_catalog
from waystage.catalog.difference import verify
from waystage.recorder import RecordOptions, build, record
from waystage.stats import median

PROGRAMS = Path(__file__).parents[1] / "shim" / "tests"
FLOOR = Path(__file__).with_name("_agent_floor.c")
STANDARD = "-std=c11"
MEMORY = Path("/dev/shm")
RUNS = 15
INSIDE = 5
"""Repetitions within a run, of which the median counts."""

EMPTY_FILES = 20_000
SIZES = {"32k": (32 << 10, 2_000), "1m": (1 << 20, 200), "4m": (4 << 20, 60)}
"""Bytes of a file, and pairs of files of a repetition."""

STORM_FILES = 100_000
STORM_TURNS = 3
TAKES_S = 150, 10


def run(options: BenchOptions) -> dict[str, Any]:
    installed("cc", "gcc")
    if not MEMORY.is_dir():
        raise BenchError(f"{MEMORY} is missing: mount a tmpfs there")
    with (
        tempfile.TemporaryDirectory(prefix="waystage-agent-", dir=MEMORY) as memory,
        tempfile.TemporaryDirectory(prefix="waystage-agent-") as disk,
    ):
        return _Bench(Path(memory), Path(disk), options).measure()


class _Bench:
    """The library and the programs, compiled."""

    def __init__(self, memory: Path, disk: Path, options: BenchOptions) -> None:
        self._memory = memory
        self._disk = disk
        self._options = options
        self._library = build()
        for name in ("writing", "bare", "storm"):
            compile_c(PROGRAMS / f"{name}.c", STANDARD, into=disk)
        self._floor = compile_c(FLOOR, STANDARD, into=disk, shared=True)

    def measure(self) -> dict[str, Any]:
        files = EMPTY_FILES // 10 if self._options.quick else EMPTY_FILES
        costs = {
            "noise": partial(self._noise, files),
            "create_and_close": partial(self._cost, 0, files, False),
            "create_and_close_with_stat": partial(self._cost, 0, files, True),
            "floor": partial(self._bare_record, files, {}),
            "floor_with_stat": partial(self._bare_record, files, {"AGENT_FLOOR_STAT": "1"}),
            **{name: partial(self._cost, size, count, False) for name, (size, count) in SIZES.items()},
        }
        part = self._options.part("cost", 0.0, 0.7)
        turns = take_turns(part, costs, turns=RUNS, quick=1, invalid=_lost_records)
        wrong, lost, storms = self._storms()
        figures = {
            "ns_per_event": round(turns.median("create_and_close", "added_ns"), 1),
            "ns_per_event_stat": round(turns.median("create_and_close_with_stat", "added_ns"), 1),
            "x_floor": round(turns.ratio("floor", "create_and_close", "added_ns"), 2),
            "stat_x_floor": round(
                turns.ratio("floor_with_stat", "create_and_close_with_stat", "added_ns"), 2
            ),
            "wrong": wrong,
            "lost": lost,
        }
        return {
            "figures": figures
            | {f"normalised_{name}": round(turns.median(name, "normalised"), 4) for name in SIZES},
            "peers": self._strace(files),
            "details": turns.details() | {"bare_ns": self._bare(), "storms": storms},
        }

    def _noise(self, files: int, turn: int) -> Figures:
        """Both of a pair without library and agent."""
        return _figures(self._write(0, files, {}))

    def _cost(self, size: int, files: int, with_stat: bool, turn: int) -> Figures:
        """Nanoseconds a file, without and with the library and an agent that reads."""
        agent = CatalogAgent(self._memory.resolve(), tell_stat=with_stat)
        figures = _figures(
            self._write(size, files, {"LD_PRELOAD": str(self._library), "WAYSTAGE_RING": agent.path})
        )
        counts = agent.finish(threads=1).counts()
        # That the program began; of a pair, one opening, its closing where that is asked for, and each removal twice.
        expected = 1 + INSIDE * files * (6 if with_stat else 5)
        return {**figures, "gaps": counts["lost"] + abs(counts["records"] + counts["lost"] - expected)}

    def _bare_record(self, files: int, environment: Mapping[str, str], turn: int) -> Figures:
        """The same with the floor in the library's place."""
        return _figures(self._write(0, files, {"LD_PRELOAD": str(self._floor), **environment}))

    def _write(
        self, size: int, files: int, environment: Mapping[str, str], before: Sequence[str] = ()
    ) -> list[float]:
        """The values that `writing` prints, each a median over its repetitions."""
        folder = Path(tempfile.mkdtemp(dir=self._memory))
        command = [*before, str(self._disk / "writing"), str(files), str(size), str(INSIDE)]
        out = run_program(command, cwd=folder, env={**os.environ, **environment})
        folder.rmdir()
        rows = [[float(word) for word in line.split()] for line in out.splitlines()]
        return [median(column) for column in zip(*rows, strict=True)]

    def _bare(self) -> dict[str, float]:
        """An empty system call and fstat(2), of a file in memory."""
        with tempfile.TemporaryFile(dir=self._memory) as out:
            subprocess.run([str(self._disk / "bare")], stdout=out, check=True)
            out.seek(0)
            empty, fstat = (float(word) for word in out.read().split())
        return {"empty_call": empty, "fstat": fstat}

    def _storms(self) -> tuple[int, int, list[dict[str, Any]]]:
        """Entries that are wrong and missing after each storm, recorded into an existing catalog."""
        files = STORM_FILES // 20 if self._options.quick else STORM_FILES
        wrong = lost = 0
        storms = []
        for turn in range(1 if self._options.quick else STORM_TURNS):
            for tell_stat in (False, True):
                self._options.progress("a storm of files", 0.7 + 0.1 * turn)
                tree = Path(tempfile.mkdtemp(dir=self._memory))
                target = self._disk / f"catalog-{tree.name}"
                build_catalog(tree, target)
                command = ["env", "-C", str(tree), str(self._disk / "storm"), str(files)]
                ran = record(command, target, None, RecordOptions(tell_stat=tell_stat))
                if ran.status != 0 or ran.applied is None:
                    raise BenchError(f"the storm ended with status {ran.status}: {ran.problem}")
                found = verify(Catalog(target), BuildOptions().thread_count())
                missing = len(found.added) if not ran.applied.gaps else 0
                wrong += len(found.changed) + len(found.removed)
                lost += missing
                storms.append(
                    {
                        "files": files,
                        "tell_stat": tell_stat,
                        "entries": ran.applied.entries,
                        "missing": len(found.added),
                        "removed": len(found.removed),
                        "changed": len(found.changed),
                        "gaps": ran.applied.gaps,
                        "counts": ran.counts,
                        "apply_s": round(ran.applied.seconds, 3),
                    }
                )
                shutil.rmtree(tree)
        return wrong, lost, storms

    def _strace(self, files: int) -> dict[str, float]:
        strace = shutil.which("strace")
        if strace is None:
            return {}
        calls = "trace=open,openat,creat,close,unlink,unlinkat"
        before = [strace, "-f", "-qq", "-e", calls, "-o", str(self._disk / "strace.out")]
        few = max(100, files // 20)
        added = [self._write(0, few, {}, before)[0] - self._write(0, few, {})[0] for _ in range(3)]
        return {"strace_ns_per_event": round(median(added), 1)}


def _figures(row: Sequence[float]) -> dict[str, float]:
    without, with_it, without_mean, with_mean = row
    return {
        "without_ns": without,
        "with_ns": with_it,
        "added_ns": with_it - without,
        "added_mean_ns": with_mean - without_mean,
        "normalised": with_it / without,
    }


def _lost_records(figures: Figures) -> str | None:
    gaps = figures.get("gaps", 0)
    return f"{gaps} records were lost while the cost was measured" if gaps else None
