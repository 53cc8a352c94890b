"""On an emulated Nurion: reading by files against reading by objects from a catalog, with 24 and 192 loaders.

SwiftLoad's two workloads (section V) at a tenth of their files: 10,000 x 1 MB as its deduplication profiler reads
them, and 6,000 x 2.7 KB as its augmentation does, on the shape `nurion`, each strategy on a new mount, so that
nothing is cached. Times are emulated: real ones over the dilation. The strategies are the paper's: FL walks with one
process and then reads complete files; OL also asks for layouts and binds loaders to targets; the third takes all that
from a catalog. The profiler reads after the walk, augmentation during it, as the paper's own times imply (see
docs/reference/pfs.md). Augmentation computes for 12.5 ms an image, the remainder of the paper's times; here that is a
wait.

Peers that make no figure: FL with better walks than the paper's, every loader walking its share, and our loader in
mode `file`. A run whose emulation was late is not valid. It measures the method, and no Lustre.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import _nurion_reading as reading
import msgspec

from waystage.bench import BenchError, BenchOptions, Figures, take_turns
from waystage.catalog import BuildOptions, build
from waystage.machine import SHORT_OF_CPU_IDLE_PCT
from waystage.worlds.lab import pfs
from waystage.worlds.lab.pfs.validity import late_pct

SCALE = 10
"""The paper's files over ours. Walking and reading are both proportional to their number, so ratios stay, but for the
wait of loaders for the last one.
"""

COMPUTE_S = 0.0125
"""Augmenting one image, the remainder of the paper's times: 192 loaders need 5.3 s for 60,000, 17.0 ms each (section
V.C.1); an open and close takes 1.2 ms of them, and a small read with eight loaders on a target 3.3 ms.
"""

REPETITIONS = 3

Way = Callable[[reading.Work], reading.Done]
WAYS: dict[str, Way] = {
    "fl": reading.by_files,
    "fl_walked_together": reading.by_files_walked_together,
    "our_file_mode": reading.by_our_file_mode,
    "ol": reading.by_objects,
    "catalog": reading.by_catalog,
}
QUICK_WAYS = ("fl", "catalog")
"""Those that figures compare."""

TAKES_S = 240, 35


class Case(msgspec.Struct, frozen=True):
    """A workload with a number of loaders; real time is `dilation` times emulated time, so that this machine keeps
    up.
    """

    name: str
    files: int
    size: int
    loaders: int
    dilation: float
    compute_s: float = 0.0
    overlapped: bool = False
    bound_dilation: float | None = None
    """Of ways that bind loaders to targets, where it differs. Loaders that each have a target to themselves read in
    step, so that the answers of all are due at once, and this machine hands out megabytes one after the other.
    """

    def dilation_of(self, way: str) -> float:
        bound = way in ("ol", "catalog")
        return self.bound_dilation if bound and self.bound_dilation is not None else self.dilation


CASES = (
    Case("dedup_24", 100_000, 1_000_000, 24, 4.0, bound_dilation=12.0),
    Case("dedup_192", 100_000, 1_000_000, 192, 6.0),
    # Small files: what this machine itself does for one, 0.4 ms on two slow cores, must be little beside emulated time.
    Case("augment_192", 60_000, 2_700, 192, 12.0, COMPUTE_S, True),
)
QUICK_CASES = ("dedup_192", "augment_192")


def run(options: BenchOptions) -> dict[str, Any]:
    if os.geteuid() != 0:
        raise BenchError("mounting the emulated file system needs root")
    scale = SCALE * 5 if options.quick else SCALE
    ways = QUICK_WAYS if options.quick else tuple(WAYS)
    options.limit.missing += [way for way in WAYS if way not in ways]
    with tempfile.TemporaryDirectory(prefix="waystage-nurion-") as name:
        folder = Path(name)
        (folder / "point").mkdir()
        for case in CASES:
            if options.quick and case.name not in QUICK_CASES:
                continue
            options.progress(f"{case.name}: building the catalog", 0.0)
            _build(case, scale, folder)
        contestants = {
            (case.name, way): partial(_once, case, way, scale, folder) for case in CASES for way in ways
        }
        turns = take_turns(
            options,
            contestants,
            turns=REPETITIONS,
            least_idle_pct=SHORT_OF_CPU_IDLE_PCT,
            invalid=lambda figures: figures["emulation"] or None,
            case=lambda name: name[0],
            quick_cases=QUICK_CASES,
        )

    def times(case: str) -> float:
        return round(turns.ratio((case, "fl"), (case, "catalog"), "total_s"), 2)

    return {
        "figures": options.limit.known(
            {
                f"{workload}_x_fl_{loaders}": partial(times, f"{workload}_{loaders}")
                for workload, loaders in (("dedup", 24), ("dedup", 192), ("augment", 192))
            }
        ),
        "peers": {
            f"{case}_{way}_s": round(turns.median((case, way), "total_s"), 3)
            for case, way in contestants
            if case not in turns.missing
        },
        "details": turns.details()
        | {
            "scale": f"1/{scale} of the paper's files",
            "emulated": "ratios are of emulated times, and measure the method and no Lustre",
        },
    }


def _shape(case: Case, scale: int, dilation: float) -> pfs.shape.Shape:
    shape = pfs.load("nurion")
    tree = pfs.shape.Tree(files=case.files // scale, size=case.size, files_per_directory=500)
    client = msgspec.structs.replace(shape.client, pages="direct")
    return msgspec.structs.replace(shape, tree=tree, client=client, dilation=dilation)


def _build(case: Case, scale: int, folder: Path) -> None:
    """The case's catalog, as fast as it goes: it is not part of a measurement."""
    pfs.mount(folder / "point", _shape(case, scale, 0.001))
    try:
        build(folder / "point", folder / f"{case.name}.catalog", BuildOptions())
    finally:
        pfs.unmount(folder / "point", force=True)


def _once(case: Case, way: str, scale: int, folder: Path, turn: int) -> Figures:
    """One strategy of one case on a new mount: emulated seconds, and what the servers did."""
    dilation = case.dilation_of(way)
    shape = _shape(case, scale, dilation)
    point = folder / "point"
    mounted = pfs.mount(point, shape)
    try:
        work = reading.Work(
            top=point,
            catalog=folder / f"{case.name}.catalog",
            loaders=case.loaders,
            targets=shape.targets.count,
            compute_s=case.compute_s * dilation,
            overlapped=case.overlapped,
        )
        read = WAYS[way](work)
        counted = pfs.statistics(mounted)
    finally:
        pfs.unmount(point, force=True)
    size = case.files // scale * case.size
    if read.bytes != size:
        raise BenchError(f"{case.name}, {way}: read {read.bytes} bytes of {size}")
    busy = [t["busy_s"] for t in counted["targets"]]
    return {
        "total_s": read.total_s / dilation,
        "known_s": read.known_s / dilation,
        "late_pct": round(late_pct(counted), 3),
        "late_p99_s": counted["late_p99_s"],
        "targets_busy_pct": round(100 * sum(busy) / len(busy) / (read.total_s / dilation), 1),
        "most_on_a_target": max(t["most_in_service"] for t in counted["targets"]),
        "messages": sum(
            v for s in counted["metadata"] for k, v in s.items() if k not in ("server", "busy_s", "waited_s")
        ),
        "emulation": pfs.why_invalid(counted) or "",
    }
