"""How good the number of loaders is that profiling with 5 % of the bytes chooses, against trying every number.

Three contention curves, one of which falls again. On each, targets are measured as `waystage profile-targets` measures
them, with noise on every measurement; the chosen number reads the data set in simulated time, and so does every other
number. `worst_gap_pct` is how much longer the chosen one takes than the best, at worst over the curves and seeds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from _load_targets import CURVES, MOST, files_on_targets, service

from waystage._native import LoadFiles, choose_loaders, simulate_load
from waystage.bench import BenchError, BenchOptions
from waystage.loader.profile import ROUNDS, SAMPLED_TARGETS, SHARE, explore, pooled
from waystage.native_options.loads import SimulatedLoadOptions
from waystage.stats import median

TARGETS = 24
OBJECTS_A_TARGET = 1_200
OBJECT_BYTES = 1 << 20
SWEPT_OBJECTS = 256
"""Objects of a target that the sweep reads: rates do not depend on how many, as long as all loaders have several."""

NOISE = 0.08
"""Standard deviation of the logarithm of a measured time: repeated reads of a shared target differ by about as much."""

SEEDS = 20
TAKES_S = 60, 10


def run(options: BenchOptions) -> dict[str, Any]:
    seeds = 3 if options.quick else options.repetitions or SEEDS
    rows: list[dict[str, Any]] = []
    for number, name in enumerate(CURVES):
        options.progress(f"{name}: every number of loaders", number / len(CURVES))
        files = files_on_targets(SWEPT_OBJECTS, 1, OBJECT_BYTES, seed=1)
        swept = {x: _seconds(files, name, x) for x in range(1, MOST + 1)}
        best = min(swept, key=lambda x: swept[x])
        for seed in range(seeds):
            chosen, share = _choose(name, np.random.default_rng(seed))
            gap = 100 * (swept[chosen] / swept[best] - 1)
            rows.append(
                {"curve": name, "seed": seed, "chosen": chosen, "best": best, "gap_pct": gap, "share": share}
            )
    if max(row["share"] for row in rows) > SHARE:
        raise BenchError(f"more than {SHARE:.0%} of the bytes were read to choose")
    gaps = [row["gap_pct"] for row in rows]
    return {
        "figures": {"worst_gap_pct": round(max(gaps), 2)},
        "peers": {f"best_{name}": next(r["best"] for r in rows if r["curve"] == name) for name in CURVES},
        "details": {
            "median_gap_pct": round(median(gaps), 2),
            "largest_share": max(row["share"] for row in rows),
            "rows": rows,
        },
    }


def _seconds(files: LoadFiles, name: str, loaders: int) -> float:
    """One target read by `loaders` loaders: all 24 are alike, and independent."""
    outcome = simulate_load(
        files,
        [service(CURVES[name])],
        SimulatedLoadOptions(
            whole_files=False,
            loaders=loaders,
            most_readers=loaders,
            in_order=False,
            steal=False,
            memory_bytes=1 << 40,
            piece_bytes=OBJECT_BYTES * 8,
        ),
    )
    return float(outcome["makespan_s"])


def _choose(name: str, rng: np.random.Generator) -> tuple[int, float]:
    """The number that profiling chooses, and the share of all bytes that it reads."""
    total = TARGETS * OBJECTS_A_TARGET * OBJECT_BYTES
    budget = int(total * SHARE) // SAMPLED_TARGETS
    read = 0
    measured = []
    for target in range(SAMPLED_TARGETS):
        left = budget

        def measure(readers: int, target: int = target) -> float | None:
            nonlocal left, read
            pieces = ROUNDS * readers
            files = files_on_targets(pieces, 1, OBJECT_BYTES, seed=target)
            size = files.bytes_by_target()[0]
            if size > left:
                return None
            left -= size
            read += size
            reading_s = _seconds(files, name, readers) * readers
            return reading_s * float(rng.lognormal(0, NOISE)) / size

        measured.append(explore(measure, MOST))
    paces = pooled(measured)
    chosen, _ = choose_loaders([(x, pace / paces[1]) for x, pace in paces.items()])
    return chosen, read / total
