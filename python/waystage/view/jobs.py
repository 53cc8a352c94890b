"""Jobs on the Gantt chart: their phases, also of those that have ended.

Arrives: events of jobs, in order; which jobs the state still has.
Leaves: a line for each job; which lines have changed.
Must not know: frames, pages.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import msgspec

from waystage import events
from waystage.state import JobInfo, State

JOBS_SHOWN, ENDED_JOBS = 2000, 1000

PHASES = 64
"""Of a job: one that is staged again and again keeps the last."""

Phase = list[Any]
"""Kind (`in`, `run`, `out`, `io`), start in ms, end in ms or None."""


class JobLine(msgspec.Struct):
    """A job and its phases."""

    job_id: str
    user: str = ""
    nodes: tuple[str, ...] = ()
    phases: list[Phase] = []
    ended: bool = False

    def open(self, kind: str) -> bool:
        return any(phase[2] is None and phase[0] == kind for phase in self.phases)

    def begin(self, kind: str, time_ns: int) -> None:
        if not self.phases or not self.open(kind):
            self.phases.append([kind, time_ns // 1_000_000, None])
            if len(self.phases) > PHASES:
                del self.phases[0]

    def end(self, *kinds: str, time_ns: int) -> None:
        """All that are open, where no kind is given."""
        for phase in self.phases:
            if phase[2] is None and (not kinds or phase[0] in kinds):
                phase[2] = time_ns // 1_000_000


class Jobs:
    """`changed` has the jobs whose lines have changed or are gone, until its owner takes it away."""

    def __init__(self) -> None:
        self.lines: dict[str, JobLine] = {}
        self.seen = 0
        self.changed: dict[str, None] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()

    def fold(self, event: Any, time_ns: int, state: State) -> None:
        """Fold one event of a job, after the state has."""
        kind = type(event)
        if kind is events.JobFinished:
            self._end(event.job_id, ("run", "io"), time_ns, state)
        elif kind is events.JobStarted:
            line = self._line(event.job_id)
            line.nodes, line.user = event.nodes, event.user or line.user
            line.begin("run", time_ns)
        elif kind is events.StagingStarted:
            line = self._line(event.job_id)
            line.nodes, line.user = line.nodes or event.nodes, event.user or line.user
            line.begin(event.direction, time_ns)
        elif kind is events.StagingFinished:
            self._end(event.job_id, (event.direction,), time_ns, state)
        elif kind is events.IoStarted and event.job_id in self.lines and not self.lines[event.job_id].ended:
            self._line(event.job_id).begin("io", time_ns)
        elif kind is events.IoFinished:
            self._end(event.job_id, ("io",), time_ns, state)

    def adopt(self, state: State) -> None:
        """Go on from a state: its jobs are there, and no others."""
        for job_id, job in state.jobs.items():
            self._adopt(self._line(job_id), job)
        for job_id, line in list(self.lines.items()):
            if job_id not in state.jobs and not line.ended:
                self._close(line, state.time_ns)

    def end_all(self, time_ns: int) -> None:
        for line in list(self.lines.values()):
            if not line.ended:
                self._close(line, time_ns)

    # -- inside -----------------------------------------------------------------------------------------

    @staticmethod
    def _adopt(line: JobLine, job: JobInfo) -> None:
        line.user, line.nodes = job.user, job.nodes
        if job.running:
            line.begin("run", job.started_ns)
        for direction, time_ns in job.staging_ns.items():
            line.begin(direction, time_ns)

    def _line(self, job_id: str) -> JobLine:
        line = self.lines.get(job_id)
        if line is None:
            self.seen += 1
            line = self.lines[job_id] = JobLine(job_id, phases=[])
            if len(self.lines) > JOBS_SHOWN:
                self._forget(next(iter(self._ended), next(iter(self.lines))))
        if line.ended:
            line.ended = False
            self._ended.pop(job_id, None)
        self.changed[job_id] = None
        return line

    def _end(self, job_id: str, kinds: tuple[str, ...], time_ns: int, state: State) -> None:
        line = self.lines.get(job_id)
        if line is None or line.ended:
            return
        if job_id not in state.jobs:
            self._close(line, time_ns)
        else:
            line.end(*kinds, time_ns=time_ns)
            self.changed[job_id] = None

    def _close(self, line: JobLine, time_ns: int) -> None:
        line.end(time_ns=time_ns)
        line.ended = True
        self.changed[line.job_id] = None
        self._ended[line.job_id] = None
        if len(self._ended) > ENDED_JOBS:
            oldest, _ = self._ended.popitem(last=False)
            self.lines.pop(oldest, None)
            self.changed[oldest] = None

    def _forget(self, job_id: str) -> None:
        self.lines.pop(job_id, None)
        self._ended.pop(job_id, None)
        self.changed[job_id] = None
