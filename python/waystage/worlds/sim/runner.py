"""The simulator as a world: every set of an experiment under every policy, in simulated time.

Arrives: an experiment.
Leaves: its results in the folder, whole or as far as they came; the same experiment gives the same bytes.
Must not know: how flows share links, what a policy decides.

Sets follow each other on one time line, in the order of the lab's, each with its own controller and links.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from waystage.experiment.checks import build_policy
from waystage.experiment.queue import Start, node_queue
from waystage.experiment.results import Drops, JobRecord, RunResult
from waystage.experiment.schema import Experiment, PolicyChoice
from waystage.experiment.workload import JobRequest
from waystage.task import Progress
from waystage.worlds.base import PolicyRun
from waystage.worlds.sim.control import Control
from waystage.worlds.sim.network import Network
from waystage.worlds.sim.one_job import Job
from waystage.worlds.sim.one_set import Agenda, SetRun
from waystage.worlds.sim.programs import SimParts
from waystage.worlds.sim.resources import Resources

NOTE = (
    "simulated: links are shared by max-min fairness, which TCP only approximates; switching times are those of "
    "the option sim.switch_over_s and were not measured"
)


class SimWorld:
    """Raises WorldError where a policy fails or a program cannot be simulated; results so far are kept."""

    name = "sim"

    def run(self, experiment: Experiment, out: Path, progress: Progress) -> RunResult:
        return _Run(experiment, out, progress).run()


class _Run(PolicyRun):
    def __init__(self, experiment: Experiment, out: Path, progress: Progress) -> None:
        # No clock, no machine: nothing of the simulating computer is in the result.
        super().__init__("sim", experiment, out, progress, start_ns=0, notes=[NOTE])
        self._resources = Resources(experiment, self.topology)
        self._parts = SimParts(experiment.sim, experiment.lab.mpirun, self._resources)
        self._begin_s = 0.0

    def run(self) -> RunResult:
        for compute in self.computes:
            self._parts.check(compute, self.experiment.jobs.nodes)
        try:
            self.run_sets()
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
        experiment, begin_s = self.experiment, self._begin_s
        name = f"{choice.shown}-{number + 1}"
        self.report(choice, number)
        self.recorder.begin(choice.shown, number)
        agenda = Agenda()
        flows = len(experiment.copies) + 2 * sum(request.nodes for request in jobs)
        network = Network(
            self.topology,
            experiment.sim.queue_s,
            mtu=experiment.sim.mtu,
            resources=self._resources.capacities,
            flows=flows,
        )
        control = Control(
            build_policy(choice, experiment, number),
            shown=choice.shown,
            source=name,
            switch_over_s=experiment.sim.switch_over_s,
            obey_s=experiment.sim.obey_s,
            now=lambda: begin_s + agenda.now,
            later=agenda.later,
            route=network.route,
            adjust=network.adjust,
            tell=self.recorder,
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
            )

        def done(job: Job) -> JobRecord:
            record = job.record(choice.shown, number, begin_s)
            self.done(record)
            return record

        whole = SetRun(
            agenda,
            network,
            node_queue(self.topology, experiment.jobs.placement, experiment.jobs.concurrent),
            make_job=make_job,
            done=done,
            use=control.event,
            stop_on_failure=experiment.limits.on_failure == "stop",
        ).run(
            [(f"{name}-{request.index + 1}", request) for request in jobs],
            [
                (copy.start_s, self._resources.copy(copy, at, f"{name}:{copy.name}"))
                for at, copy in enumerate(experiment.copies)
            ],
        )
        self.recorder.finish()
        self.result.drops.append(Drops(policy=choice.shown, set=number))
        self.result.notes += [note for note in network.problems if note not in self.result.notes]
        self._begin_s += agenda.now
        return whole
