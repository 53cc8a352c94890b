"""Foresee against the best fixed policy on each of four kinds of jobs, simulated and in the lab; the time of its decisions.

The jobs are those of `mixes` (experiments/mix-*.yaml) and four jobs that crowd storage targets
(experiments/storage-shares.yaml). The fixed policies are the candidates of `foresee`, each alone: `ecmp`,
`link-separation`, `demand-separation`, `storage-shares`, and the last two combined. A ratio is foresee's mean job time over
that of the fixed policy that is best on these jobs: no fixed policy is best on all. `worst_x_best_fixed` is the largest of the
four, `mean_x_best_fixed` their mean; `decision_p99_ms`, wall-clock, and `decision_cpu_p99_ms`, the processor's, are of
every event at which foresee decides.

The simulator's times are no measurement, and both sides use its model of flows: foresee forecasts with the same flow clock,
but knows neither programs, arrivals nor the length of computations. `sim-accuracy` says how near the lab is.

As root the mixes also run in the lab (`lab_worst_x_best_fixed`, `lab_mean_x_best_fixed`), against the fixed policies of
paths, which are all that act there: its stagings come from memory. A full run takes about 40 minutes; `--quick`
leaves the lab out. A run that ends early has sets of the mixes that come first,
and names those that it has none of. A run that is interrupted prints what it has; with `--out` the sets that are whole
and valid stay, and the next run with the same folder goes on after them.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Any

import _timed_foresee
import msgspec
import numpy as np

from waystage.bench import BenchError, BenchOptions
from waystage.experiment.loading import load
from waystage.experiment.results import ResultError, RunResult
from waystage.experiment.results import load as load_result
from waystage.experiment.schema import Experiment, PolicyChoice
from waystage.worlds.lab.runner import LabWorld
from waystage.worlds.sim.runner import SimWorld

CASES = ("mix-communication", "mix-balanced", "mix-staging", "storage-shares")
EXPERIMENTS = Path(__file__).parents[1] / "experiments"
QUICK_SETS = 1
SIM_SHARE = 0.05
"""Of a run as root, for its progress."""

COMBINED = ["demand-separation", "storage-shares"]
SINGLE = ("ecmp", "link-separation", "demand-separation", "storage-shares")
FIXED = (
    *(PolicyChoice(name=name) for name in SINGLE),
    PolicyChoice(name="combined", label="demand-and-shares", options={"policies": COMBINED}),
)
OURS = PolicyChoice(name="_timed_foresee:Timed", label="foresee", options={"candidates": [*SINGLE, COMBINED]})

LAB, LAB_LEAST_S = "the lab", 70.0
"""Time of a set of the first mix there, with the lab's start."""

LAB_CASES = CASES[:3]
LAB_FIXED = tuple(PolicyChoice(name=name) for name in SINGLE[:3])
LAB_OURS = PolicyChoice(name="foresee", options={"candidates": list(SINGLE[:3])})
TAKES_S = 900, 10
LEAST_S = 20, 10


def run(options: BenchOptions) -> dict[str, Any]:
    _timed_foresee.clear()
    with tempfile.TemporaryDirectory(prefix="waystage-bench-") as scratch:
        folder = options.out or Path(scratch)
        cases: dict[str, list[RunResult]] = {}
        lab: dict[str, list[RunResult]] = {}
        in_lab = os.geteuid() == 0 and not options.quick
        least_s = dict.fromkeys(CASES, 0.0) | ({LAB: LAB_LEAST_S} if in_lab else {})
        if options.quick:
            options.limit.missing.append(LAB)
        for part, left in options.limit.shares(least_s, least_s=least_s.__getitem__):
            if part == LAB:
                lab = _in_the_lab(options, folder)
            else:
                cases[part] = _simulated(part, folder, options, left)
    ratios, lab_ratios = _ratios(cases), _ratios(lab)
    wall, cpu = (np.array(seconds) * 1e3 for seconds in (_timed_foresee.WALL_S, _timed_foresee.CPU_S))
    return {
        "figures": {
            "worst_x_best_fixed": round(max(ratios.values()), 3),
            "mean_x_best_fixed": round(sum(ratios.values()) / len(ratios), 3),
            "decision_p99_ms": round(float(np.percentile(wall, 99)), 1),
            "decision_cpu_p99_ms": round(float(np.percentile(cpu, 99)), 1),
        }
        | (
            {
                "lab_worst_x_best_fixed": round(max(lab_ratios.values()), 3),
                "lab_mean_x_best_fixed": round(sum(lab_ratios.values()) / len(lab_ratios), 3),
                "lab_sets": sum(len(_complete(results)) for results in lab.values()),
            }
            if lab_ratios
            else {}
        ),
        "peers": {
            f"{name}: {policy} job s": round(seconds, 2)
            for name, results in cases.items()
            for policy, seconds in _fixed(_times(name, results)).items()
        },
        "details": {
            "job_s": {name: _times(name, results) for name, results in cases.items()},
            "x_best_fixed": ratios,
            "lab_job_s": {name: _times(name, results) for name, results in lab.items() if _complete(results)},
            "lab_x_best_fixed": lab_ratios,
            "lab_sets": {name: len(_complete(results)) for name, results in lab.items()},
            "invalid": [
                f"{name}: {why}"
                for name, results in lab.items()
                for found in results
                for why in found.invalid
            ],
            "decisions": len(wall),
            "decision_most_ms": float(wall.max()),
            "simulated": "job times are simulated; the time of decisions is measured",
        },
    }


