"""The job queue of every world: what waits, what runs where.

Arrives: submissions and ends of jobs, and the time.
Leaves: jobs that start, with their nodes, at once.
Must not know: clocks, processes, links, which world runs the jobs.

It asks a scheduler which jobs start and a node selector on which nodes, and checks their answers, as PFSim's Algorithm 1
(Takahashi et al., section 2.3.3). `node_queue` makes the queue of a comparison of policies: first come, first served,
with the experiment's placement.
"""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from typing import Generic, TypeVar

import msgspec
import numpy as np

from waystage.experiment.schedulers.fcfs import Fcfs
from waystage.experiment.scheduling import AlgorithmError, Moment, Running, Scheduler, Waiting, guarded
from waystage.topology import Topology

Job = TypeVar("Job", bound=Hashable)
Node = TypeVar("Node", bound=Hashable)

Select = Callable[[int, list[Node]], Sequence[Node] | None]
"""Nodes for a number of ranks among the free ones, in order; None where these do not suffice."""


class QueueError(ValueError):
    """A submission that can never start, or the end of a job that does not run."""


class Started(msgspec.Struct, Generic[Job, Node], frozen=True, kw_only=True):
    """A job that starts now; the first node is its head."""

    job_id: Job
    nodes: tuple[Node, ...]


Start = Started[str, str]


class Queue(Generic[Job, Node]):
    """`slots[n]` ranks fit on node n; nodes are offered to `select` in the order of `slots`."""

    def __init__(self, slots: Mapping[Node, int], scheduler: Scheduler, select: Select[Node]) -> None:
        self._slots = slots
        self._scheduler, self._select = scheduler, select
        self._free = set(slots)
        self._free_slots = sum(slots.values())
        self._sizes = np.cumsum(sorted(slots.values()))
        self._waiting: OrderedDict[Job, Waiting] = OrderedDict()
        self._running: dict[Job, Running] = {}
        self._nodes: dict[Job, tuple[Node, ...]] = {}

    @property
    def running(self) -> dict[Job, tuple[Node, ...]]:
        return dict(self._nodes)

    def submit(self, job: Job, ranks: int, *, at_s: float = 0.0, estimate_s: float = math.inf) -> None:
        """Raises QueueError where the id is taken or the job is too large for all nodes together."""
        if job in self._running or job in self._waiting:
            raise QueueError(f"job {job} is submitted already")
        total = int(self._sizes[-1]) if self._sizes.size else 0
        if not 0 < ranks <= total:
            raise QueueError(f"job {job} needs {ranks} of {total} slots")
        # Enough whichever they are: as many of the smallest nodes as it takes.
        nodes = int(np.searchsorted(self._sizes, ranks)) + 1
        self._waiting[job] = Waiting(
            job=job, ranks=ranks, nodes=nodes, submitted_s=at_s, estimate_s=estimate_s
        )

    def finish(self, job: Job) -> None:
        """Raises QueueError where no such job runs."""
        if self._running.pop(job, None) is None:
            raise QueueError(f"job {job} does not run")
        nodes = self._nodes.pop(job)
        self._free.update(nodes)
        self._free_slots += self._slots_of(nodes)

    def starts(self, now_s: float = 0.0) -> Iterator[Started[Job, Node]]:
        """Every job that starts now. Raises AlgorithmError for a wrong answer of the scheduler or selector."""
        while self._waiting:
            moment = self._moment(now_s)
            chosen = guarded("the scheduler", partial(self._chosen, moment))
            started = 0
            for job in chosen:
                if job not in self._waiting:
                    raise AlgorithmError(f"the scheduler chose job {job!r}, which does not wait")
                nodes = self._selected(self._waiting[job])
                if nodes is None:
                    break  # its nodes do not fit together; the scheduler is asked again about what is behind it
                yield self._start(job, nodes, now_s)
                started += 1
            if not started:
                return

    def _slots_of(self, nodes: tuple[Node, ...]) -> int:
        return sum(map(self._slots.__getitem__, nodes))

    def _chosen(self, moment: Moment) -> list[Job]:
        return list(self._scheduler.choose(moment))

    def _moment(self, now_s: float) -> Moment:
        soon = math.nextafter(now_s, math.inf)
        running = list(self._running.values())
        if any(job.expected_end_s < soon for job in running):
            running = [
                msgspec.structs.replace(job, expected_end_s=max(job.expected_end_s, soon)) for job in running
            ]
        return Moment(
            now_s=now_s,
            nodes=len(self._slots),
            free_nodes=len(self._free),
            free_slots=self._free_slots,
            waiting=tuple(self._waiting.values()),
            running=tuple(running),
        )

    def _start(self, job: Job, nodes: tuple[Node, ...], now_s: float) -> Started[Job, Node]:
        waited = self._waiting.pop(job)
        self._free.difference_update(nodes)
        self._free_slots -= self._slots_of(nodes)
        self._nodes[job] = nodes
        self._running[job] = Running(
            job=job, nodes=len(nodes), started_s=now_s, expected_end_s=now_s + waited.estimate_s
        )
        return Started(job_id=job, nodes=nodes)

    def _selected(self, job: Waiting) -> tuple[Node, ...] | None:
        free = [node for node in self._slots if node in self._free]
        found = guarded("the host selector", lambda: self._select(job.ranks, free))
        if found is None:
            return None
        nodes = tuple(found)
        if len(set(nodes)) != len(nodes) or not self._free.issuperset(nodes):
            raise AlgorithmError(f"the host selector gave job {job.job} a host twice or one that is not free")
        slots = self._slots_of(nodes)
        if slots < job.ranks:
            raise AlgorithmError(
                f"the host selector gave job {job.job} hosts with {slots} slots for {job.ranks} ranks"
            )
        return nodes


