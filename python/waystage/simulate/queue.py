"""The queue of a sweep's run: jobs that start, with the host of each rank.

Arrives: submissions and ends of jobs, and the time.
Leaves: jobs that start, on which hosts, with each rank placed.
Must not know: links, routes, how long jobs take.

A wrong answer of an algorithm ends the run with a sentence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from waystage.experiment.queue import Queue
from waystage.experiment.scheduling import AlgorithmError, Scheduler, guarded
from waystage.simulate.algorithms import HostSelector, ProcessMapper
from waystage.simulate.arrivals import Submission
from waystage.simulate.cluster import Cluster
from waystage.simulate.traffic import Traffic

U32 = NDArray[np.uint32]


class Started(msgspec.Struct, frozen=True):
    """A job that starts now: rank r on `host_of[r]`."""

    submission: Submission
    hosts: tuple[int, ...]
    host_of: U32


class JobQueue:
    """`traffics[s]` is what a job of source s sends."""

    def __init__(
        self,
        cluster: Cluster,
        traffics: Sequence[Traffic],
        scheduler: Scheduler,
        selector: HostSelector,
        mapper: ProcessMapper,
    ) -> None:
        def select(ranks: int, free: list[int]) -> list[int] | None:
            found = selector.select(ranks, free, cluster)
            return None if found is None else [int(host) for host in found]

        self._cluster, self._traffics, self._mapper = cluster, traffics, mapper
        slots = {host: cluster.slots[host] for host in cluster.compute}
        self._queue: Queue[int, int] = Queue(slots, scheduler, select)
        self._room: tuple[tuple[int, ...], NDArray[np.int64]] = ((), np.zeros(0, dtype=np.int64))
        self._submissions: dict[int, Submission] = {}

    def submit(self, submission: Submission) -> None:
        self._submissions[submission.job] = submission
        ranks = self._traffics[submission.source].ranks
        self._queue.submit(submission.job, ranks, at_s=submission.at_s, estimate_s=submission.estimate_s)

    def finish(self, job: int) -> None:
        self._queue.finish(job)
        del self._submissions[job]

    def starts(self, now_s: float) -> Iterator[Started]:
        """Every job that starts now. Raises AlgorithmError."""
        for start in self._queue.starts(now_s):
            submission = self._submissions[start.job_id]
            yield Started(submission, start.nodes, self._place(submission, start.nodes))

    def _place(self, submission: Submission, hosts: tuple[int, ...]) -> U32:
        traffic = self._traffics[submission.source]
        found = guarded("the process mapper", lambda: self._mapper.map(traffic, hosts, self._cluster))
        try:
            host_of = np.asarray(found, dtype=np.int64)
        except (TypeError, ValueError, OverflowError):
            raise AlgorithmError("the process mapper gave something other than a list of hosts") from None
        if host_of.shape != (traffic.ranks,):
            raise AlgorithmError(
                f"the process mapper placed {host_of.size} ranks of the {traffic.ranks} of job {submission.job}"
            )
        room = self._room_on(hosts)
        if not 0 <= int(host_of.min()) <= int(host_of.max()) < room.size:
            raise AlgorithmError("the process mapper used a host that is not there")
        counts = np.bincount(host_of, minlength=room.size)
        if (counts > room).any():
            host = int(np.argmax(counts > room))
            raise AlgorithmError(
                f"the process mapper put {counts[host]} ranks of job {submission.job} on "
                f"{self._cluster.hosts[host]}, where it has {room[host]} slots"
            )
        return host_of.astype(np.uint32)

    def _room_on(self, hosts: tuple[int, ...]) -> NDArray[np.int64]:
        """What a job on `hosts` may put on each host."""
        if hosts != self._room[0]:
            room = np.zeros(len(self._cluster.hosts), dtype=np.int64)
            room[list(hosts)] = self._cluster.slots_array[list(hosts)]
            self._room = (hosts, room)
        return self._room[1]
