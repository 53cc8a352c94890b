"""How near the expected time of `copy --dry-run` comes to what the copy then takes.

Copies from an emulated striped file system (the shape `nurion`, docs/reference/pfs.md, servers slowed by a dilation) to
this machine's disk, of trees with other numbers and sizes of files each. `LEARNT` are copied first; then each of
`ASKED`, whose sizes were not measured, is asked for by a dry run and copied. `median_error_pct` is the median of
|expected / measured - 1|, `worst_error_pct` the largest, `in_range_pct` how often the measured time was within the
range that the dry run gives.

The time of a copy is that of the emulated servers as long as the machine keeps up; where the emulation was late, the
copy is dropped. A run that ends early learns from fewer copies, in half of its time, and asks for fewer: `learnt` says
how many.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from waystage.bench import BenchError, BenchOptions, Stopped, run_program
from waystage.worlds.lab import pfs

Tree = tuple[int, int]
"""Files, bytes of each."""

LEARNT: tuple[Tree, ...] = (
    (40, 3_000_000),
    (900, 4_000),
    (300, 200_000),
    (8, 20_000_000),
    (1500, 20_000),
    (120, 50_000),
)
LEARNT += ((60, 1_000_000), (2500, 1_000), (500, 100_000), (16, 6_000_000))
ASKED: tuple[Tree, ...] = (
    (100, 2_000_000),
    (2000, 8_000),
    (600, 150_000),
    (12, 12_000_000),
    (1200, 60_000),
    (30, 400_000),
)
QUICK = 1
"""Trees of each kind in a quick run."""

DILATION = 12.0
TAKES_S = 500, 20
LEAST_S = 40, 20


def run(options: BenchOptions) -> dict[str, Any]:
    if os.geteuid() != 0:
        raise BenchError("mounting the emulated file system needs root")
    learnt, asked = (LEARNT[:QUICK], ASKED[:QUICK]) if options.quick else (LEARNT * 2, ASKED * 2)
    rows: list[dict[str, Any]] = []
    learnt_from, dropped = 0, 0
    with tempfile.TemporaryDirectory(prefix="waystage-estimate-") as name:
        folder = Path(name)
        (folder / "point").mkdir()
        order = random.Random(1).sample(learnt, len(learnt))
        with options.limit.interruptible():
            for ask, trees in ((False, order), (True, list(asked))):
                for number, tree in enumerate(options.limit.steps(trees, 1 if ask else 2)):
                    done = number + len(learnt) * ask
                    options.progress(
                        f"{tree[0]:,} files of {tree[1]:,} bytes", done / (len(learnt) + len(asked))
                    )
                    found = _copied(folder, tree, ask=ask)
                    if found is None:
                        dropped += 1
                    elif ask:
                        rows.append(found)
                    else:
                        learnt_from += 1
    if not rows and options.limit.interrupted:
        raise Stopped(f"ended by {options.limit.stopped} before a copy was asked for")
    if not rows:
        raise BenchError("the emulation was late in every copy: run on a quieter machine")
    errors = [abs(row["expected_s"] / row["measured_s"] - 1) for row in rows]
    inside = [row["least_s"] <= row["measured_s"] <= row["greatest_s"] for row in rows]
    return {
        "figures": {
            "median_error_pct": round(100 * median(errors), 1),
            "worst_error_pct": round(100 * max(errors), 1),
            "in_range_pct": round(100 * sum(inside) / len(inside), 1),
        },
        "peers": {},
        "details": {"copies": rows, "dropped": dropped, "learnt": learnt_from},
    }


def _copied(folder: Path, tree: Tree, *, ask: bool) -> dict[str, Any] | None:
    """Ask for the time of a copy, where `ask`, and copy; None where the emulation was late."""
    shape = pfs.load("nurion")
    files, size = tree
    shape = msgspec.structs.replace(
        shape,
        tree=pfs.shape.Tree(files=files, size=size, files_per_directory=500),
        client=msgspec.structs.replace(shape.client, pages="direct"),
        dilation=DILATION,
    )
    point = folder / "point"
    environment = os.environ | {"WAYSTAGE_RATES": str(folder / "rates.json"), "WAYSTAGE_FLOWS": "none"}
    words = ["copy", str(point), str(folder / "copy"), "--json"]
    mounted = pfs.mount(point, shape)
    try:
        expected = None
        if ask:
            expected = _waystage([*words, "--dry-run"], environment)["expected"]
        before = pfs.statistics(mounted)
        measured = _waystage(words, environment)
        late = pfs.why_invalid(pfs.statistics(mounted)) if before is not None else None
    finally:
        pfs.unmount(point, force=True)
        shutil.rmtree(folder / "copy", ignore_errors=True)
    if late:
        return None
    return {
        "files": files,
        "size": size,
        "measured_s": round(measured["seconds"], 3),
        "expected_s": round(expected["seconds"], 3) if expected else 0.0,
        "least_s": round(expected["least"], 3) if expected else 0.0,
        "greatest_s": round(expected["greatest"], 3) if expected else 0.0,
    }


def _waystage(words: list[str], environment: dict[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        run_program([sys.executable, "-m", "waystage", *words], env=environment)
    )
    return found