# -- the queue of a comparison of policies -----------------------------------------------------------------


def node_queue(
    topology: Topology, placement: str | tuple[tuple[str, ...], ...], concurrent: int | None = None
) -> Queue[str, str]:
    """First come, first served on the computing nodes, one job a node, at most `concurrent` at once."""
    select: Select[str]
    if isinstance(placement, tuple):
        select = _Listed(placement)
    elif placement == "linear":
        select = _first
    else:
        select = partial(alternate_edges, topology)
    return Queue(dict.fromkeys(topology.compute_hosts, 1), Fcfs(concurrent), select)


class _Listed:
    """The next of the lists in turn where its nodes are free, else the first list whose nodes are."""

    def __init__(self, lists: tuple[tuple[str, ...], ...]) -> None:
        self._lists = lists
        self._turn = 0

    def __call__(self, count: int, free: list[str]) -> tuple[str, ...] | None:
        turn = self._turn % len(self._lists)
        for nodes in (*self._lists[turn:], *self._lists[:turn]):
            if set(nodes) <= set(free):
                self._turn += 1
                return nodes
        return None


def _first(count: int, free: list[str]) -> Sequence[str]:
    return free[:count]


def alternate_edges(topology: Topology, count: int, free: Sequence[str]) -> tuple[str, ...]:
    """`count` of the `free` hosts, one edge switch after another, starting under the one with most free hosts.

    Section III.C of the link-separation paper (Endo et al. 2020): no job is under a single edge switch, so that its
    communication crosses the core. Ties go to the switch that sorts first; hosts under a switch are taken in port order.
    """
    offered = frozenset(free)
    found = ([h for h in topology.hosts_at[switch] if h in offered] for switch in topology.edge_switches)
    under = sorted(filter(None, found), key=len, reverse=True)  # stable: ties keep the switches' order
    turns = itertools.chain.from_iterable(itertools.zip_longest(*under))
    return tuple(itertools.islice(filter(None, turns), count))
