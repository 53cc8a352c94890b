"""The job queue: first come, first served, with node selection. Pure.

Arrives: submissions and ends of jobs.
Leaves: which jobs start on which nodes, at once.
Must not know: clocks, processes, which world runs the jobs. The lab and the simulator use this same code.

Strict FCFS (no backfilling): a job that does not fit holds back those behind it, and every job that fits
after an end starts, not only the first. Node selection "alternate edges" follows section III.C of the
link-separation paper (Endo et al. 2020): a job's nodes are taken from one edge switch after another, so that no job lies
under a single edge switch and its communication crosses the core.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from waystage.topology import Topology

Placement = str | tuple[tuple[str, ...], ...]


class QueueError(ValueError):
    """A submission that can never start, or an end of what does not run."""


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """A job that starts now; the first node is its head."""

    job_id: str
    nodes: tuple[str, ...]


class Queue:
    """`concurrent` jobs at most run at once, None for as many as have nodes."""

    def __init__(self, topology: Topology, *, placement: Placement, concurrent: int | None = None) -> None:
        self._topology = topology
        self._placement = placement
        self._concurrent = concurrent
        self._waiting: deque[tuple[str, int]] = deque()
        self._running: dict[str, tuple[str, ...]] = {}
        self._turn = 0

    @property
    def waiting(self) -> tuple[str, ...]:
        return tuple(job_id for job_id, _ in self._waiting)

    @property
    def running(self) -> dict[str, tuple[str, ...]]:
        return dict(self._running)

    def submit(self, job_id: str, nodes: int) -> list[Start]:
        """Raises QueueError where the id is taken or the job is too large for the whole cluster."""
        if job_id in self._running or job_id in self.waiting:
            raise QueueError(f"job {job_id} is submitted already")
        if not 0 < nodes <= len(self._topology.compute_hosts):
            raise QueueError(f"job {job_id} wants {nodes} of {len(self._topology.compute_hosts)} nodes")
        self._waiting.append((job_id, nodes))
        return self._start()

    def finish(self, job_id: str) -> list[Start]:
        """Raises QueueError where no such job runs."""
        if self._running.pop(job_id, None) is None:
            raise QueueError(f"job {job_id} does not run")
        return self._start()

    def _start(self) -> list[Start]:
        started: list[Start] = []
        while self._waiting and (self._concurrent is None or len(self._running) < self._concurrent):
            job_id, count = self._waiting[0]
            nodes = self._select(count)
            if nodes is None:
                break
            self._waiting.popleft()
            self._running[job_id] = nodes
            self._turn += 1
            started.append(Start(job_id=job_id, nodes=nodes))
        return started

    def _select(self, count: int) -> tuple[str, ...] | None:
        busy = {node for nodes in self._running.values() for node in nodes}
        free = [host for host in self._topology.compute_hosts if host not in busy]
        if isinstance(self._placement, tuple):
            return self._listed(free)
        if len(free) < count:
            return None
        if self._placement == "linear":
            return tuple(free[:count])
        return alternate_edges(self._topology, free, count)

    def _listed(self, free: Sequence[str]) -> tuple[str, ...] | None:
        """The next list in turn where its nodes are free, else the first list whose nodes are."""
        assert isinstance(self._placement, tuple)
        lists = self._placement
        turn = self._turn % len(lists)
        for nodes in (*lists[turn:], *lists[:turn]):
            if set(nodes) <= set(free):
                return nodes
        return None


def alternate_edges(topology: Topology, free: Sequence[str], count: int) -> tuple[str, ...]:
    """`count` of the `free` hosts, one edge switch after another, starting under the one with most free hosts.

    Ties go to the switch that sorts first, hosts under a switch are taken in port order.
    """
    under: list[deque[str]] = []
    for switch in topology.edge_switches:
        hosts = deque(h for h in topology.hosts_at[switch] if h in free)
        if hosts:
            under.append(hosts)
    under.sort(key=len, reverse=True)  # stable: ties keep the switches' order
    chosen: list[str] = []
    while len(chosen) < count:
        for hosts in under:
            if hosts and len(chosen) < count:
                chosen.append(hosts.popleft())
    return tuple(chosen)
