"""Demand separation on three mixes of jobs, against the better of ECMP and link separation on each.

A ratio is demand separation's mean job time over that of the better other policy on the same sets, alternated in one
run: below 1 it is better than both. `worst_ratio` is the largest over the mixes, `best_ratio` the smallest. A run that
ends early has at least one set of the first mix, and names the mixes that it has none of, as a quick run does, which has one.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from waystage.bench import BenchError, BenchOptions
from waystage.experiment.loading import load
from waystage.experiment.results import RunResult
from waystage.experiment.summary import summarise
from waystage.stats import bootstrap_interval
from waystage.worlds.lab.runner import LabWorld

MIXES = ("mix-communication", "mix-balanced", "mix-staging")
EXPERIMENTS = Path(__file__).parents[1] / "experiments"
OURS = "demand-separation"
OTHERS = ("ecmp", "link-separation")
QUICK_SETS = 1
TAKES_S = 900, 60
LEAST_S = 60, 60


def run(options: BenchOptions) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="waystage-bench-") as scratch:
        folder = options.out or Path(scratch)
        chosen = MIXES[:1] if options.quick else MIXES
        results = {
            name: _measure(name, folder / name, left, options) for name, left in options.limit.shares(chosen)
        }
    options.limit.missing += MIXES[len(chosen) :]
    mixes = {name: compare(result) for name, result in results.items()}
    ratios = [mix["ratio"] for mix in mixes.values()]
    return {
        "figures": {"worst_ratio": max(ratios), "best_ratio": min(ratios)},
        "peers": {
            f"{name}: {policy} job s": mixes[name]["job_s"][policy] for name in mixes for policy in OTHERS
        },
        "details": {
            "mixes": mixes,
            "valid": all(result.valid for result in results.values()),
            "invalid": {name: result.invalid for name, result in results.items()},
        },
    }


def _measure(name: str, folder: Path, left: int, options: BenchOptions) -> RunResult:
    """One mix, for its share of the time where `left` mixes are left, this one included."""
    experiment, _ = load(EXPERIMENTS / f"{name}.yaml")
    sets = options.repetitions or (QUICK_SETS if options.quick else experiment.sets)
    experiment = msgspec.structs.replace(experiment, sets=sets)
    part = options.part(name, 1 - left / len(MIXES), 1 - (left - 1) / len(MIXES))
    world = LabWorld(partial(options.limit.steps, parts=left))
    return world.run(experiment, folder, part.progress)


def compare(result: RunResult) -> dict[str, Any]:
    """One mix: mean job time per policy over the sets that are complete under all, and the ratio with its interval."""
    means = summarise(result).set_means_s
    common = sorted(set.intersection(*(set(means[policy]) for policy in (OURS, *OTHERS))))
    if not common:
        raise BenchError(
            f"{result.name}: no set is complete under every policy: see result.json (--out FOLDER)"
        )
    rows = [[means[policy][number]["job"] for policy in (OURS, *OTHERS)] for number in common]

    def ratio(sample: Any) -> float:
        ours, *others = np.asarray(sample).mean(axis=0)
        return float(ours / min(others))

    interval = bootstrap_interval(rows, ratio)
    job_s = dict(zip((OURS, *OTHERS), np.asarray(rows).mean(axis=0).tolist(), strict=True))
    return {
        "ratio": ratio(rows),
        "interval_95": [interval.low, interval.high],
        "better_other": min(OTHERS, key=lambda policy: job_s[policy]),
        "job_s": job_s,
        "sets": len(common),
        "idle_pct": result.idle_pct,
    }
