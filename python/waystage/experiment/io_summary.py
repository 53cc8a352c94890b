"""What a run says of collective I/O: times of operations, stretch, utilisation, interference and scheduling cost.

Arrives: a `RunResult`.
Leaves: numbers for each policy, and rows of the table.
Must not know: how they are drawn or printed.

Interference factor I = T_nosched / T_alone and scheduling cost factor C = T_sched / T_alone (Isaila et al., "CLARISSE",
section V.C): total time of the operations of an application, waiting included, by that of the same application alone.
Both are `factor` here: I of a policy that grants nothing, C of one that does. Stretch is a job's time by its time alone;
utilisation the share of the applications' time, weighted by their nodes, in which they compute.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import msgspec
import numpy as np

from waystage.experiment.results import IoRecord, JobRecord, RunResult


class IoFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Of one policy, over all sets; times in s. None: no run alone to compare with."""

    operations: int
    io_s: float
    write_s: float
    waited_s: float
    epochs: int
    utilisation: float
    factor: float | None = None
    stretch_mean: float | None = None
    stretch_max: float | None = None


def io_figures(result: RunResult) -> dict[str, IoFigures]:
    """By policy; empty where no job did collective I/O."""
    return {
        policy: _figures(result, policy, records)
        for policy in result.policies
        if (records := [r for r in result.io if r.policy == policy])
    }


def io_rows(result: RunResult) -> list[dict[str, Any]]:
    """Rows of the table of a comparison."""
    rows: list[dict[str, Any]] = []
    for policy, found in io_figures(result).items():
        values: list[tuple[str, float | None, int]] = [
            ("operation with its wait, s", found.io_s, 3),
            ("wait for a grant, s", found.waited_s, 3),
            ("I/O time against alone (I or C)", found.factor, 2),
            ("stretch, mean", found.stretch_mean, 3),
            ("stretch, max", found.stretch_max, 3),
            ("utilisation, %", 100 * found.utilisation, 1),
        ]
        rows += [
            {"quantity": name, "policy": policy, "ours": f"{value:.{digits}f}", "spread": "", "paper": ""}
            for name, value, digits in values
            if value is not None
        ]
    return rows


def _figures(result: RunResult, policy: str, records: list[IoRecord]) -> IoFigures:
    jobs = {(j.set, j.index): j for j in result.jobs if j.policy == policy and j.status == "done"}
    of_job: dict[tuple[int, int], float] = defaultdict(float)
    for record in records:
        of_job[record.set, record.index] += record.io_s
    alone = {record.kind: record for record in result.alone}
    factors, stretches = [], []
    for key, job in jobs.items():
        one = alone.get(job.kind)
        if one is not None and one.io_s > 0 and one.job_s > 0 and key in of_job:
            factors.append(of_job[key] / one.io_s)
            stretches.append(job.job_s / one.job_s)
    return IoFigures(
        operations=len(records),
        io_s=float(np.mean([r.io_s for r in records])),
        write_s=float(np.mean([r.took_s for r in records])),
        waited_s=float(np.mean([r.waited_s for r in records])),
        epochs=max(r.epoch for r in records),
        utilisation=_utilisation(jobs, of_job),
        factor=float(np.mean(factors)) if factors else None,
        stretch_mean=float(np.mean(stretches)) if stretches else None,
        stretch_max=max(stretches) if stretches else None,
    )


def _utilisation(jobs: dict[tuple[int, int], JobRecord], of_job: dict[tuple[int, int], float]) -> float:
    whole = sum(job.job_s * len(job.nodes) for job in jobs.values())
    in_io = sum(of_job[key] * len(job.nodes) for key, job in jobs.items() if key in of_job)
    return 1 - in_io / whole if whole else 0.0
