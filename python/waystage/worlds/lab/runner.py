"""The lab as a world: runs an experiment on an emulated cluster, with real switches, MPI and files.

Arrives: an experiment.
Leaves: its results in the folder, complete or up to the interruption; nothing else on the machine.
Must not know: how namespaces, MPI and file transfers work, what a policy decides.

Policies alternate set by set, each set with its own controller, and take turns at going first: whatever
drifts on the machine drifts for all of them.
"""

from __future__ import annotations

import contextlib
import datetime
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from waystage.backplane import Backplane, BackplaneError
from waystage.events import Envelope, EventError
from waystage.experiment import results
from waystage.experiment.checks import policy_options
from waystage.experiment.queue import Start, node_queue
from waystage.experiment.results import AloneRecord, Drops, IoRecord, JobRecord, RunResult
from waystage.experiment.schema import Experiment, PolicyChoice
from waystage.experiment.workload import JobRequest, jobs_of_set
from waystage.jobs.notify import Notifier
from waystage.machine import SHORT_OF_CPU_IDLE_PCT, CpuWatch, describe
from waystage.task import Progress
from waystage.worlds.base import PolicyRun, WorldError
from waystage.worlds.lab import collective, counters
from waystage.worlds.lab.lab import Lab
from waystage.worlds.lab.one_job import JobRun
from waystage.worlds.lab.one_set import SetRun
from waystage.worlds.lab.parts import LabParts
from waystage.worlds.lab.session import ControlSession
from waystage.worlds.lab.staging import StagingServices

USE_LIMIT_S = 2.5
"""Before and after a set, for readings of the counters that enclose it: they are read once a second."""

TOLD_LATE_NS = 1_200_000_000
"""Open vSwitch's threads add a packet to the counters of its rules up to twice half a second later (max-revalidator)."""

CONFIRM_LIMIT_S = 30.0
"""How long a run that has taken minutes waits for a controller that lives and does not answer: one stall of a
busy machine must not end it."""

NOT_EMULATED = (
    "wide_paths, copies, and file_systems but those of collective I/O are simulated only: in the lab stagings come from "
    "the storage node's memory, and no copy ran beside them"
)

ALONE = "alone"
"""Of the controllers for jobs alone."""


class LabWorld:
    """`run` needs root. Raises WorldError where the lab cannot be brought up or dies; results so far are kept."""

    name = "lab"

    def run(self, experiment: Experiment, out: Path, progress: Progress) -> RunResult:
        return _Run(experiment, out, progress).run()


