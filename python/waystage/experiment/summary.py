"""What a run says: times per policy, reductions against the baseline, switching times.

Arrives: a `RunResult`.
Leaves: numbers with 95 % intervals over sets, and the table that the terminal, the report and benchmarks show.
Must not know: how they are drawn or printed.

Policies are compared set by set: a set has the same jobs, arrival times and hash seed under every
policy, so that each difference is paired. A set in which a job failed under either policy is left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from waystage.experiment.io_summary import io_rows
from waystage.experiment.results import JobRecord, Point, RunResult, SwitchOver
from waystage.stats import Spread, reduction_pct, reduction_spread, spread

BASELINE = "ecmp"
"""What others are compared with where it is among the policies; the first policy otherwise."""

QUANTITIES: dict[str, Callable[[JobRecord], float]] = {
    "job": lambda job: job.job_s,
    "computation": lambda job: job.compute_s,
    "staging": lambda job: job.staging_s,
}
"""The three times of the paper's Fig. 11."""

PAPER_REDUCTION_PCT = {"job": 8.7, "computation": 5.6, "staging": 22.0}
PAPER_IMPROVED_SHARE = 45 / 50
PAPER_SWITCH_MS = {"on": 2200.0, "off": 310.0}
PAPER_SWITCH_PARTS_MS = {"processor": 8.5, "planner": 170.0, "install": 2010.0}
"""Seed 000, section V.B: link separation against ECMP, and the switching times of Fig. 14 (OFF to ON)."""


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A number and its spread over `count` sets, which are the independent samples: jobs of one set share links.

    `low` and `high` are a 95 % interval, or with `is_range` the range, of fewer than five sets; None for one.
    """

    value: float
    low: float | None = None
    high: float | None = None
    count: int = 0
    is_range: bool = False


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """A policy against the baseline over the sets both ran whole."""

    policy: str
    baseline: str
    sets: int
    reduction_pct: dict[str, Estimate]
    improved_share: Estimate


class Switching(msgspec.Struct, frozen=True, kw_only=True):
    """Mean times of the switch-overs of one policy in one direction, in milliseconds."""

    policy: str
    to: str
    count: int
    total_ms: Estimate
    processor_ms: float
    planner_ms: float
    install_ms: float
    messages: float


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    times_s: dict[str, dict[str, Estimate]]
    set_means_s: dict[str, dict[int, dict[str, float]]]
    comparisons: list[Comparison]
    switching: list[Switching]
    done: dict[str, int]
    failed: dict[str, int]


def summarise(result: RunResult) -> Summary:
    """Everything below from the records alone; a pure function."""
    done = [job for job in result.jobs if job.status == "done"]
    times = {
        policy: {
            name: _by_set([(job.set, of(job)) for job in done if job.policy == policy])
            for name, of in QUANTITIES.items()
        }
        for policy in result.policies
        if any(job.policy == policy for job in done)
    }
    means = {policy: _set_means(result, policy) for policy in result.policies}
    baseline = BASELINE if BASELINE in result.policies else result.policies[0]
    comparisons = [
        comparison
        for policy in result.policies
        if policy != baseline and (comparison := _compare(means, policy, baseline)) is not None
    ]
    switching = [
        s for p in result.policies for to in ("on", "off") if (s := _switching(result, p, to)) is not None
    ]
    return Summary(
        times_s=times,
        set_means_s=means,
        comparisons=comparisons,
        switching=switching,
        done=_count(result, "done"),
        failed=_count(result, "failed"),
    )


def table_rows(result: RunResult, summary: Summary) -> list[dict[str, Any]]:
    """The comparison as rows of (quantity, policy, ours, interval, paper): the paper's numbers beside ours."""
    rows: list[dict[str, Any]] = []
    for policy, times in summary.times_s.items():
        for name, estimate in times.items():
            rows.append(_row(f"{name} time, s", policy, estimate, "", 2))
    for comparison in summary.comparisons:
        # The paper compares link separation with ECMP; beside any other pair its numbers would mislead.
        same = comparison.baseline == BASELINE and _is(result, comparison.policy, "link-separation")
        for name, estimate in comparison.reduction_pct.items():
            paper = f"-{PAPER_REDUCTION_PCT[name]} %" if same else ""
            rows.append(
                _row(
                    f"{name} time against {comparison.baseline}",
                    comparison.policy,
                    estimate,
                    paper,
                    1,
                    "%",
                    -1,
                )
            )
        share = comparison.improved_share
        paper = "45 of 50" if same else ""
        better = f"{round(share.value * comparison.sets)} of {comparison.sets}"
        rows.append(
            {
                "quantity": "job sets improved",
                "policy": comparison.policy,
                "ours": better,
                "spread": "",
                "paper": paper,
            }
        )
    for switching in summary.switching:
        name = "paths OFF->ON, ms" if switching.to == "on" else "paths ON->OFF, ms"
        paper = (
            f"{PAPER_SWITCH_MS[switching.to]:.0f}" if _is(result, switching.policy, "link-separation") else ""
        )
        rows.append(_row(name, switching.policy, switching.total_ms, paper, 1))
    return rows + io_rows(result)


