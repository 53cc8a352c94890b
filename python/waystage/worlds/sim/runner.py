"""The simulator as a world: every set of an experiment under every policy, in simulated time.

Arrives: an experiment.
Leaves: its results in the folder, whole or as far as they came; the same experiment gives the same bytes.
Must not know: how flows share links, what a policy decides.

Sets follow each other on one time line, in the order of the lab's, each with its own controller and links.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from waystage.experiment.checks import build_policy
from waystage.experiment.queue import Start, node_queue
from waystage.experiment.results import AloneRecord, Drops, JobRecord, RunResult
from waystage.experiment.schema import Experiment, Mix, PolicyChoice
from waystage.experiment.workload import JobRequest, jobs_of_set
from waystage.policies.base import Policy
from waystage.policies.null import Null
from waystage.task import Progress
from waystage.worlds.base import PolicyRun
from waystage.worlds.recorder import Watcher
from waystage.worlds.sim.applications import Applications
from waystage.worlds.sim.collective import Facts
from waystage.worlds.sim.control import Control, answers_limited
from waystage.worlds.sim.network import Network, PortCounts
from waystage.worlds.sim.one_job import Job
from waystage.worlds.sim.one_set import USE_EVERY_S, Agenda, SetRun
from waystage.worlds.sim.programs import SimParts
from waystage.worlds.sim.resources import Resources, aggregator_resource

NOTE = (
    "simulated: links are shared by max-min fairness, which TCP only approximates; switching times are those of "
    "the option sim.switch_over_s and were not measured"
)


COLLECT_AFTER = 100_000
"""Objects made before Python looks for cycles: a day makes hundreds of millions, and nearly all go by themselves."""


class SimWorld:
    """Raises WorldError where a policy fails or a program cannot be simulated; results so far are kept."""

    name = "sim"
    watcher: Watcher | None = None

    def run(self, experiment: Experiment, out: Path, progress: Progress) -> RunResult:
        run = _Run(experiment, out, progress)
        run.recorder.watcher = self.watcher
        young, *older = gc.get_threshold()
        gc.set_threshold(max(young, COLLECT_AFTER), *older)
        try:
            with answers_limited():
                return run.run()
        finally:
            gc.set_threshold(young, *older)


class _Run(PolicyRun):
    def __init__(self, experiment: Experiment, out: Path, progress: Progress) -> None:
        # No clock, no machine: nothing of the simulating computer is in the result.
        super().__init__("sim", experiment, out, progress, start_ns=0, notes=[NOTE])
        self._resources = Resources(experiment, self.topology)
        self._parts = SimParts(experiment.sim, experiment.lab.mpirun, self._resources)
        self._begin_s = 0.0

    def run(self) -> RunResult:
        jobs = self.experiment.jobs
        for kind in jobs.mixes or (Mix(name="job"),):
            self._parts.check(kind.compute or jobs.compute, kind.nodes or jobs.nodes)
        try:
            self.run_sets()
            self._run_alone()
        except KeyboardInterrupt:
            self.result.interrupted = True
            raise
        except Exception as error:
            self.result.failure = str(error)
            raise
        finally:
            self.save()
        return self.result

    def run_set(self, choice: PolicyChoice, number: int, jobs: Sequence[JobRequest]) -> bool:
        self.report(choice, number)
        self.recorder.begin(choice.shown, number)

        def done(job: Job, began_s: float) -> JobRecord:
            record = job.record(choice.shown, number, began_s)
            self.done(record)
            self.result.io += job.operations(choice.shown, number, began_s)
            return record

        policy = build_policy(choice, self.experiment, number)
        whole = self._simulate(f"{choice.shown}-{number + 1}", policy, choice.shown, number, jobs, done)
        self.recorder.finish()
        self.result.drops.append(Drops(policy=choice.shown, set=number))
        return whole

    def _run_alone(self) -> None:
        """Each kind of job that does collective I/O, without others and without a policy: what stretches are of."""
        jobs = jobs_of_set(self.experiment, self.topology, 0)
        kinds = {request.kind: request for request in reversed(jobs) if request.collective is not None}
        for kind, request in sorted(kinds.items()):
            records: list[AloneRecord] = []

            def done(
                job: Job, began_s: float, kind: str = kind, to: list[AloneRecord] = records
            ) -> JobRecord:
                record = job.record("", 0, began_s)
                io_s = sum(operation.io_s for operation in job.operations("", 0, began_s))
                to.append(AloneRecord(kind=kind, job_s=record.job_s, io_s=io_s))
                return record

            alone = msgspec.structs.replace(request, submit_s=0.0)
            self._simulate(f"alone-{kind}", Null(), "null", 0, (alone,), done, record=False)
            self.result.alone += records

    def _simulate(
        self,
        name: str,
        policy: Policy,
        shown: str,
        number: int,
        jobs: Sequence[JobRequest],
        done: Callable[[Job, float], JobRecord],
        *,
        record: bool = True,
    ) -> bool:
        experiment, begin_s = self.experiment, self._begin_s
        copies = experiment.copies if record else ()
        agenda = Agenda()
        # A node has one job at a time, and a job at most a staging for each node, or its I/O and a collective write.
        at_once = min(sum(request.nodes for request in jobs), len(self.topology.compute_hosts))
        flows = len(copies) + 2 * at_once
        speeds: dict[str, float | list[tuple[float, float]]] = {
            aggregator_resource(f"0/{name}-{request.index + 1}", node): 0.0
            for request in jobs
            if request.collective is not None
            for node in range(request.nodes)
        }
        network = Network(
            self.topology,
            experiment.sim.queue_s,
            mtu=experiment.sim.mtu,
            resources=self._resources.capacities | speeds,
            flows=flows,
        )
        applications = Applications(lambda: round((begin_s + agenda.now) * 1e9), agenda.later)
        control = Control(
            policy,
            shown=shown,
            source=name,
            switch_over_s=experiment.sim.switch_over_s,
            obey_s=experiment.sim.obey_s,
            now=lambda: begin_s + agenda.now,
            later=agenda.later,
            route=network.route,
            adjust=network.adjust,
            adjust_io=applications.adjust,
            grant_s=experiment.sim.grant_s,
            tell=self.recorder if record else lambda item: None,
        )
        control.start(self.topology, self._resources.facts())

        def make_job(request: JobRequest, start: Start) -> Job:
            return Job(
                request,
                start,
                self._parts,
                experiment.limits,
                notify_s=experiment.sim.notify_s,
                epoch_ns=round(begin_s * 1e9),
                now=lambda: agenda.now,
                tell=control.event,
                facts=Facts(self._resources, network, applications, f"{experiment.seed}/{number}"),
            )

        numbers = self.recorder.numbers(network.ports)

        def count(readings: Sequence[PortCounts], end_s: float) -> None:
            control.untold()
            parts = [(each.interval_ns, numbers[each.ports], each.by_class) for each in readings]
            self.recorder.count(parts, round((begin_s + end_s) * 1e9))

        whole = SetRun(
            agenda,
            network,
            node_queue(self.topology, experiment.jobs.placement, experiment.jobs.concurrent),
            make_job=make_job,
            done=lambda job: done(job, begin_s),
            use=control.event,
            stop_on_failure=experiment.limits.on_failure == "stop",
            second=applications.tick,
            part_s=(lambda: self.recorder.part_s) if record else (lambda: USE_EVERY_S),
            count=count if record and not (control.reads_rates or self.recorder.watcher) else None,
        ).run(
            [(f"{name}-{request.index + 1}", request) for request in jobs],
            [
                (copy.start_s, self._resources.copy(copy, at, f"{name}:{copy.name}"))
                for at, copy in enumerate(copies)
            ],
        )
        if record:
            self.result.notes += [note for note in network.problems if note not in self.result.notes]
            self._begin_s += agenda.now
        return whole
