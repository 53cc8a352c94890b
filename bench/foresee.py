"""Foresee against the best fixed policy on each of four kinds of jobs, simulated and in the lab; the time of its decisions.

The jobs are those of `mixes` (experiments/mix-*.yaml) and four jobs that crowd storage targets
(experiments/storage-shares.yaml). The fixed policies are the candidates of `foresee`, each alone: `ecmp`,
`link-separation`, `demand-separation`, `storage-shares`, and the last two combined. A ratio is foresee's mean job time over
that of the fixed policy that is best on these jobs: no fixed policy is best on all. `worst_x_best_fixed` is the largest of the
four, `mean_x_best_fixed` their mean; `decision_p99_ms`, wall-clock, is of every event at which foresee decides.

The simulator's times are no measurement, and both sides use its model of flows: foresee forecasts with the same flow clock,
but knows neither programs, arrivals nor the length of computations. `sim-accuracy` says how near the lab is.

As root the mixes also run in the lab (`lab_worst_x_best_fixed`, `lab_mean_x_best_fixed`), against the fixed policies of
paths, which are all that act there: its stagings come from memory. A full run takes about 40 minutes, `--quick` runs one
set of `mix-staging` against `demand-separation` there.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import _timed_foresee
import msgspec
import numpy as np

from waystage.bench import BenchError, BenchOptions
from waystage.experiment.loading import load
from waystage.experiment.schema import PolicyChoice
from waystage.worlds.base import World
from waystage.worlds.lab.runner import LabWorld
from waystage.worlds.sim.runner import SimWorld

CASES = ("mix-communication", "mix-balanced", "mix-staging", "storage-shares")
EXPERIMENTS = Path(__file__).parents[1] / "experiments"
QUICK_SETS = 1

COMBINED = ["demand-separation", "storage-shares"]
SINGLE = ("ecmp", "link-separation", "demand-separation", "storage-shares")
FIXED = (
    *(PolicyChoice(name=name) for name in SINGLE),
    PolicyChoice(name="combined", label="demand-and-shares", options={"policies": COMBINED}),
)
OURS = PolicyChoice(name="_timed_foresee:Timed", label="foresee", options={"candidates": [*SINGLE, COMBINED]})

LAB_CASES, LAB_QUICK = CASES[:3], ("mix-staging",)
LAB_FIXED = tuple(PolicyChoice(name=name) for name in SINGLE[:3])
LAB_OURS = PolicyChoice(name="foresee", options={"candidates": list(SINGLE[:3])})


def run(options: BenchOptions) -> dict[str, Any]:
    _timed_foresee.SECONDS.clear()
    with tempfile.TemporaryDirectory(prefix="waystage-bench-") as scratch:
        folder = options.out or Path(scratch)
        cases = {
            name: _times(SimWorld(), name, folder / name, options, (*FIXED, OURS), at)
            for at, name in enumerate(CASES)
        }
        lab = _in_the_lab(options, folder) if os.geteuid() == 0 else {}
    ratios, lab_ratios = _ratios(cases), _ratios(lab)
    decisions = np.array(_timed_foresee.SECONDS) * 1e3
    return {
        "figures": {
            "worst_x_best_fixed": round(max(ratios.values()), 3),
            "mean_x_best_fixed": round(sum(ratios.values()) / len(ratios), 3),
            "decision_p99_ms": round(float(np.percentile(decisions, 99)), 1),
        }
        | (
            {
                "lab_worst_x_best_fixed": round(max(lab_ratios.values()), 3),
                "lab_mean_x_best_fixed": round(sum(lab_ratios.values()) / len(lab_ratios), 3),
            }
            if lab
            else {}
        ),
        "peers": {
            f"{name}: {policy} job s": round(seconds, 2)
            for name, times in cases.items()
            for policy, seconds in _fixed(times).items()
        },
        "details": {
            "job_s": cases,
            "x_best_fixed": ratios,
            "lab_job_s": lab,
            "lab_x_best_fixed": lab_ratios,
            "best_fixed": {
                name: min(_fixed(times), key=_fixed(times).__getitem__) for name, times in cases.items()
            },
            "decisions": len(decisions),
            "decision_most_ms": float(decisions.max()),
            "simulated": "job times are simulated; the time of decisions is measured",
        },
    }


def _in_the_lab(options: BenchOptions, folder: Path) -> dict[str, dict[str, float]]:
    names = LAB_QUICK if options.quick else LAB_CASES
    policies = (*(LAB_FIXED[-1:] if options.quick else LAB_FIXED), LAB_OURS)
    return {
        name: _times(LabWorld(), name, folder / f"lab-{name}", options, policies, at)
        for at, name in enumerate(names)
    }


def _ratios(cases: dict[str, dict[str, float]]) -> dict[str, float]:
    return {name: times["foresee"] / min(_fixed(times).values()) for name, times in cases.items()}


def _times(
    world: World,
    name: str,
    folder: Path,
    options: BenchOptions,
    policies: tuple[PolicyChoice, ...],
    at: int,
) -> dict[str, float]:
    """Mean job time of each policy over all sets."""
    experiment, _ = load(EXPERIMENTS / f"{name}.yaml")
    sets = options.repetitions or (QUICK_SETS if options.quick else experiment.sets)
    experiment = msgspec.structs.replace(experiment, policies=policies, sets=sets)
    part = options.part(name, at / len(CASES), (at + 1) / len(CASES))
    result = world.run(experiment, folder, part.progress)
    times: dict[str, list[float]] = {}
    for job in result.jobs:
        if job.status != "done":
            raise BenchError(f"{name}: job {job.job_id} under {job.policy} failed: {job.cause}")
        times.setdefault(job.policy, []).append(job.job_s)
    return {policy: sum(seconds) / len(seconds) for policy, seconds in times.items()}


def _fixed(times: dict[str, float]) -> dict[str, float]:
    return {policy: seconds for policy, seconds in times.items() if policy != OURS.shown}
