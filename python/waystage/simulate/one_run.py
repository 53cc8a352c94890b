"""One run: one combination of algorithms on one topology with one seed.

Arrives: a loaded sweep and which combination of it.
Leaves: a `FinishedRun`.
Must not know: other runs, files, processes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from waystage.experiment.scheduling import AlgorithmError, guarded
from waystage.simulate.algorithms import (
    TASKS,
    Judge,
    KernelRouter,
    Task,
    build,
)
from waystage.simulate.arrivals import TooManyJobs, submissions
from waystage.simulate.bounds import lower_bound
from waystage.simulate.cluster import Cluster
from waystage.simulate.combinations import Combination, choice_of
from waystage.simulate.load_mode import LoadMode
from waystage.simulate.loading import Loaded
from waystage.simulate.metrics import measure
from waystage.simulate.queue import JobQueue
from waystage.simulate.records import FinishedRun
from waystage.simulate.routing import Routing
from waystage.simulate.time_mode import TimeMode
from waystage.simulate.traffic import Traffic, placed

Tick = Callable[[float], None]


def simulate(loaded: Loaded, which: Combination, tick: Tick = lambda at_s: None) -> FinishedRun:
    """The run; a failure of an algorithm is part of the answer, not an exception."""
    sweep = loaded.sweep
    cluster = loaded.clusters[which.topology]
    try:
        made = {task: _made(loaded, which, task) for task in TASKS}
        queue = JobQueue(
            cluster, loaded.traffics, made["scheduler"], made["host_selector"], made["process_mapper"]
        )
        judged_by = getattr(made["process_mapper"], "judged_by", None)
        if callable(judged_by):
            judge = _judge(cluster, _made(loaded, which, "router"), which.seed)
            guarded("the process mapper", lambda: judged_by(judge))
        timed = sweep.mode == "time"
        routing = Routing(cluster, made["router"], seed_of(which.seed, "router"), keep_paths=timed)
        mode: LoadMode | TimeMode
        if timed:
            mode = TimeMode(cluster, sweep.jobs, loaded.traffics, queue, routing, sweep.duration)
        else:
            mode = LoadMode(cluster, sweep.jobs, loaded.traffics, queue, routing, sweep.duration)
        mode.run(submissions(sweep, which.seed), tick)
    except (AlgorithmError, TooManyJobs) as error:
        return FinishedRun(status="failed", cause=str(error))
    jobs, peak, total = mode.journal.records(), mode.peak, mode.total
    metrics = measure(cluster, peak, total, jobs, sweep.duration)
    minimal = isinstance(made["router"], KernelRouter) and made["router"].minimal
    least = lower_bound(cluster, mode.at_peak(), shortest=minimal)
    return FinishedRun(
        metrics=msgspec.structs.replace(
            # A bound is a sum of products: its last digits may lie above what was reached exactly.
            metrics,
            bound_bytes=min(least, metrics.max_load_bytes),
            bound_over="shortest paths" if minimal else "all paths",
        ),
        peak=peak.astype("<f8").tobytes(),
        total=total.astype("<f8").tobytes(),
        jobs=jobs,
    )


def _judge(cluster: Cluster, router: Any, seed: int) -> Judge:
    """With a separate router: what a user's router keeps between calls must not come from here."""
    routing = Routing(cluster, router, seed_of(seed, "router"))
    nothing = np.zeros(cluster.capacity.size)

    def judge(traffic: Traffic, host_of: Sequence[int]) -> float:
        pairs = placed(traffic.total, np.asarray(host_of, dtype=np.uint32))
        return cluster.network.max_load(routing.route(pairs, nothing).loads)

    return judge


def seed_of(seed: int, task: str) -> int:
    """A seed for each task of a run, so that changing one algorithm changes no other's numbers."""
    return int.from_bytes(hashlib.sha256(f"waystage {seed} {task}".encode()).digest()[:7], "little")


def _made(loaded: Loaded, which: Combination, task: Task) -> Any:
    choice = choice_of(loaded, which, task)
    return build(task, choice.name, choice.options, seed_of(which.seed, task))
