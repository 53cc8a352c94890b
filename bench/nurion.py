"""On an emulated Nurion: reading by files against reading by objects from a catalog, with 24 and 192 loaders.

SwiftLoad's two workloads (section V) at a tenth of their files: 10,000 x 1 MB as its deduplication profiler reads them,
and 6,000 x 2.7 KB as its augmentation does, on the shape `nurion`, each way on a mount of its own, so that nothing is
cached. Times are emulated: real ones over the dilation. The ways are the paper's: FL walks with one process and then
reads whole files; OL asks for layouts besides and binds loaders to targets; the third takes all that from a catalog. The
profiler reads when the walk is over, augmentation while it goes on; so the paper's own times say (see docs/reference/pfs.md).
Augmentation computes for 12.5 ms an image, which is what the paper's times leave; here that is a wait.

FL is also run with better walks than the paper's, every loader walking its share, and as our loader's mode `file`: peers, and no
figure.
A run whose emulation was late is not valid, and says so. It measures the method, and no Lustre.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _nurion_reading as reading
import msgspec

from waystage.bench import BenchError, BenchOptions
from waystage.catalog import BuildOptions, build
from waystage.machine import SHORT_OF_CPU_IDLE_PCT, CpuWatch
from waystage.stats import median
from waystage.worlds.lab import pfs
from waystage.worlds.lab.pfs.verdict import late_pct

SCALE = 10
"""The paper's files over ours. Walking and reading both go with their number, so ratios stay but for what loaders wait at the
end for the last one."""

COMPUTE_S = 0.0125
"""Augmenting one image, as the paper's times leave it: 192 loaders need 5.3 s for 60,000, 17.0 ms each (section V.C.1); an open
and close takes 1.2 ms of them, and a small read with eight loaders on a target 3.3 ms."""

REPETITIONS = 3

Way = Callable[[reading.Work], reading.Done]
WAYS: dict[str, Way] = {
    "fl": reading.by_files,
    "fl_walked_together": reading.by_files_walked_together,
    "our_file_mode": reading.by_our_file_mode,
    "ol": reading.by_objects,
    "catalog": reading.by_catalog,
}


class Case(msgspec.Struct, frozen=True):
    """A workload with a number of loaders; real time is `dilation` times emulated time, so that this machine keeps up."""

    name: str
    files: int
    size: int
    loaders: int
    dilation: float
    compute_s: float = 0.0
    overlapped: bool = False
    bound_dilation: float | None = None
    """Of ways that bind loaders to targets, where it differs. Loaders that each have a target to themselves read in step, so that
    the answers of all are due at once, and this machine hands out megabytes one after the other."""

    def dilation_of(self, way: str) -> float:
        bound = way in ("ol", "catalog")
        return self.bound_dilation if bound and self.bound_dilation is not None else self.dilation


CASES = (
    Case("dedup_24", 100_000, 1_000_000, 24, 4.0, bound_dilation=12.0),
    Case("dedup_192", 100_000, 1_000_000, 192, 6.0),
    # Small files: what this machine itself does for one, 0.4 ms on two slow cores, must be little beside emulated time.
    Case("augment_192", 60_000, 2_700, 192, 12.0, COMPUTE_S, True),
)


def run(options: BenchOptions) -> dict[str, Any]:
    if os.geteuid() != 0:
        raise BenchError("mounting the emulated file system needs root")
    scale = SCALE * 5 if options.quick else SCALE
    turns = options.repetitions or (1 if options.quick else REPETITIONS)
    times: dict[str, dict[str, list[dict[str, Any]]]] = {c.name: {w: [] for w in WAYS} for c in CASES}
    total = turns * sum(len(WAYS) for c in CASES)
    done = 0
    with tempfile.TemporaryDirectory(prefix="waystage-nurion-") as folder:
        for turn in range(turns):
            for case in CASES:
                # Whoever is first in one turn is last in the next.
                for way in WAYS if turn % 2 == 0 else reversed(WAYS):
                    options.progress(f"{case.name}: {way}", done / total)
                    times[case.name][way].append(_once(case, way, scale, Path(folder)))
                    done += 1
    makespan = {
        case: {way: median([t["total_s"] for t in runs]) for way, runs in ways.items()}
        for case, ways in times.items()
    }
    problems = sorted(
        {t["invalid"] for ways in times.values() for runs in ways.values() for t in runs} - {""}
    )
    return {
        "figures": {
            f"{case}_x_fl_{loaders}": round(
                makespan[f"{case}_{loaders}"]["fl"] / makespan[f"{case}_{loaders}"]["catalog"], 2
            )
            for case, loaders in (("dedup", 24), ("dedup", 192), ("augment", 192))
        },
        "peers": {
            f"{case}_{way}_s": round(seconds, 3)
            for case, ways in makespan.items()
            for way, seconds in ways.items()
        },
        "details": {
            "valid": not problems,
            "problems": problems,
            "scale": f"1/{scale} of the paper's files",
            "emulated": "ratios are of emulated times, and measure the method and no Lustre",
            "runs": times,
        },
    }


def _once(case: Case, way: str, scale: int, folder: Path) -> dict[str, Any]:
    """One way of one case on a mount of its own: emulated seconds, and what the servers did."""
    shape = pfs.load("nurion")
    dilation = case.dilation_of(way)
    tree = pfs.shape.Tree(files=case.files // scale, size=case.size, files_per_directory=500)
    client = msgspec.structs.replace(shape.client, pages="direct")
    shape = msgspec.structs.replace(shape, tree=tree, client=client, dilation=dilation)
    point, catalog = folder / "point", folder / f"{case.name}.catalog"
    point.mkdir(exist_ok=True)
    if way == "catalog" and not catalog.exists():
        # As fast as it goes: who reads by the catalog did not make it.
        pfs.mount(point, msgspec.structs.replace(shape, dilation=0.001))
        try:
            build(point, catalog, BuildOptions())
        finally:
            pfs.unmount(point, force=True)
    mounted = pfs.mount(point, shape)
    try:
        work = reading.Work(
            top=point,
            catalog=catalog,
            loaders=case.loaders,
            targets=shape.targets.count,
            compute_s=case.compute_s * dilation,
            overlapped=case.overlapped,
        )
        with CpuWatch() as watch:
            read = WAYS[way](work)
        counted = pfs.statistics(mounted)
    finally:
        pfs.unmount(point, force=True)
    if read.bytes != tree.files * case.size:
        raise BenchError(f"{case.name}, {way}: read {read.bytes} bytes of {tree.files * case.size}")
    invalid = pfs.why_invalid(counted) or ""
    if not invalid and watch.idle_pct < SHORT_OF_CPU_IDLE_PCT:
        invalid = "the machine was short of CPU: leave it alone, or give the cases a larger dilation"
    busy = [t["busy_s"] for t in counted["targets"]]
    return {
        "total_s": read.total_s / dilation,
        "known_s": read.known_s / dilation,
        "late_pct": round(late_pct(counted), 3),
        "late_p99_s": counted["late_p99_s"],
        "idle_pct": round(watch.idle_pct, 1),
        "targets_busy_pct": round(100 * sum(busy) / len(busy) / (read.total_s / dilation), 1),
        "most_on_a_target": max(t["most_in_service"] for t in counted["targets"]),
        "messages": sum(
            v for s in counted["metadata"] for k, v in s.items() if k not in ("server", "busy_s", "waited_s")
        ),
        "invalid": invalid,
    }
