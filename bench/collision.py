"""Staging beside MPI on the paper's cluster: link separation against ECMP, job set by job set.

The figures are those of Endo et al. 2020 section V.B: by how much the mean staging, computation and job times of a set
are shorter, and in which share of the sets the mean job time is. Peers: the same sets under ECMP, alternated
with ours in one run, and the reductions that the paper published.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import msgspec

from waystage.bench import BenchError, BenchOptions, Stopped
from waystage.experiment.loading import load
from waystage.experiment.results import RunResult
from waystage.experiment.results import load as load_result
from waystage.experiment.schema import Experiment, PolicyChoice
from waystage.experiment.summary import PAPER_IMPROVED_SHARE, PAPER_REDUCTION_PCT, summarise
from waystage.worlds.lab.runner import LabWorld

EXPERIMENT = Path(__file__).parents[1] / "experiments" / "staging-collision.yaml"
SETS = 20
QUICK_SETS = 1
TAKES_S = 700, 50
LEAST_S = 50, 50


def run(options: BenchOptions) -> dict[str, Any]:
    experiment, _ = load(EXPERIMENT)
    sets = options.repetitions or (QUICK_SETS if options.quick else SETS)
    experiment = msgspec.structs.replace(
        experiment, sets=sets, policies=(PolicyChoice(name="ecmp"), PolicyChoice(name="link-separation"))
    )
    result = measure(experiment, options)
    if options.limit.interrupted and not summarise(result).comparisons:
        raise Stopped("ended by Ctrl-C before a set was complete under both policies")
    return figures(result)


def measure(experiment: Experiment, options: BenchOptions) -> RunResult:
    """Run on the lab, sets while the time limit allows; the run's files stay where the caller named a folder."""
    with tempfile.TemporaryDirectory(prefix="waystage-bench-") as scratch:
        folder = (options.out or Path(scratch)) / experiment.name
        with options.limit.interruptible():
            return LabWorld(options.limit.steps).run(experiment, folder, options.progress)
        # The run saves what it has however it ends.
        return load_result(folder)


def figures(result: RunResult) -> dict[str, Any]:
    """The answer of the benchmark from the records of a run."""
    summary = summarise(result)
    if not summary.comparisons:
        raise BenchError(
            "no set is complete under both policies: see the causes in result.json (--out FOLDER)"
        )
    comparison = summary.comparisons[0]
    return {
        "figures": {
            **{
                f"{name}_reduction_pct": estimate.value for name, estimate in comparison.reduction_pct.items()
            },
            "improved_share": comparison.improved_share.value,
        },
        "peers": {
            **{f"paper_{name}_reduction_pct": value for name, value in PAPER_REDUCTION_PCT.items()},
            "paper_improved_share": PAPER_IMPROVED_SHARE,
            **{f"ecmp_{name}_s": estimate.value for name, estimate in summary.times_s["ecmp"].items()},
        },
        "details": {
            "sets": comparison.sets,
            "intervals_95": {
                **{f"{n}_reduction_pct": [e.low, e.high] for n, e in comparison.reduction_pct.items()},
                "improved_share": [comparison.improved_share.low, comparison.improved_share.high],
            },
            "times_s": msgspec.to_builtins(summary.times_s),
            "switching": msgspec.to_builtins(summary.switching),
            "failed_jobs": summary.failed,
            "idle_pct": result.idle_pct,
            "valid": result.valid,
            "invalid": result.invalid,
        },
    }