def _simulated(name: str, folder: Path, options: BenchOptions, left: int) -> list[RunResult]:
    """Each set a separate run, as in the lab, for its share of the time where `left` parts of the run are left."""
    at = CASES.index(name)
    experiment = _experiment(name, (*FIXED, OURS))
    sets = options.repetitions or (QUICK_SETS if options.quick else experiment.sets)
    part = options.part(name, SIM_SHARE * at / len(CASES), SIM_SHARE * (at + 1) / len(CASES))
    return [
        SimWorld().run(
            msgspec.structs.replace(experiment, sets=1, first_set=number),
            folder / f"{name}-{number + 1}",
            part.progress,
        )
        for number in options.limit.steps(range(sets), left)
    ]


def _in_the_lab(options: BenchOptions, folder: Path) -> dict[str, list[RunResult]]:
    """Sets in turn of every kind, each a separate run; what `folder` holds already is read. Those so far where
    interrupted."""
    experiments = {name: _experiment(name, (*LAB_FIXED, LAB_OURS)) for name in LAB_CASES}
    sets = options.repetitions or max(experiment.sets for experiment in experiments.values())
    runs = sets * len(LAB_CASES)
    found: dict[str, list[RunResult]] = {name: [] for name in LAB_CASES}
    with options.limit.interruptible():
        turns = [(number, name) for number in range(sets) for name in LAB_CASES]
        for at, (number, name) in enumerate(options.limit.steps(turns, parts=1)):
            experiment = msgspec.structs.replace(experiments[name], sets=1, first_set=number)
            out = folder / f"lab-{name}-{number + 1}"
            begin, end = (SIM_SHARE + (1 - SIM_SHARE) * (at + more) / runs for more in (0, 1))
            part = options.part(f"{name} in the lab", begin, end)
            found[name].append(_kept(out, experiment) or LabWorld().run(experiment, out, part.progress))
    options.limit.missing += [f"{name} in the lab" for name in LAB_CASES if not found[name]]
    return found


def _kept(folder: Path, experiment: Experiment) -> RunResult | None:
    """What an earlier run left of the same set, where it is whole and valid."""
    with contextlib.suppress(ResultError):
        result = load_result(folder)
        if result.experiment == experiment and _complete([result]) and result.valid:
            return result
    return None


def _complete(results: list[RunResult]) -> list[RunResult]:
    """Those in which every job was run."""
    wanted = [(r, r.experiment.sets * len(r.experiment.policies) * r.experiment.jobs.count) for r in results]
    return [result for result, jobs in wanted if len(result.jobs) == jobs]


def _experiment(name: str, policies: tuple[PolicyChoice, ...]) -> Experiment:
    experiment, _ = load(EXPERIMENTS / f"{name}.yaml")
    return msgspec.structs.replace(experiment, policies=policies)


def _ratios(cases: dict[str, list[RunResult]]) -> dict[str, float]:
    return {
        name: times["foresee"] / min(_fixed(times).values())
        for name, results in cases.items()
        if (times := _times(name, results))
    }


def _times(name: str, results: list[RunResult]) -> dict[str, float]:
    """Mean job time of each policy over the complete sets."""
    times: dict[str, list[float]] = {}
    for job in (job for result in _complete(results) for job in result.jobs):
        if job.status != "done":
            raise BenchError(f"{name}: job {job.job_id} under {job.policy} failed: {job.cause}")
        times.setdefault(job.policy, []).append(job.job_s)
    return {policy: sum(seconds) / len(seconds) for policy, seconds in times.items()}


def _fixed(times: dict[str, float]) -> dict[str, float]:
    return {policy: seconds for policy, seconds in times.items() if policy != OURS.shown}