TABLE_COLUMNS = ("quantity", "policy", "ours", "spread", "paper")


def _is(result: RunResult, label: str, name: str) -> bool:
    return any(choice.shown == label and choice.name == name for choice in result.experiment.policies)


def _row(
    quantity: str, policy: str, estimate: Estimate, paper: str, digits: int, unit: str = "", sign: int = 1
) -> dict[str, Any]:
    unit = f" {unit}" if unit else ""
    plus = "+" if sign < 0 else ""
    interval = ""
    if estimate.low is not None and estimate.high is not None:
        low, high = sorted((sign * estimate.low, sign * estimate.high))
        kind = "range" if estimate.is_range else "95 %"
        of = f"{estimate.count} sets"
        interval = f"{kind}: {low:{plus}.{digits}f} .. {high:{plus}.{digits}f} ({of})"
    ours = f"{sign * estimate.value:{plus}.{digits}f}{unit}"
    return {"quantity": quantity, "policy": policy, "ours": ours, "spread": interval, "paper": paper}


def contention_rows(points: Sequence[Point]) -> list[dict[str, str]]:
    """The table of a contention study: a row for each ratio."""
    return [
        {
            "ratio": f"{p.ratio}:1",
            "imbalance": f"{p.imbalance:.3f}",
            "stragglers": f"{p.straggler_ratio:.3f}",
            "file level": f"{p.file_level:,.0f}",
            "ideal object level": f"{p.ideal_object_level:,.0f}",
            "object level": f"{p.object_level:,.0f}",
            "loaders chosen": f"{p.chosen:,.0f}",
        }
        for p in points
    ]


def _mean(rows: Any) -> float:
    return float(np.mean(rows))


def _by_set(values: Sequence[tuple[int, float]]) -> Estimate:
    """The mean of all values, each with its set, and its spread over the sets; NaN where there is no value."""
    if not values:
        return Estimate(value=float("nan"))
    sums: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for number, value in values:
        sums[number][0] += value
        sums[number][1] += 1.0
    rows = [sums[number] for number in sorted(sums)]
    return _estimate(_mean([value for _, value in values]), spread(rows, _ratio), len(rows))


def _ratio(rows: Any) -> float:
    total, count = np.asarray(rows).sum(axis=0)
    return float(total / count)


def _estimate(value: float, found: Spread | None, count: int) -> Estimate:
    if found is None:
        return Estimate(value=value, count=count)
    return Estimate(value=value, low=found.low, high=found.high, count=count, is_range=found.is_range)


def _set_means(result: RunResult, policy: str) -> dict[int, dict[str, float]]:
    """set -> mean of each quantity, for sets of which every job is done."""
    by_set: dict[int, list[JobRecord]] = defaultdict(list)
    for job in result.jobs:
        if job.policy == policy:
            by_set[job.set].append(job)
    count = result.experiment.jobs.count
    return {
        number: {name: _mean([of(job) for job in jobs]) for name, of in QUANTITIES.items()}
        for number, jobs in sorted(by_set.items())
        if len(jobs) == count and all(job.status == "done" for job in jobs)
    }


def _compare(means: dict[str, dict[int, dict[str, float]]], policy: str, baseline: str) -> Comparison | None:
    common = sorted(set(means[policy]) & set(means[baseline]))
    if not common:
        return None
    reductions: dict[str, Estimate] = {}
    for name in QUANTITIES:
        before = [means[baseline][s][name] for s in common]
        after = [means[policy][s][name] for s in common]
        if not any(before):
            continue  # nothing of this kind happened: there is no staging in an experiment without it
        value = reduction_pct(before, after)
        reductions[name] = _estimate(value, reduction_spread(before, after), len(common))
    better = [float(means[policy][s]["job"] < means[baseline][s]["job"]) for s in common]
    return Comparison(
        policy=policy,
        baseline=baseline,
        sets=len(common),
        reduction_pct=reductions,
        improved_share=_estimate(_mean(better), None, len(better)),
    )


def _switching(result: RunResult, policy: str, to: str) -> Switching | None:
    found: list[SwitchOver] = [s for s in result.switch_overs if s.policy == policy and s.to == to]
    if not found:
        return None
    return Switching(
        policy=policy,
        to=to,
        count=len(found),
        total_ms=_by_set([(s.set, s.total_ms) for s in found]),
        processor_ms=_mean([s.processor_ms for s in found]),
        planner_ms=_mean([s.planner_ms for s in found]),
        install_ms=_mean([s.install_ms for s in found]),
        messages=_mean([s.messages for s in found]),
    )


def _count(result: RunResult, status: str) -> dict[str, int]:
    return {p: sum(1 for j in result.jobs if j.policy == p and j.status == status) for p in result.policies}
