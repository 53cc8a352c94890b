"""One run: one combination of algorithms on one topology with one seed.

Arrives: a loaded scenario and which combination of it.
Leaves: a `FinishedRun`.
Must not know: other runs, files, processes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import msgspec

from waystage.simulate.algorithms import TASKS, AlgorithmError, Task, build
from waystage.simulate.arrivals import TooManyJobs, submissions
from waystage.simulate.load_mode import LoadMode
from waystage.simulate.loading import Loaded
from waystage.simulate.metrics import measure
from waystage.simulate.queue import JobQueue
from waystage.simulate.records import FinishedRun
from waystage.simulate.routing import Routing
from waystage.simulate.scenario import AlgorithmChoice
from waystage.simulate.time_mode import TimeMode

Tick = Callable[[float], None]


class Combination(msgspec.Struct, frozen=True, kw_only=True):
    """`number` counts from 1 in the order of the file; the rest are positions in its lists, and the seed."""

    number: int
    topology: int
    scheduler: int
    host_selector: int
    process_mapper: int
    router: int
    seed: int


def simulate(loaded: Loaded, which: Combination, tick: Tick = lambda at_s: None) -> FinishedRun:
    """The run; a failure of an algorithm is part of the answer, not an exception."""
    scenario = loaded.scenario
    cluster = loaded.clusters[which.topology]
    try:
        made = {task: _made(loaded, which, task) for task in TASKS}
        queue = JobQueue(
            cluster, loaded.traffics, made["scheduler"], made["host_selector"], made["process_mapper"]
        )
        timed = scenario.mode == "time"
        routing = Routing(cluster, made["router"], seed_of(which.seed, "router"), keep_paths=timed)
        mode: LoadMode | TimeMode
        if timed:
            mode = TimeMode(cluster, scenario.jobs, loaded.traffics, queue, routing, scenario.duration)
        else:
            mode = LoadMode(cluster, scenario.jobs, loaded.traffics, queue, routing, scenario.duration)
        mode.run(submissions(scenario, which.seed), tick)
    except (AlgorithmError, TooManyJobs) as error:
        return FinishedRun(status="failed", cause=str(error))
    jobs, peak, total = mode.journal.records(), mode.peak, mode.total
    return FinishedRun(
        metrics=measure(cluster, peak, total, jobs, scenario.duration),
        peak=peak.astype("<f8").tobytes(),
        total=total.astype("<f8").tobytes(),
        jobs=jobs,
    )


def choice_of(loaded: Loaded, which: Combination, task: Task) -> AlgorithmChoice:
    """What the file says for `task`."""
    choices: tuple[AlgorithmChoice, ...] = getattr(loaded.scenario.algorithms, task)
    chosen: int = getattr(which, task)
    return choices[chosen]


def seed_of(seed: int, task: str) -> int:
    """A seed for each task of a run, so that changing one algorithm changes no other's numbers."""
    return int.from_bytes(hashlib.sha256(f"waystage {seed} {task}".encode()).digest()[:7], "little")


def _made(loaded: Loaded, which: Combination, task: Task) -> Any:
    choice = choice_of(loaded, which, task)
    return build(task, choice.name, choice.options, seed_of(which.seed, task))
