"""What recording costs a program that makes files, and whether the catalog misses or mistakes one.

A program makes empty files in memory, so that nothing but processor time counts, in pairs: one is opened and closed by the
preloaded library, one by the C library itself, in the same process and one right after the other. The difference of the
medians is the library's cost for a creation and its closing together; once as usual, once with what fstat says on closing, and
once without the library, which shows the noise. The agent reads meanwhile. Then the program writes files of 32 KiB, 1 MiB and
4 MiB in the same manner, again in memory, where a file costs least and the library's share is largest. Figures are medians over runs;
`details` has the means without the slowest hundredth, where a wait for the agent would show, and what an empty system call and
fstat cost on this machine by themselves.

Then another program makes 100,000 files by threads, forked children, children that end by _exit or are killed, and exec, renames,
links, truncates and removes some, and the catalog is compared with a walk: `wrong` entries differ, `lost` ones are missing though
the catalog does not say that any may be.

The peer is what strace sees of the same calls, where it is installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from waystage._native import CatalogAgent
from waystage.bench import BenchError, BenchOptions
from waystage.catalog import BuildOptions, Catalog
from waystage.catalog.build import build as build_catalog
from waystage.catalog.difference import verify
from waystage.recorder import RecordOptions, build, record
from waystage.stats import median

PROGRAMS = Path(__file__).parents[1] / "shim" / "tests"
FLAGS = ("-std=c11", "-O2")
MEMORY = Path("/dev/shm")
RUNS = 15
INSIDE = 5
"""Repetitions within a run, of which the median counts."""

EMPTY_FILES = 20_000
SIZES = {"32k": (32 << 10, 2_000), "1m": (1 << 20, 200), "4m": (4 << 20, 60)}
"""Bytes of a file, and pairs of files of a repetition."""

STORM_FILES = 100_000
STORM_TURNS = 3


def run(options: BenchOptions) -> dict[str, Any]:
    compiler = shutil.which("cc")
    if compiler is None:
        raise BenchError("there is no C compiler: install gcc")
    if not MEMORY.is_dir():
        raise BenchError(f"{MEMORY} is missing: mount a tmpfs there")
    with (
        tempfile.TemporaryDirectory(prefix="waystage-agent-", dir=MEMORY) as memory,
        tempfile.TemporaryDirectory(prefix="waystage-agent-") as disk,
    ):
        return _Bench(Path(memory), Path(disk), compiler, options).measure()


class _Bench:
    """The library and the programs, compiled."""

    def __init__(self, memory: Path, disk: Path, compiler: str, options: BenchOptions) -> None:
        self._memory = memory
        self._disk = disk
        self._options = options
        self._runs = options.repetitions or (2 if options.quick else RUNS)
        self._library = build()
        for name in ("writing", "bare", "storm"):
            source = str(PROGRAMS / f"{name}.c")
            command = [compiler, *FLAGS, "-o", str(disk / name), source, "-lpthread"]
            subprocess.run(command, check=True)

    def measure(self) -> dict[str, Any]:
        files = EMPTY_FILES // 10 if self._options.quick else EMPTY_FILES
        noise = self._cost(0, files, None, share=0.0)
        plain = self._cost(0, files, False, share=0.1)
        told = self._cost(0, files, True, share=0.25)
        writing = {
            name: self._cost(size, count, False, share=0.4 + 0.1 * number)
            for number, (name, (size, count)) in enumerate(SIZES.items())
        }
        wrong, lost, storms = self._storms()
        figures = {
            "ns_per_event": plain["added_ns"],
            "ns_per_event_stat": told["added_ns"],
            "wrong": wrong,
            "lost": lost,
        }
        figures |= {f"normalised_{name}": found["normalised"] for name, found in writing.items()}
        return {
            "figures": figures,
            "peers": self._strace(files),
            "details": {
                "runs": self._runs,
                "bare_ns": self._bare(),
                "noise": noise,
                "create_and_close": plain,
                "create_and_close_with_stat": told,
                "writing": writing,
                "storms": storms,
            },
        }

    def _cost(self, size: int, files: int, tell_stat: bool | None, *, share: float) -> dict[str, float]:
        """Nanoseconds a file, without and with the library and an agent that reads; None: without either."""
        rows: list[list[float]] = []
        gaps = 0
        for number in range(self._runs):
            self._options.progress(f"files of {size:,} bytes", share + 0.1 * number / self._runs)
            if tell_stat is None:
                rows.append(self._write(size, files, {}))
                continue
            agent = CatalogAgent(self._memory.resolve(), tell_stat=tell_stat)
            environment = {"LD_PRELOAD": str(self._library), "WAYSTAGE_RING": agent.path}
            rows.append(self._write(size, files, environment))
            counts = agent.finish(threads=1).counts()
            # Of a pair one opening is told, its closing where that is asked for, and each removal twice.
            expected = INSIDE * files * (6 if tell_stat else 5)
            gaps += counts["lost"] + abs(counts["records"] + counts["lost"] - expected)
        if gaps:
            raise BenchError(f"{gaps} records were lost while the cost was measured")
        added = [row[1] - row[0] for row in rows]
        ratios = [row[1] / row[0] for row in rows]
        return {
            "without_ns": round(median([row[0] for row in rows]), 1),
            "with_ns": round(median([row[1] for row in rows]), 1),
            "added_ns": round(median(added), 1),
            "least_added_ns": round(min(added), 1),
            "most_added_ns": round(max(added), 1),
            "added_mean_ns": round(median([row[3] - row[2] for row in rows]), 1),
            "normalised": round(median(ratios), 4),
            "least_normalised": round(min(ratios), 4),
            "most_normalised": round(max(ratios), 4),
        }

    def _write(
        self, size: int, files: int, environment: Mapping[str, str], before: Sequence[str] = ()
    ) -> list[float]:
        """What `writing` prints, each a median over its repetitions."""
        folder = Path(tempfile.mkdtemp(dir=self._memory))
        command = [*before, str(self._disk / "writing"), str(files), str(size), str(INSIDE)]
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        folder.rmdir()
        rows = [[float(word) for word in line.split()] for line in done.stdout.splitlines()]
        return [median(column) for column in zip(*rows, strict=True)]

    def _bare(self) -> dict[str, float]:
        """An empty system call and fstat(2), of a file in memory."""
        with tempfile.TemporaryFile(dir=self._memory) as out:
            subprocess.run([str(self._disk / "bare")], stdout=out, check=True)
            out.seek(0)
            empty, fstat = (float(word) for word in out.read().split())
        return {"empty_call": empty, "fstat": fstat}

    def _storms(self) -> tuple[int, int, list[dict[str, Any]]]:
        """Entries that are wrong and missing after each storm, into a catalog that was there, and whether it said so."""
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
