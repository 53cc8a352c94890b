"""The lab as a world: runs an experiment on an emulated cluster, with real switches, MPI and files.

Arrives: an experiment.
Leaves: its results in the folder, complete or up to the interruption; nothing else on the machine.
Must not know: how namespaces, MPI and file transfers work, what a policy decides.

Policies alternate set by set, each set with its own controller, and take turns at going first: whatever
drifts on the machine drifts for all of them.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from waystage.experiment import results
from waystage.experiment.checks import policy_options
from waystage.experiment.queue import Start
from waystage.experiment.results import Drops, IoRecord, JobRecord, RunResult
from waystage.experiment.schema import Experiment, PolicyChoice
from waystage.experiment.workload import JobRequest
from waystage.jobs.notify import Notifier
from waystage.machine import describe
from waystage.task import Progress
from waystage.worlds.lab import collective, counters
from waystage.worlds.lab.lab import Lab
from waystage.worlds.lab.one_job import JobRun
from waystage.worlds.lab.parts import LabParts
from waystage.worlds.lab.session import ControlSession
from waystage.worlds.lab.staging import StagingServices
from waystage.worlds.lab.tag_service import tag_service
from waystage.worlds.live import TOLD_LATE_NS, USE_LIMIT_S, LiveRun, watching
from waystage.worlds.recorder import Watcher

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
    watcher: Watcher | None = None

    def __init__(self, begun: Callable[[Iterable[int]], Iterable[int]] = iter) -> None:
        """`begun` gives, of the numbers of sets, those to run: a benchmark with a time limit ends early so."""
        self._begun = begun

    def run(self, experiment: Experiment, out: Path, progress: Progress) -> RunResult:
        run = _Run(experiment, out, progress)
        run.begun = self._begun
        run.recorder.watcher = self.watcher
        return run.run()


class _Run(LiveRun):
    def __init__(self, experiment: Experiment, out: Path, progress: Progress) -> None:
        super().__init__("lab", experiment, out, progress, machine=describe())
        emulated = {what.file_system for what in collective.collectives(experiment)}
        others = {system.name for system in experiment.file_systems} - emulated
        if others or experiment.wide_paths or experiment.copies:
            self.result.notes.append(NOT_EMULATED)
        options = experiment.lab
        self._lab = Lab(options.name, self.topology, host_bytes=options.tmpfs)

    def prepare(self) -> None:
        collective.check(self.experiment)
        self._progress("bringing the lab up", 0.0)
        self._lab.up()  # raises without root, or while another run holds the lab

    @contextlib.contextmanager
    def place(self) -> Iterator[None]:
        lab, options = self._lab, self.experiment.lab
        with contextlib.ExitStack() as stack:
            stack.callback(lab.down)
            stack.enter_context(StagingServices(lab))
            stack.enter_context(collective.storage(lab, self.experiment))
            if any(compute.tags for compute in self.computes):
                stack.enter_context(tag_service(lab))
            self._parts = LabParts(lab, options.mpirun)
            self._programs = collective.Programs(lab, options.mpirun)
            self._parts.build(self.computes, phases=bool(collective.collectives(self.experiment)))
            yield

    def run_all(self) -> None:
        self.run_sets()
        self._run_alone()

    def run_set(self, choice: PolicyChoice, number: int, jobs: Sequence[JobRequest]) -> bool:
        lab = self._lab
        self.report(choice, number, "starting the controller")
        self.recorder.begin(choice.shown, number, live=True)
        before = counters.read(lab)
        name = f"{choice.shown}-{number + 1}"
        control = ControlSession(lab, choice.name, policy_options(choice, self.experiment, number), name=name)
        operations = collective.Operations()
        with self._keeping(control), control, watching(control.backplane, self.recorder, operations):
            self.recorder.wait_for_use_after(time.time_ns(), USE_LIMIT_S)
            done = self.counting(choice, number, len(jobs))
            io, shown = self.result.io.extend, choice.shown
            whole = self._run_under(control, jobs, name, operations, done, io, policy=shown, set_index=number)
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

    def _run_under(
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

        def phases(request: JobRequest, start: Start, limit_s: float, stop: threading.Event) -> None:
            found = self._programs.run(request, start, limit_s, stop)
            records = operations.records(found, request, start.job_id, self.begin_s)
            did_io([msgspec.structs.replace(record, policy=policy, set=set_index) for record in records])

        run_job = JobRun(
            self._parts,
            Notifier(control.backplane, patience_s=CONFIRM_LIMIT_S),
            self.experiment.limits,
            policy=policy,
            set_index=set_index,
            set_began_s=self.now(),
            now=self.now,
            phases=phases,
        )

        def check() -> None:
            self._lab.check()
            control.check()

        return self.run_jobs(jobs, run_job, name, done, check)

    def _run_alone(self) -> None:
        """Each kind of job that does collective I/O, without others and without a policy: what stretches are of."""
        for request in self.lone_jobs():
            self._progress(f"{request.kind} alone", 1.0)
            jobs: list[JobRecord] = []
            io: list[IoRecord] = []
            name, operations = f"{ALONE}-{request.kind}", collective.Operations()
            control = ControlSession(self._lab, "null", {}, name=name)
            with self._keeping(control), control, watching(control.backplane, operations):
                self._run_under(
                    control, (request,), name, operations, jobs.append, io.extend, policy="", set_index=0
                )
            self.ran_alone(jobs, io)

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

    def why_invalid(self) -> list[str]:
        dropped = sum(drops.cpu for drops in self.result.drops)
        if not dropped:
            return []
        return [
            f"switches dropped {dropped} packets for want of processor time: run on a quieter machine, "
            "or with slower links"
        ]