class _Run(PolicyRun):
    def __init__(self, experiment: Experiment, out: Path, progress: Progress) -> None:
        self._begin = time.monotonic()
        started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        super().__init__(
            "lab", experiment, out, progress, start_ns=time.time_ns(), started=started, machine=describe()
        )
        emulated = {what.file_system for what in collective.collectives(experiment)}
        others = {system.name for system in experiment.file_systems} - emulated
        if others or experiment.wide_paths or experiment.copies:
            self.result.notes.append(NOT_EMULATED)
        self._cpu = CpuWatch()

    def run(self) -> RunResult:
        collective.check(self.experiment)
        options = self.experiment.lab
        lab = Lab(options.name, self.topology, host_bytes=options.tmpfs)
        self._progress("bringing the lab up", 0.0)
        lab.up()  # nothing is written where nothing ran: without root, or while another run holds the lab
        try:
            with contextlib.ExitStack() as stack:
                stack.callback(lab.down)
                stack.enter_context(StagingServices(lab))
                points = stack.enter_context(collective.storage(lab, self.experiment))
                self._lab, self._parts = lab, LabParts(lab, options.mpirun)
                self._programs = collective.Programs(lab, points, options.mpirun)
                self._parts.build(self.computes, phases=bool(points))
                with self._cpu:
                    self.run_sets()
                    self._run_alone()
        except KeyboardInterrupt:
            self.result.interrupted = True
            raise
        except (BackplaneError, EventError) as error:
            self.result.failure = f"the lab's controller is out of reach: {error}"
            raise WorldError(self.result.failure) from None
        except Exception as error:
            self.result.failure = str(error)
            raise
        finally:
            self._finish()
        return self.result

    def run_set(self, choice: PolicyChoice, number: int, jobs: Sequence[JobRequest]) -> bool:
        lab = self._lab
        self.report(choice, number, "starting the controller")
        self.recorder.begin(choice.shown, number)
        before = counters.read(lab)
        name = f"{choice.shown}-{number + 1}"
        control = ControlSession(lab, choice.name, policy_options(choice, self.experiment, number), name=name)
        operations = collective.Operations()
        with self._keeping(control), control, self._watching(control.backplane, self.recorder, operations):
            self.recorder.wait_for_use_after(time.time_ns(), USE_LIMIT_S)
            jobs_done = 0

            def done(record: JobRecord) -> None:
                nonlocal jobs_done
                jobs_done += 1
                self.done(record)
                self.report(choice, number, f"{jobs_done} of {len(jobs)} jobs")

            self.report(choice, number, f"0 of {len(jobs)} jobs")
            io, shown = self.result.io.extend, choice.shown
            whole = self._run_jobs(control, jobs, name, operations, done, io, policy=shown, set_index=number)
            # Open vSwitch reports a packet's class with a delay: wait until all that the set sent has been counted.
            self.recorder.wait_for_use_after(time.time_ns() + TOLD_LATE_NS, USE_LIMIT_S + TOLD_LATE_NS / 1e9)
        after = counters.read(lab)
        self.result.drops.append(
            Drops(
                policy=choice.shown,
                set=number,
                cpu=after.cpu_drops - before.cpu_drops,
                queue=after.queue_drops - before.queue_drops,
            )
        )
        return whole

    def _run_jobs(
        self,
        control: ControlSession,
        jobs: Sequence[JobRequest],
        name: str,
        operations: collective.Operations,
        done: Callable[[JobRecord], None],
        did_io: Callable[[list[IoRecord]], None],
        *,
        policy: str,
        set_index: int,
    ) -> bool:
        """Run `jobs` under a controller; False where a failed job ended them early."""
        jobs_of = self.experiment.jobs

        def phases(request: JobRequest, start: Start, limit_s: float, stop: threading.Event) -> None:
            records = self._programs.run(request, start, limit_s, stop, operations)
            shift = self._now() - time.monotonic()
            run = {"policy": policy, "set": set_index}
            did_io(
                [
                    msgspec.structs.replace(record, requested_at_s=record.requested_at_s + shift, **run)
                    for record in records
                ]
            )

        run_job = JobRun(
            self._parts,
            Notifier(control.backplane, patience_s=CONFIRM_LIMIT_S),
            self.experiment.limits,
            policy=policy,
            set_index=set_index,
            set_began_s=self._now(),
            now=self._now,
            phases=phases,
        )

        def check() -> None:
            self._lab.check()
            control.check()

        return SetRun(
            jobs,
            node_queue(self.topology, jobs_of.placement, jobs_of.concurrent),
            run_job,
            job_id=lambda job: f"{name}-{job.index + 1}",
            stop_on_failure=self.experiment.limits.on_failure == "stop",
        ).run(done, check)

    def _run_alone(self) -> None:
        """Each kind of job that does collective I/O, without others and without a policy: what stretches are of."""
        requests = jobs_of_set(self.experiment, self.topology, 0)
        kinds = {request.kind: request for request in reversed(requests) if request.collective is not None}
        for kind, request in sorted(kinds.items()):
            self._progress(f"{kind} alone", 1.0)
            jobs: list[JobRecord] = []
            io: list[IoRecord] = []
            name, operations = f"{ALONE}-{kind}", collective.Operations()
            alone = msgspec.structs.replace(request, submit_s=0.0)
            control = ControlSession(self._lab, "null", {}, name=name)
            with self._keeping(control), control, self._watching(control.backplane, operations):
                self._run_jobs(
                    control, (alone,), name, operations, jobs.append, io.extend, policy="", set_index=0
                )
            if jobs and jobs[0].status == "done":
                io_s = sum(operation.io_s for operation in io)
                self.result.alone.append(AloneRecord(kind=kind, job_s=jobs[0].job_s, io_s=io_s))

    @contextlib.contextmanager
    def _keeping(self, control: ControlSession) -> Iterator[None]:
        """The controller's log outlives the lab: it says more than any message about what went wrong."""
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                folder = self.out / results.LOGS_FOLDER
                folder.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(control.log, folder / f"controller-{control.name}.log")

    @contextlib.contextmanager
    def _watching(self, backplane: Backplane, *watchers: Callable[[Envelope], None]) -> Iterator[None]:
        """Let each watcher hear what is published while a set runs."""

        def hear(item: Envelope) -> None:
            for watcher in watchers:
                watcher(item)

        subscription = backplane.subscribe(None, hear)
        try:
            yield
        finally:
            subscription.close()

    def _finish(self) -> None:
        result = self.result
        result.wall_s = time.monotonic() - self._begin
        result.idle_pct, result.lowest_idle_pct = self._cpu.idle_pct, self._cpu.lowest_idle_pct
        result.invalid = self._why_invalid()
        self.save()

    def _why_invalid(self) -> list[str]:
        reasons = list(dict.fromkeys(self.recorder.broken))
        if self._cpu.timeline and self._cpu.short_of_cpu:
            reasons.append(
                f"the machine was {self.result.idle_pct:.1f} % idle, below {SHORT_OF_CPU_IDLE_PCT:g} %: the processor "
                "was measured and not the network; run on a quieter machine, or with slower links"
            )
        dropped = sum(drops.cpu for drops in self.result.drops)
        if dropped:
            reasons.append(
                f"switches dropped {dropped} packets for want of processor time: run on a quieter machine, "
                "or with slower links"
            )
        return reasons

    def _now(self) -> float:
        return time.monotonic() - self._begin
