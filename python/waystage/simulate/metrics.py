"""The figures of a run from its link loads and jobs.

Arrives: loads of all directed links, job records, the cluster.
Leaves: `Metrics`.
Must not know: how the run was made.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from waystage.experiment.results import Metrics
from waystage.simulate.cluster import Cluster
from waystage.simulate.records import JobTimes

F64 = NDArray[np.float64]


def measure(cluster: Cluster, peak: F64, total: F64, jobs: Sequence[JobTimes], end_s: float) -> Metrics:
    """`end_s` is when the run ended, by which node use is reckoned."""
    waits = [job.started_s - job.submitted_s for job in jobs if job.started_s is not None]
    lengths = [
        job.ended_s - job.started_s for job in jobs if job.started_s is not None and job.ended_s is not None
    ]
    ends = [job.ended_s for job in jobs if job.ended_s is not None]
    held = sum(
        len(job.hosts) * ((end_s if job.ended_s is None else job.ended_s) - job.started_s)
        for job in jobs
        if job.started_s is not None
    )
    link, most, congestion, imbalance = _busiest(cluster, peak)
    return Metrics(
        submitted=len(jobs),
        started=len(waits),
        finished=len(ends),
        max_load_bytes=most,
        busiest_link=link,
        max_congestion_s=congestion,
        imbalance=imbalance,
        total_bytes=float(total[cluster.between_switches].sum()),
        mean_wait_s=_mean(waits),
        mean_job_s=_mean(lengths),
        last_end_s=max(ends, default=0.0),
        node_use=held / (len(cluster.compute) * end_s) if end_s > 0 else 0.0,
    )


def _busiest(cluster: Cluster, loads: F64) -> tuple[str, float, float, float]:
    between = np.flatnonzero(cluster.between_switches)
    if between.size == 0 or not loads[between].any():
        return "", 0.0, 0.0, 1.0
    at = between[np.argmax(loads[between])]
    congestion = float((loads[between] / cluster.capacity[between]).max())
    most = float(loads[at])
    return cluster.link_names[at], most, congestion, most / float(loads[between].mean())


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
