"""A day of a cluster in the simulator, as a user runs it: `waystage run FILE --on sim` in a process by itself.

For `sim-scale`: `day_part(jobs)` gives the seconds of the first `jobs` jobs of `_day.yaml`, from the start of the
process to its end, results and report included, its peak memory, and what was simulated. The fat tree (k = 16) and the
file are written before the clock starts. A day in which a job failed, or the policy never acted, is no figure.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from waystage.bench import BenchError, run_program
from waystage.experiment import results
from waystage.interconnect.generate import fat_tree
from waystage.interconnect.graphml import write_topology

FILE = Path(__file__).with_name("_day.yaml")
JOBS, JOBS_QUICK = 10_000, 200
K, STORAGE, BPS = 16, 32, 100_000_000_000
"""1,024 hosts, 32 of them storage."""


def day_part(jobs: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="waystage-bench-") as scratch:
        folder = Path(scratch)
        write_topology(fat_tree(K, storage_hosts=STORAGE, capacity_bps=BPS), folder / "fabric.graphml")
        text = FILE.read_text(encoding="utf-8").replace(f"count: {JOBS}", f"count: {jobs}")
        (folder / "day.yaml").write_text(text, encoding="utf-8")
        command = [sys.executable, "-m", "waystage", "run", folder / "day.yaml", "--on", "sim"]
        began = time.perf_counter()
        run_program([*command, "--out", folder / "out"])
        seconds = time.perf_counter() - began
        # Of the only child, in KiB: getrusage(2).
        peak_gib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
        return {
            "seconds": round(seconds, 3),
            "peak_gib": round(peak_gib, 3),
            **_simulated(folder / "out", jobs),
        }


def _simulated(folder: Path, jobs: int) -> dict[str, Any]:
    result = results.load(folder)
    done = [job for job in result.jobs if job.status == "done"]
    kinds = Counter(
        json.loads(line)["type"] for line in (folder / results.EVENTS_FILE).open(encoding="utf-8")
    )
    if len(done) != jobs or not kinds["FlowAdjusted"]:
        raise BenchError(
            f"{len(done)} of {jobs} jobs ended well, {kinds['FlowAdjusted']} flows were adjusted"
        )
    last_s = max(job.ended_at_s for job in done)
    held_s = sum(job.job_s * len(job.nodes) for job in done)
    return {
        "jobs": jobs,
        "simulated_h": round(last_s / 3600, 2),
        "node_use": round(held_s / last_s / (K**3 // 4 - STORAGE), 3),
        "largest_job": max(len(job.nodes) for job in done),
        "flows": kinds["FlowStarted"],
        "adjusted": kinds["FlowAdjusted"],
    }
