"""One set of jobs on the lab: submissions in time, each job in its own thread.

Arrives: the jobs of the set, a queue that gives nodes, a function that runs one job.
Leaves: a record a job.
Must not know: MPI, file transfers, controllers.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from waystage.experiment.queue import Queue, Start
from waystage.experiment.results import JobRecord
from waystage.experiment.workload import JobRequest

CHECK_S = 0.5
"""Interval at which controller and switches are checked."""


class RunJob(Protocol):
    """Runs one job to its end and returns its record; never raises for what the job itself does wrong."""

    def __call__(self, request: JobRequest, start: Start, stop: threading.Event) -> JobRecord: ...


class SetRun:
    """`done` is called in the caller's thread with each record; `check` may raise to end the set."""

    def __init__(
        self,
        jobs: Sequence[JobRequest],
        jobs_queue: Queue[str, str],
        run_job: RunJob,
        *,
        job_id: Callable[[JobRequest], str],
        stop_on_failure: bool,
    ) -> None:
        self._jobs = {job_id(job): job for job in jobs}
        self._queue = jobs_queue
        self._run_job = run_job
        self._stop_on_failure = stop_on_failure
        self._stop = threading.Event()
        self._ended: queue.SimpleQueue[tuple[str, JobRecord | BaseException]] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def run(self, done: Callable[[JobRecord], None], check: Callable[[], None]) -> bool:
        """Run the set; False where a failed job ended it early.

        However it ends, no job's thread is left behind.
        """
        try:
            return self._loop(done, check)
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join()

    def _loop(self, done: Callable[[JobRecord], None], check: Callable[[], None]) -> bool:
        begin = time.monotonic()
        coming = sorted(self._jobs.items(), key=lambda entry: (entry[1].submit_s, entry[1].index))
        left = len(coming)
        while left:
            now = time.monotonic() - begin
            while coming and coming[0][1].submit_s <= now:
                job_id, request = coming.pop(0)
                self._queue.submit(job_id, request.nodes)
                self._launch()
            wait = min(CHECK_S, coming[0][1].submit_s - now) if coming else CHECK_S
            try:
                job_id, outcome = self._ended.get(timeout=max(0.0, wait))
            except queue.Empty:
                check()
                continue
            if isinstance(outcome, BaseException):
                raise outcome
            left -= 1
            done(outcome)
            if outcome.status == "failed":
                check()  # a dead controller or switch is the better explanation
                if self._stop_on_failure:
                    return False
            self._queue.finish(job_id)
            self._launch()
        return True

    def _launch(self) -> None:
        for start in self._queue.starts():
            thread = threading.Thread(target=self._one, args=(start,), name=f"job {start.job_id}")
            self._threads.append(thread)
            thread.start()

    def _one(self, start: Start) -> None:
        try:
            record: JobRecord | BaseException = self._run_job(self._jobs[start.job_id], start, self._stop)
        except BaseException as error:
            record = error
        self._ended.put((start.job_id, record))
