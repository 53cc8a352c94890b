"""One job on the lab: stage-in, computation, stage-out, with the notifications around them.

Arrives: a job and its nodes.
Leaves: its record; the job's own faults (a crash, a hang, a full disk) are in the record, not raised.
Must not know: policies, controllers, other jobs.

The order is the paper's (Endo et al. 2020, section III.C): staging belongs to the job, so the job starts on its
nodes, stages in, computes, stages out and ends. Staging begins at once when it is notified; it does not wait
for the paths, which change while it runs (progressive switching, section IV.A.2).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from waystage.events import Direction
from waystage.experiment.queue import Start
from waystage.experiment.results import JobRecord
from waystage.experiment.schema import Limits
from waystage.experiment.workload import JobRequest
from waystage.jobs.notify import Notifier
from waystage.worlds.base import JobFailed, job_record


class Parts(Protocol):
    """How the world carries out the parts. Each raises JobFailed, also where `stop` is set meanwhile."""

    def prepare(self, request: JobRequest, start: Start) -> None: ...

    def stage(
        self, request: JobRequest, start: Start, direction: Direction, limit_s: float, stop: threading.Event
    ) -> None: ...

    def compute(self, request: JobRequest, start: Start, limit_s: float, stop: threading.Event) -> None: ...

    def io(self, request: JobRequest, start: Start, limit_s: float, stop: threading.Event) -> None: ...

    def clear(self, start: Start) -> None: ...


Phases = Callable[[JobRequest, Start, float, threading.Event], None]
"""Runs the program of a job with collective I/O within a limit, s. Raises JobFailed."""


class JobRun:
    """Callable as `one_set.RunJob`. `now` gives seconds since the start of the run.

    Where there are `phases`, they are called for jobs with collective I/O.
    """

    def __init__(
        self,
        parts: Parts,
        notifier: Notifier,
        limits: Limits,
        *,
        policy: str,
        set_index: int,
        set_began_s: float,
        now: Callable[[], float],
        phases: Phases | None = None,
    ) -> None:
        self._phases = phases
        self._parts = parts
        self._notifier = notifier
        self._limits = limits
        self._policy = policy
        self._set = set_index
        self._set_began_s = set_began_s
        self._now = now

    def __call__(self, request: JobRequest, start: Start, stop: threading.Event) -> JobRecord:
        took = {"in": 0.0, "compute": 0.0, "out": 0.0}
        cause = ""
        began = self._now()
        try:
            self._parts.prepare(request, start)
            began = self._now()
            self._run(request, start, stop, took)
        except JobFailed as failure:
            cause = str(failure)
        ended = self._now()
        self._parts.clear(start)
        submitted = self._set_began_s + request.submit_s
        run = {"policy": self._policy, "set": self._set, "submitted_at_s": submitted}
        return job_record(request, start, cause, (began, ended), took, **run)

    def _run(self, request: JobRequest, start: Start, stop: threading.Event, took: dict[str, float]) -> None:
        self._notifier.job_started(start.job_id, start.nodes)
        try:
            self._stage(request, start, "in", stop, took)
            self._compute(request, start, stop, took)
            self._stage(request, start, "out", stop, took)
        finally:
            # When the run is being ended, its controller may be gone: its answer is not waited for.
            if not stop.is_set():
                self._notifier.job_finished(start.job_id)

    def _stage(
        self,
        request: JobRequest,
        start: Start,
        direction: Direction,
        stop: threading.Event,
        took: dict[str, float],
    ) -> None:
        amount = request.amount(direction, len(start.nodes))
        if not amount:
            return
        self._notifier.staging_started(start.job_id, direction, bytes=amount)
        began = time.monotonic()
        try:
            self._parts.stage(request, start, direction, self._limits.staging_s, stop)
        finally:
            took[direction] = time.monotonic() - began
            if not stop.is_set():
                self._notifier.staging_finished(start.job_id, direction)

    def _compute(
        self, request: JobRequest, start: Start, stop: threading.Event, took: dict[str, float]
    ) -> None:
        began = time.monotonic()
        try:
            if request.collective is not None and self._phases is not None:
                self._phases(request, start, self._limits.compute_s, stop)
            elif request.io is None:
                self._parts.compute(request, start, self._limits.compute_s, stop)
            else:
                self._compute_beside_io(request, start, stop)
        finally:
            took["compute"] = time.monotonic() - began

    def _compute_beside_io(self, request: JobRequest, start: Start, stop: threading.Event) -> None:
        """The computation's time includes its I/O: it has ended when both have."""
        failures: list[JobFailed] = []

        def move() -> None:
            assert request.io is not None
            try:
                self._notifier.io_started(start.job_id, bytes=request.io.bytes)
                try:
                    self._parts.io(request, start, self._limits.compute_s, stop)
                finally:
                    if not stop.is_set():
                        self._notifier.io_finished(start.job_id)
            except JobFailed as failure:
                failures.append(failure)

        beside = threading.Thread(target=move, name=f"io of {start.job_id}")
        beside.start()
        try:
            self._parts.compute(request, start, self._limits.compute_s, stop)
        finally:
            beside.join()
        if failures:
            raise failures[0]
