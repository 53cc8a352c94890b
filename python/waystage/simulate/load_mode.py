"""Load mode: how many bytes each link carries for the jobs that run at the same time.

Arrives: a cluster, jobs and when they arrive, the algorithms of one run.
Leaves: the largest and the summed load of every link, and the jobs' times.
Must not know: capacities: a job holds its nodes as long as the file says, regardless of its traffic.

PFSim's model (Takahashi et al., section 2.3.3): when a job starts, all that it will send is added to the links of its
paths, and taken off when it ends. Ends come before arrivals of the same moment.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from waystage.simulate.arrivals import Submission
from waystage.simulate.journal import Mode, Tick
from waystage.simulate.queue import Started
from waystage.simulate.routing import Routed
from waystage.simulate.traffic import Pairs, placed

F64 = NDArray[np.float64]

MOST_KEPT = 64
"""Placements whose traffic and paths are kept: linear selection comes back to the same few."""


@dataclass
class _Placement:
    """The traffic of a job on certain hosts, and where it goes if it always goes there."""

    pairs: Pairs
    routed: Routed | None = None


class LoadMode(Mode):
    """One run; `run` once."""

    def __init__(self, *run: Any) -> None:
        super().__init__(*run)
        links = self._loads.size
        self.peak: F64 = np.zeros(links)
        self.total: F64 = np.zeros(links)
        self._of_job: dict[int, F64] = {}
        self._sent: dict[int, Pairs] = {}
        self._most = 0.0
        self._at_peak: list[Pairs] = []
        self._between = self._cluster.between_switches
        self._ends: list[tuple[float, int]] = []
        self._kept: dict[tuple[int, bytes], _Placement] = {}

    def run(self, submissions: Sequence[Submission], tick: Tick) -> None:
        """Raises AlgorithmError."""
        coming = list(reversed(submissions))
        while coming or self._ends:
            arrival_s = coming[-1].at_s if coming else float("inf")
            now_s = min(arrival_s, self._ends[0][0] if self._ends else float("inf"))
            if now_s > self._until_s:
                break
            while self._ends and self._ends[0][0] == now_s:
                self._end(heapq.heappop(self._ends)[1], now_s)
            self._arrive(coming, now_s)
            for started in self._queue.starts(now_s):
                self._start(started, now_s)
            tick(now_s)

    def at_peak(self) -> list[Pairs]:
        """What the jobs sent that ran when a link carried most."""
        return self._at_peak

    def _start(self, started: Started, now_s: float) -> None:
        submission = started.submission
        placement = self._placement(started)
        routed = self._route(placement)
        self._loads += routed.loads
        np.maximum(self.peak, self._loads, out=self.peak)
        self.total += routed.loads
        self._of_job[submission.job] = routed.loads
        self._sent[submission.job] = placement.pairs
        most = float(self._loads[self._between].max(initial=0.0))
        if most > self._most:
            self._most, self._at_peak = most, list(self._sent.values())
        self.journal.started(submission.job, started.hosts, now_s)
        heapq.heappush(self._ends, (now_s + submission.duration_s, submission.job))

    def _end(self, job: int, now_s: float) -> None:
        # Whole numbers of bytes are exact in a double up to 2^53, so nothing is left behind.
        self._loads -= self._of_job.pop(job)
        del self._sent[job]
        self._queue.finish(job)
        self.journal.ended(job, now_s)

    def _route(self, placement: _Placement) -> Routed:
        if not self._routing.repeats(self._loads):
            return self._routing.route(placement.pairs, self._loads)
        if placement.routed is None:
            placement.routed = self._routing.route(placement.pairs, self._loads)
        return placement.routed

    def _placement(self, started: Started) -> _Placement:
        source = started.submission.source
        key = (source, started.host_of.tobytes())
        known = self._kept.get(key)
        if known is None:
            if len(self._kept) >= MOST_KEPT:
                self._kept.clear()
            total = self._traffics[source].total
            pairs = placed(total, started.host_of)
            whole = Pairs(pairs.src, pairs.dst, pairs.amount * self._sources[source].iterations)
            known = self._kept[key] = _Placement(whole)
        return known
