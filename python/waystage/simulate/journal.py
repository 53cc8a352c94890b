"""What both modes of a run share: its inputs, and when each job arrived, started and ended.

Arrives: the cluster, jobs, queue and routing of a run; events as they happen.
Leaves: a record for every job that arrived.
Must not know: how loads or times are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from waystage.experiment.schema import JobSource
from waystage.simulate.arrivals import Submission
from waystage.simulate.cluster import Cluster
from waystage.simulate.queue import JobQueue
from waystage.simulate.records import JobTimes
from waystage.simulate.routing import Routing
from waystage.simulate.traffic import Traffic

F64 = NDArray[np.float64]


class Journal:
    """Jobs by number."""

    def __init__(self) -> None:
        self._jobs: dict[int, JobTimes] = {}

    def arrived(self, submission: Submission) -> None:
        self._jobs[submission.job] = JobTimes(
            job=submission.job,
            source=submission.source,
            submitted_s=submission.at_s,
            started_s=None,
            ended_s=None,
            status="waiting",
        )

    def started(self, job: int, hosts: tuple[int, ...], at_s: float) -> None:
        self._jobs[job] = msgspec.structs.replace(
            self._jobs[job], started_s=at_s, hosts=hosts, status="running"
        )

    def ended(self, job: int, at_s: float) -> None:
        self._jobs[job] = msgspec.structs.replace(self._jobs[job], ended_s=at_s, status="done")

    def records(self) -> tuple[JobTimes, ...]:
        """In order of arrival."""
        return tuple(self._jobs[job] for job in sorted(self._jobs))


Tick = Callable[[float], None]
"""Called now and then with the simulated time reached."""


class Mode:
    """What load mode and time mode have in common: one run, whose `run` is called once."""

    def __init__(
        self,
        cluster: Cluster,
        sources: Sequence[JobSource],
        traffics: Sequence[Traffic],
        queue: JobQueue,
        routing: Routing,
        until_s: float,
    ) -> None:
        self.journal = Journal()
        self._cluster, self._sources, self._traffics = cluster, sources, traffics
        self._queue, self._routing, self._until_s = queue, routing, until_s
        self._loads: F64 = np.zeros(cluster.capacity.size)

    def _arrive(self, coming: list[Submission], until_s: float) -> None:
        """Queue the jobs that arrive until then; `coming` holds the last one first."""
        while coming and coming[-1].at_s <= until_s:
            self.journal.arrived(coming[-1])
            self._queue.submit(coming.pop())
