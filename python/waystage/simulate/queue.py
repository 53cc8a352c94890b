"""The queue of a run: what waits, what runs where; it asks the algorithms and checks their answers.

Arrives: submissions and ends of jobs, and the time.
Leaves: jobs that start, with the host of each rank.
Must not know: links, routes, how long jobs take.

PFSim's Algorithm 1 (Takahashi et al., section 2.3.3). A wrong answer of an algorithm ends the run with a sentence.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from waystage.simulate.algorithms import (
    AlgorithmError,
    HostSelector,
    Moment,
    ProcessMapper,
    Running,
    Scheduler,
    Waiting,
    guarded,
)
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
        self._cluster = cluster
        self._traffics = traffics
        self._scheduler, self._selector, self._mapper = scheduler, selector, mapper
        self._free = set(cluster.compute)
        self._free_slots = cluster.total_slots
        self._room: tuple[tuple[int, ...], NDArray[np.int64]] = ((), np.zeros(0, dtype=np.int64))
        self._submissions: dict[int, Submission] = {}
        self._waiting: OrderedDict[int, Waiting] = OrderedDict()
        self._running: dict[int, tuple[tuple[int, ...], float]] = {}
        self._nodes = [_enough_nodes(cluster, traffic.ranks) for traffic in traffics]

    def submit(self, submission: Submission) -> None:
        self._submissions[submission.job] = submission
        self._waiting[submission.job] = Waiting(
            job=submission.job,
            ranks=self._traffics[submission.source].ranks,
            nodes=self._nodes[submission.source],
            submitted_s=submission.at_s,
            estimate_s=submission.estimate_s,
        )

    def finish(self, job: int) -> None:
        hosts, _ = self._running.pop(job)
        self._free.update(hosts)
        self._free_slots += sum(self._cluster.slots[h] for h in hosts)
        del self._submissions[job]

    def starts(self, now_s: float) -> Iterator[Started]:
        """Every job that starts now. Raises AlgorithmError."""
        while self._waiting:
            moment = self._moment(now_s)
            chosen = guarded("the scheduler", lambda m=moment: list(self._scheduler.choose(m)))  # type: ignore[misc]
            started = 0
            for job in chosen:
                if job not in self._waiting:
                    raise AlgorithmError(f"the scheduler chose job {job!r}, which does not wait")
                hosts = self._select(self._waiting[job])
                if hosts is None:
                    break  # its hosts do not fit together; what is behind it is asked about again
                yield self._start(job, hosts, now_s)
                started += 1
            if not started:
                return

    def _moment(self, now_s: float) -> Moment:
        soon = math.nextafter(now_s, math.inf)
        return Moment(
            now_s=now_s,
            nodes=len(self._cluster.compute),
            free_nodes=len(self._free),
            free_slots=self._free_slots,
            waiting=tuple(self._waiting.values()),
            running=tuple(
                Running(
                    job=job,
                    nodes=len(hosts),
                    started_s=start_s,
                    expected_end_s=max(start_s + self._submissions[job].estimate_s, soon),
                )
                for job, (hosts, start_s) in self._running.items()
            ),
        )

    def _start(self, job: int, hosts: tuple[int, ...], now_s: float) -> Started:
        submission = self._submissions[job]
        del self._waiting[job]
        self._free.difference_update(hosts)
        self._free_slots -= sum(self._cluster.slots[h] for h in hosts)
        self._running[job] = (hosts, now_s)
        return Started(submission, hosts, self._place(submission, hosts))

    def _select(self, job: Waiting) -> tuple[int, ...] | None:
        free = sorted(self._free)
        found = guarded("the host selector", lambda: self._selector.select(job.ranks, free, self._cluster))
        if found is None:
            return None
        hosts = tuple(int(h) for h in found)
        if len(set(hosts)) != len(hosts) or not self._free.issuperset(hosts):
            raise AlgorithmError(f"the host selector gave job {job.job} a host twice or one that is not free")
        slots = sum(self._cluster.slots[h] for h in hosts)
        if slots < job.ranks:
            raise AlgorithmError(
                f"the host selector gave job {job.job} hosts with {slots} slots for {job.ranks} ranks"
            )
        return hosts

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


def _enough_nodes(cluster: Cluster, ranks: int) -> int:
    """How many hosts are enough whichever they are: as many of the smallest ones as it takes."""
    sizes = np.cumsum(sorted(cluster.slots[h] for h in cluster.compute))
    return int(np.searchsorted(sizes, ranks)) + 1
