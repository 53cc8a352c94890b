"""Time mode: how long jobs take when their flows share the links.

Arrives: a cluster, jobs and when they arrive, the algorithms of one run.
Leaves: what crossed each link, and the jobs' times.
Must not know: how rates are shared: the compiled flow clock does that, max-min fairly.

A job stages in, then computes and communicates again and again, then stages out; each part is a program of the flow
clock, and Python acts only when one ends or a job arrives. Messages between ranks of one host take no time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from waystage._native import FlowClock, FlowProgram
from waystage.simulate.arrivals import Submission
from waystage.simulate.bounds import joined
from waystage.simulate.journal import Mode, Tick
from waystage.simulate.queue import Started
from waystage.simulate.traffic import Pairs, merged, placed

F64 = NDArray[np.float64]

MOST_APART = 256
"""Lists of what ended jobs sent before they are added up."""

MPI, STAGING = 0, 1
"""Classes of flows."""


@dataclass
class _Job:
    """A running job: the programs it has yet to begin, and what it is thought to put on the links."""

    job: int
    programs: list[FlowProgram]
    loads: F64
    sent: list[Pairs]
    following: int = field(default=0)


class TimeMode(Mode):
    """One run; `run` once."""

    def __init__(self, *run: Any) -> None:
        super().__init__(*run)
        self._clock = FlowClock(self._cluster.capacity)
        self._running: dict[int, _Job] = {}
        self._carried: list[Pairs] = []

    @property
    def total(self) -> F64:
        """Bytes that each link has carried."""
        return self._clock.totals(MPI) + self._clock.totals(STAGING)

    @property
    def peak(self) -> F64:
        """The same: in this mode a link's load is what crosses it, and there is no second measure of it."""
        return self.total

    def at_peak(self) -> list[Pairs]:
        """What the jobs sent that ended: all of it has crossed the links."""
        return self._carried

    def run(self, submissions: Sequence[Submission], tick: Tick) -> None:
        """Raises AlgorithmError."""
        coming = list(reversed(submissions))
        while coming or self._running:
            limit_s = min(coming[-1].at_s, self._until_s) if coming else self._until_s
            ended = self._clock.run_until(limit_s)
            for _, number in ended:
                self._advance(number)
            if not ended:
                if limit_s >= self._until_s and (not coming or coming[-1].at_s > self._until_s):
                    break
                self._arrive(coming, limit_s)
            now_s = self._clock.now
            for started in self._queue.starts(now_s):
                self._start(started, now_s)
            tick(now_s)

    def _start(self, started: Started, now_s: float) -> None:
        submission = started.submission
        source, traffic = self._sources[submission.source], self._traffics[submission.source]
        hosts = len(self._cluster.hosts)
        total = merged(placed(traffic.total, started.host_of), hosts)
        whole = Pairs(total.src, total.dst, total.amount * source.iterations)
        loads, keys = self._route(whole)
        communicate = FlowProgram(source.iterations)
        number = dict(zip(_pair_keys(total, hosts), keys.tolist(), strict=True))
        for phase in traffic.phases:
            part = merged(placed(phase, started.host_of), hosts)
            communicate.step(source.compute_s / len(traffic.phases))
            if len(part):
                routes = np.array([number[pair] for pair in _pair_keys(part, hosts)], dtype=np.uint32)
                communicate.flows(routes, part.amount, flow_class=MPI)
        programs = [communicate]
        sent = [whole]
        if source.stage_in:
            moved, program, staged = self._staging(started.hosts, source.stage_in, inward=True)
            loads = loads + moved
            sent.append(staged)
            programs.insert(0, program)
        if source.stage_out:
            moved, program, staged = self._staging(started.hosts, source.stage_out, inward=False)
            loads = loads + moved
            sent.append(staged)
            programs.append(program)
        self._loads += loads
        self.journal.started(submission.job, started.hosts, now_s)
        self._begin(_Job(submission.job, programs, loads, sent))

    def _staging(self, nodes: Sequence[int], amount: int, *, inward: bool) -> tuple[F64, FlowProgram, Pairs]:
        """`amount` bytes between each node and a storage host, which the nodes share out in turn."""
        storage = self._cluster.storage
        served = np.array([storage[i % len(storage)] for i in range(len(nodes))], dtype=np.uint32)
        own = np.array(nodes, dtype=np.uint32)
        pairs = Pairs(
            served if inward else own, own if inward else served, np.full(len(nodes), float(amount))
        )
        loads, keys = self._route(pairs)
        program = FlowProgram(1)
        program.step(0.0)
        program.flows(keys, pairs.amount, flow_class=STAGING)
        return loads, program, pairs

    def _route(self, pairs: Pairs) -> tuple[F64, NDArray[np.uint32]]:
        """The loads of the pairs, and the key of each one's route in the clock."""
        if not len(pairs):
            return np.zeros(self._loads.size), np.zeros(0, dtype=np.uint32)
        routed = self._routing.route(pairs, self._loads)
        first = self._clock.add_routes(routed.offsets, routed.links)
        return routed.loads, np.arange(first, first + len(pairs), dtype=np.uint32)

    def _begin(self, job: _Job) -> None:
        number = self._clock.start(job.programs[job.following])
        job.following += 1
        self._running[number] = job

    def _advance(self, number: int) -> None:
        job = self._running.pop(number)
        if job.following < len(job.programs):
            self._begin(job)
            return
        self._loads -= job.loads
        self._carried += job.sent
        if len(self._carried) > MOST_APART:
            self._carried = [joined(self._carried, len(self._cluster.hosts))]
        self._queue.finish(job.job)
        self.journal.ended(job.job, self._clock.now)


def _pair_keys(pairs: Pairs, hosts: int) -> list[int]:
    keys: list[int] = (pairs.src.astype(np.int64) * hosts + pairs.dst).tolist()
    return keys
