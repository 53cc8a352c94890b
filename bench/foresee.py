"""Foresee against the best fixed policy on each of four kinds of jobs, in the simulator, and the time of its decisions.

The jobs are those of `mixes` (experiments/mix-*.yaml) and four jobs that crowd storage targets
(experiments/storage-shares.yaml). The fixed policies are the candidates of `foresee`, each alone: `ecmp`,
`link-separation`, `demand-separation`, `storage-shares`, and the last two combined. A ratio is foresee's mean job time over
that of the fixed policy that is best on these jobs: no fixed policy is best on all. `worst_x_best_fixed` is the largest of the
four, `mean_x_best_fixed` their mean; `decision_p99_ms`, wall-clock, is of every event at which foresee decides.

The simulator's times are no measurement, and both sides use its model of flows: foresee forecasts with the same flow clock,
but knows neither programs, arrivals nor the length of computations. `sim-accuracy` says how near the lab is.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import _timed_foresee
import msgspec
import numpy as np

from waystage.bench import BenchError, BenchOptions
from waystage.experiment.loading import load
from waystage.experiment.schema import PolicyChoice
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


def run(options: BenchOptions) -> dict[str, Any]:
    _timed_foresee.SECONDS.clear()
    with tempfile.TemporaryDirectory(prefix="waystage-bench-") as scratch:
        folder = options.out or Path(scratch)
        cases = {name: _simulate(name, folder / name, at, options) for at, name in enumerate(CASES)}
    ratios = {name: times["foresee"] / min(_fixed(times).values()) for name, times in cases.items()}
    decisions = np.array(_timed_foresee.SECONDS) * 1e3
    return {
        "figures": {
            "worst_x_best_fixed": round(max(ratios.values()), 3),
            "mean_x_best_fixed": round(sum(ratios.values()) / len(ratios), 3),
            "decision_p99_ms": round(float(np.percentile(decisions, 99)), 1),
        },
        "peers": {
            f"{name}: {policy} job s": round(seconds, 2)
            for name, times in cases.items()
            for policy, seconds in _fixed(times).items()
        },
        "details": {
            "job_s": cases,
            "x_best_fixed": ratios,
            "best_fixed": {
                name: min(_fixed(times), key=_fixed(times).__getitem__) for name, times in cases.items()
            },
            "decisions": len(decisions),
            "decision_most_ms": float(decisions.max()),
            "simulated": "job times are simulated; the time of decisions is measured",
        },
    }


def _simulate(name: str, folder: Path, at: int, options: BenchOptions) -> dict[str, float]:
    """Mean job time of each policy over all sets."""
    experiment, _ = load(EXPERIMENTS / f"{name}.yaml")
    sets = options.repetitions or (QUICK_SETS if options.quick else experiment.sets)
    experiment = msgspec.structs.replace(experiment, policies=(*FIXED, OURS), sets=sets)
    part = options.part(name, at / len(CASES), (at + 1) / len(CASES))
    result = SimWorld().run(experiment, folder, part.progress)
    times: dict[str, list[float]] = {}
    for job in result.jobs:
        if job.status != "done":
            raise BenchError(f"{name}: job {job.job_id} under {job.policy} failed: {job.cause}")
        times.setdefault(job.policy, []).append(job.job_s)
    return {policy: sum(seconds) / len(seconds) for policy, seconds in times.items()}


def _fixed(times: dict[str, float]) -> dict[str, float]:
    return {policy: seconds for policy, seconds in times.items() if policy != OURS.shown}
