"""A cluster as a world: runs an experiment through Slurm, under live controllers.

Arrives: an experiment; the Slurm of SLURM_CONF, which may be a lab's.
Leaves: its results in the folder, in the lab's format; no job in Slurm.
Must not know: how jobs do their parts, what a policy decides.

Jobs are submitted by sbatch; their starts and ends reach the controller from Slurm's hooks. The nodes are those of the
experiment's placement, so that results can be compared with those of the other worlds, or Slurm's choice. Policies
alternate set by set. In a lab each set has its own controller; elsewhere the controller is the site's, and the
option `cluster.set_policy` makes it use a policy.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from waystage.backplane import Backplane
from waystage.experiment.queue import Start
from waystage.experiment.results import IoRecord, JobRecord, RunResult
from waystage.experiment.schema import Experiment, PolicyChoice
from waystage.experiment.workload import JobRequest
from waystage.machine import describe
from waystage.slurm import commands
from waystage.slurm.errors import SlurmError, SlurmMissing
from waystage.task import Progress
from waystage.worlds.base import JobFailed, Unfit, WorldError, job_record
from waystage.worlds.cluster import submission
from waystage.worlds.cluster.controllers import connection
from waystage.worlds.cluster.lab_site import lab_of
from waystage.worlds.cluster.order import JobOrder
from waystage.worlds.lab import collective
from waystage.worlds.live import TOLD_LATE_NS, USE_LIMIT_S, LiveRun, watching
from waystage.worlds.recorder import Watcher

FOLDER = "slurm"
"""In the folder of results: orders, records and output of the jobs."""


class ClusterWorld:
    """`run` raises WorldError where Slurm or the controller does not answer; results so far are kept."""

    name = "cluster"
    watcher: Watcher | None = None

    def run(self, experiment: Experiment, out: Path, progress: Progress) -> RunResult:
        run = _Run(experiment, out, progress)
        run.recorder.watcher = self.watcher
        return run.run()


class _Run(LiveRun):
    def __init__(self, experiment: Experiment, out: Path, progress: Progress) -> None:
        self._lab = lab_of(os.environ.get("SLURM_CONF", ""))
        # Elsewhere the machine of the command is none of those that ran the jobs.
        self.measures_here = self._lab is not None
        machine = describe() if self.measures_here else {}
        super().__init__("cluster", experiment, out.absolute(), progress, machine=machine)
        self._options = experiment.cluster
        self._enter = submission.Prefix(self._lab.enter if self._lab is not None else ())

    def prepare(self) -> None:
        self._check()
        (self.out / FOLDER).mkdir(parents=True, exist_ok=True)

    @contextlib.contextmanager
    def place(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            if self._lab is not None:
                stack.enter_context(self._lab)
                stack.enter_context(self._lab.file_systems(self.experiment))
            yield

    def run_all(self) -> None:
        try:
            self.run_sets()
            self._run_alone()
        except SlurmError as error:
            raise WorldError(str(error)) from None

    def _run_alone(self) -> None:
        """Under a controller without a policy where this can be had, else under the site's."""
        lone = self.lone_jobs()
        if not lone:
            return
        choice, operations = PolicyChoice(name="null"), collective.Operations()
        with self._controller(choice, -1) as backplane, watching(backplane, operations):
            for request in lone:
                self._progress(f"{request.kind} alone", 1.0)
                jobs: list[JobRecord] = []
                io: list[IoRecord] = []

                def run_job(request: JobRequest, start: Start, stop: threading.Event) -> JobRecord:
                    return self._job(request, start, stop, choice, 0, time.time(), operations, io)  # noqa: B023

                self.run_jobs((request,), run_job, f"alone-{request.kind}", jobs.append, self._still_there)
                self.ran_alone(jobs, io)

    def run_set(self, choice: PolicyChoice, number: int, jobs: Sequence[JobRequest]) -> bool:
        self.report(choice, number, "preparing the controller")
        self.recorder.begin(choice.shown, number, live=True)
        operations = collective.Operations()
        with self._controller(choice, number) as backplane, watching(backplane, self.recorder, operations):
            self.recorder.wait_for_use_after(time.time_ns(), USE_LIMIT_S)
            began = time.time()

            def run_job(request: JobRequest, start: Start, stop: threading.Event) -> JobRecord:
                return self._job(request, start, stop, choice, number, began, operations, self.result.io)

            done = self.counting(choice, number, len(jobs))
            whole = self.run_jobs(jobs, run_job, f"{choice.shown}-{number + 1}", done, self._still_there)
            self.recorder.wait_for_use_after(time.time_ns() + TOLD_LATE_NS, USE_LIMIT_S + TOLD_LATE_NS / 1e9)
        return whole

    def _job(
        self,
        request: JobRequest,
        start: Start,
        stop: threading.Event,
        choice: PolicyChoice,
        number: int,
        began: float,
        operations: collective.Operations,
        io: list[IoRecord],
    ) -> JobRecord:
        """Submit one job and wait for it; its own faults are in the record. Its collective I/O is added to `io`."""
        order = JobOrder(
            request=request,
            nodes=start.nodes if self._options.placement == "file" else (),
            options=self._options,
            mpirun=self._options.mpirun if self._options.mpirun is not None else self.experiment.lab.mpirun,
            limits=self.experiment.limits,
            policy=choice.shown,
            set_index=number,
            endpoint=self._lab.endpoint if self._lab is not None else os.environ.get("WAYSTAGE_ENDPOINT", ""),
            lab=self._lab.name if self._lab is not None else "",
        )
        folder = self.out / FOLDER
        submitted = began + request.submit_s - self.begin_s
        job_id = ""
        try:
            job_id = submission.submit(order, folder, start.job_id, self._enter)
            done = submission.wait(job_id, folder / f"{start.job_id}.record.json", self._enter, stop)
        except JobFailed as failure:
            if job_id:
                submission.cancel(job_id, self._enter)
            now = time.time() - self.begin_s
            times, took = (now, now), {"in": 0.0, "compute": 0.0, "out": 0.0}
            return job_record(
                request,
                start,
                str(failure),
                times,
                took,
                policy=choice.shown,
                set=number,
                submitted_at_s=submitted,
            )
        record = done.record
        for one in operations.records(done.operations, request, record.job_id, self.begin_s):
            io.append(msgspec.structs.replace(one, policy=choice.shown, set=number))
        return msgspec.structs.replace(
            record,
            submitted_at_s=submitted,
            started_at_s=record.started_at_s - self.begin_s,
            ended_at_s=record.ended_at_s - self.begin_s,
        )

    @contextlib.contextmanager
    def _controller(self, choice: PolicyChoice, number: int) -> Iterator[Backplane]:
        """A session to a controller that uses this policy."""
        if self._lab is not None:
            with self._lab.controller(choice, self.experiment, number) as backplane:
                yield backplane
            return
        if self._options.set_policy:
            commands.run([*self._options.set_policy, choice.name])
        with Backplane.open(connection(self._options, "cluster-runner")) as backplane:
            yield backplane

    def _still_there(self) -> None:
        if self._lab is not None:
            self._lab.check()

    def _check(self) -> None:
        """Raises WorldError where Slurm does not answer, Unfit where the experiment asks for what it lacks."""
        try:
            nodes = submission.nodes_of(self._enter)
        except SlurmMissing as error:
            raise WorldError(str(error)) from None
        except SlurmError as error:
            raise WorldError(f"Slurm does not answer: {error}; set SLURM_CONF, or use --on lab") from None
        computing = {host.name for host in self.topology.hosts if host.role != "storage"}
        if self._options.placement == "file" and not computing <= nodes:
            missing = ", ".join(sorted(computing - nodes)[:5])
            raise Unfit(
                f"Slurm has no node {missing}, which topology {self.topology.name} has: choose the cluster's topology, "
                "or leave nodes to Slurm with cluster: {placement: slurm}"
            )
        if self._lab is not None:
            collective.check(self.experiment)
            return
        for what in collective.collectives(self.experiment):
            if what.slow or what.noise:
                raise Unfit(
                    "collective.slow and collective.noise: a cluster's aggregators are as they are; use --on lab or "
                    "--on sim, or leave them out"
                )
        if len(self.experiment.policies) > 1 and not self._options.set_policy:
            raise Unfit(
                "the running controller has one policy: name one with --policy, or give the command that changes it "
                "as cluster: {set_policy: [COMMAND]}"
            )
        if self._options.storage_dir is None:
            raise Unfit(
                "cluster: {storage_dir: DIRECTORY} is missing: a directory that every node sees, for staging"
            )
