"""A run in real time: what the lab and a cluster have in common, whose jobs move bytes under live controllers.

Arrives: an experiment; from the world, its place, a controller for each set and a function that runs one job.
Leaves: results in the folder, complete or up to the interruption, and why they may not be valid.
Must not know: namespaces, Slurm, how jobs do their parts, what a policy decides.
"""

from __future__ import annotations

import contextlib
import datetime
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from waystage.backplane import Backplane, BackplaneError
from waystage.events import Envelope, EventError
from waystage.experiment.queue import node_queue
from waystage.experiment.results import AloneRecord, IoRecord, JobRecord, RunResult
from waystage.experiment.schema import Experiment, PolicyChoice
from waystage.experiment.workload import JobRequest, jobs_of_set
from waystage.machine import SHORT_OF_CPU_IDLE_PCT, CpuWatch
from waystage.task import Progress
from waystage.worlds.base import PolicyRun, WorldError
from waystage.worlds.lab.one_set import RunJob, SetRun

USE_LIMIT_S = 2.5
"""Before and after a set, for readings of the counters that enclose it: they are read once a second."""

TOLD_LATE_NS = 1_200_000_000
"""Open vSwitch's threads add a packet to the counters of its rules up to twice half a second later (max-revalidator)."""


class LiveRun(PolicyRun):
    """`measures_here`: whether this machine runs the jobs, so that its processor may spoil what is measured."""

    measures_here = True

    def __init__(
        self, world: str, experiment: Experiment, out: Path, progress: Progress, *, machine: Any
    ) -> None:
        self._begin, start_ns = time.monotonic(), time.time_ns()
        self.begin_s = start_ns / 1e9
        started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        super().__init__(
            world, experiment, out, progress, start_ns=start_ns, started=started, machine=machine
        )
        self._cpu = CpuWatch()

    @abstractmethod
    def prepare(self) -> None:
        """Check and bring up what the run needs. Nothing is written where it raises."""

    @abstractmethod
    def place(self) -> contextlib.AbstractContextManager[object]:
        """Where the sets run; entered after `prepare`, and left however they end."""

    def run_all(self) -> None:
        self.run_sets()

    def why_invalid(self) -> list[str]:
        """Further reasons why the result is not valid."""
        return []

    def run(self) -> RunResult:
        """Raises WorldError; what was measured until then is in the folder."""
        self.prepare()
        try:
            with self.place(), self._cpu:
                self.run_all()
        except KeyboardInterrupt:
            self.result.interrupted = True
            raise
        except (BackplaneError, EventError) as error:
            self.result.failure = f"the controller of the {self.result.world} is out of reach: {error}"
            raise WorldError(self.result.failure) from None
        except Exception as error:
            self.result.failure = str(error)
            raise
        finally:
            self._finish()
        return self.result

    def now(self) -> float:
        """Seconds since the start of the run."""
        return time.monotonic() - self._begin

    def counting(self, choice: PolicyChoice, number: int, total: int) -> Callable[[JobRecord], None]:
        """Keeps the records of a set's jobs, and says how many have ended."""
        ended = 0
        self.report(choice, number, f"0 of {total} jobs")

        def done(record: JobRecord) -> None:
            nonlocal ended
            ended += 1
            self.done(record)
            self.report(choice, number, f"{ended} of {total} jobs")

        return done

    def run_jobs(
        self,
        jobs: Sequence[JobRequest],
        run_job: RunJob,
        name: str,
        done: Callable[[JobRecord], None],
        check: Callable[[], None],
    ) -> bool:
        """Run the jobs of a set in the experiment's queue; False where a failed job ended it early."""
        jobs_of = self.experiment.jobs
        return SetRun(
            jobs,
            node_queue(self.topology, jobs_of.placement, jobs_of.concurrent),
            run_job,
            job_id=lambda job: f"{name}-{job.index + 1}",
            stop_on_failure=self.experiment.limits.on_failure == "stop",
        ).run(done, check)

    def lone_jobs(self) -> list[JobRequest]:
        """One job of each kind that does collective I/O, to be run without others: what stretches are of."""
        requests = jobs_of_set(self.experiment, self.topology, 0)
        kinds = {request.kind: request for request in reversed(requests) if request.collective is not None}
        return [msgspec.structs.replace(request, submit_s=0.0) for _, request in sorted(kinds.items())]

    def ran_alone(self, jobs: Sequence[JobRecord], io: Sequence[IoRecord]) -> None:
        """Keep what one of `lone_jobs` took."""
        if jobs and jobs[0].status == "done":
            io_s = sum(operation.io_s for operation in io)
            self.result.alone.append(AloneRecord(kind=jobs[0].kind, job_s=jobs[0].job_s, io_s=io_s))

    def _finish(self) -> None:
        result = self.result
        result.wall_s = self.now()
        result.invalid = [*dict.fromkeys(self.recorder.broken), *self._why_processor(), *self.why_invalid()]
        self.save()

    def _why_processor(self) -> list[str]:
        if not self.measures_here:
            return []
        result = self.result
        result.idle_pct, result.lowest_idle_pct = self._cpu.idle_pct, self._cpu.lowest_idle_pct
        if not self._cpu.timeline or not self._cpu.short_of_cpu:
            return []
        return [
            f"the machine was {result.idle_pct:.1f} % idle, below {SHORT_OF_CPU_IDLE_PCT:g} %: the processor "
            "was measured and not the network; run on a quieter machine, or with slower links"
        ]


@contextlib.contextmanager
def watching(backplane: Backplane, *watchers: Callable[[Envelope], None]) -> Iterator[None]:
    """Inside, each watcher hears what is published."""

    def hear(item: Envelope) -> None:
        for watcher in watchers:
            watcher(item)

    subscription = backplane.subscribe(None, hear)
    try:
        yield
    finally:
        subscription.close()
