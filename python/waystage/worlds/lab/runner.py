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
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from waystage.backplane import Backplane, BackplaneError
from waystage.events import EventError
from waystage.experiment import results
from waystage.experiment.checks import policy_options
from waystage.experiment.queue import node_queue
from waystage.experiment.results import Drops, JobRecord, RunResult
from waystage.experiment.schema import Experiment, PolicyChoice
from waystage.experiment.workload import JobRequest
from waystage.jobs.notify import Notifier
from waystage.machine import SHORT_OF_CPU_IDLE_PCT, CpuWatch, describe
from waystage.task import Progress
from waystage.worlds.base import PolicyRun, WorldError
from waystage.worlds.lab import counters
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
    "file_systems, wide_paths and copies are simulated only: in the lab stagings come from the storage node's memory, "
    "and no copy ran beside them"
)


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
        if experiment.file_systems or experiment.wide_paths or experiment.copies:
            self.result.notes.append(NOT_EMULATED)
        self._cpu = CpuWatch()

    def run(self) -> RunResult:
        options = self.experiment.lab
        lab = Lab(options.name, self.topology, host_bytes=options.tmpfs)
        self._progress("bringing the lab up", 0.0)
        lab.up()  # nothing is written where nothing ran: without root, or while another run holds the lab
        try:
            with contextlib.ExitStack() as stack:
                stack.callback(lab.down)
                stack.enter_context(StagingServices(lab))
                self._lab, self._parts = lab, LabParts(lab, options.mpirun)
                self._parts.build(self.computes)
                with self._cpu:
                    self.run_sets()
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
        lab, parts = self._lab, self._parts
        self.report(choice, number, "starting the controller")
        self.recorder.begin(choice.shown, number)
        before = counters.read(lab)
        control = ControlSession(
            lab,
            choice.name,
            policy_options(choice, self.experiment, number),
            name=f"{choice.shown}-{number + 1}",
        )
        with self._keeping(control), control, self._watching(control.backplane):
            self.recorder.wait_for_use_after(time.time_ns(), USE_LIMIT_S)
            began = self._now()
            jobs_of = self.experiment.jobs
            queue = node_queue(self.topology, jobs_of.placement, jobs_of.concurrent)
            run_job = JobRun(
                parts,
                Notifier(control.backplane, patience_s=CONFIRM_LIMIT_S),
                self.experiment.limits,
                policy=choice.shown,
                set_index=number,
                set_began_s=began,
                now=self._now,
            )
            jobs_done = 0

            def done(record: JobRecord) -> None:
                nonlocal jobs_done
                jobs_done += 1
                self.done(record)
                self.report(choice, number, f"{jobs_done} of {len(jobs)} jobs")

            def check() -> None:
                lab.check()
                control.check()

            self.report(choice, number, f"0 of {len(jobs)} jobs")
            whole = SetRun(
                jobs,
                queue,
                run_job,
                job_id=lambda job: f"{choice.shown}-{number + 1}-{job.index + 1}",
                stop_on_failure=self.experiment.limits.on_failure == "stop",
            ).run(done, check)
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
    def _watching(self, backplane: Backplane) -> Iterator[None]:
        """Record what is published while a set runs."""
        subscription = backplane.subscribe(None, self.recorder)
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
