"""The simulator as a world: every set of an experiment under every policy, in simulated time.

Arrives: an experiment.
Leaves: its results in the folder, whole or as far as they came; the same experiment gives the same bytes.
Must not know: how flows share links, what a policy decides.

Sets follow each other on one time line, in the order of the lab's, each with its own controller and links.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import waystage
from waystage.experiment import results
from waystage.experiment.checks import build_policy
from waystage.experiment.queue import Start, node_queue
from waystage.experiment.results import Drops, JobRecord, RunResult
from waystage.experiment.schema import Experiment, PolicyChoice
from waystage.experiment.workload import JobRequest, jobs_of_set
from waystage.interconnect.graphml import read_topology
from waystage.worlds.base import Progress
from waystage.worlds.recorder import Recorder
from waystage.worlds.sim.control import Control
from waystage.worlds.sim.network import Network
from waystage.worlds.sim.one_job import Job
from waystage.worlds.sim.one_set import Agenda, SetRun
from waystage.worlds.sim.programs import SimParts

NOTE = (
    "simulated: links are shared by max-min fairness, which TCP only approximates; switching times are those of "
    "the option sim.switch_over_s and were not measured"
)


class SimWorld:
    """Raises WorldError where a policy fails or a program cannot be simulated; results so far are kept."""

    name = "sim"

    def run(self, experiment: Experiment, out: Path, progress: Progress) -> RunResult:
        return _Run(experiment, out, progress).run()


class _Run:
    def __init__(self, experiment: Experiment, out: Path, progress: Progress) -> None:
        self._experiment, self._out, self._progress = experiment, out, progress
        self._topology = read_topology(experiment.topology)
        self._recorder = Recorder(self._topology, 0, experiment.measure.interval_s)
        self._parts = SimParts(experiment.sim, experiment.lab.mpirun)
        self._begin_s = 0.0
        self._total = experiment.sets * len(experiment.policies) * experiment.jobs.count
        # No clock, no machine: nothing of the simulating computer is in the result.
        self.result = RunResult(
            name=experiment.name,
            world="sim",
            experiment=experiment,
            waystage=waystage.__version__,
            notes=[NOTE],
        )

    def run(self) -> RunResult:
        jobs = self._experiment.jobs
        for compute in (jobs.compute, *(mix.compute for mix in jobs.mixes if mix.compute is not None)):
            self._parts.check(compute, jobs.nodes)
        try:
            self._sets()
        except KeyboardInterrupt:
            self.result.interrupted = True
            raise
        except Exception as error:
            self.result.failure = str(error)
            raise
        finally:
            self._save()
        return self.result

    def _sets(self) -> None:
        policies = self._experiment.policies
        for number in range(self._experiment.sets):
            jobs = jobs_of_set(self._experiment, self._topology, number)
            first = number % len(policies)
            for choice in (*policies[first:], *policies[:first]):
                if not self._set(choice, number, jobs):
                    self.result.notes.append(
                        f"set {number + 1} under {choice.shown} ended early at a failed job, as limits.on_failure says"
                    )

    def _set(self, choice: PolicyChoice, number: int, requests: Sequence[JobRequest]) -> bool:
        experiment, begin_s = self._experiment, self._begin_s
        name = f"{choice.shown}-{number + 1}"
        self._progress(
            f"set {number + 1} of {experiment.sets}, {choice.shown}", len(self.result.jobs) / self._total
        )
        self._recorder.begin(choice.shown, number)
        agenda, network = Agenda(), Network(self._topology, experiment.sim.queue_s)
        control = Control(
            build_policy(choice, experiment, number),
            shown=choice.shown,
            source=name,
            switch_over_s=experiment.sim.switch_over_s,
            now=lambda: begin_s + agenda.now,
            later=agenda.later,
            route=network.route,
            tell=self._recorder,
        )
        control.start(self._topology)

        def make_job(request: JobRequest, start: Start) -> Job:
            return Job(
                request,
                start,
                self._parts,
                experiment.limits,
                notify_s=experiment.sim.notify_s,
                now=lambda: agenda.now,
                tell=control.event,
            )

        def done(job: Job) -> JobRecord:
            record = job.record(choice.shown, number, begin_s)
            self.result.jobs.append(record)
            return record

        whole = SetRun(
            agenda,
            network,
            node_queue(self._topology, experiment.jobs.placement, experiment.jobs.concurrent),
            make_job=make_job,
            done=done,
            use=control.event,
            stop_on_failure=experiment.limits.on_failure == "stop",
        ).run([(f"{name}-{request.index + 1}", request) for request in requests])
        self._recorder.finish()
        self.result.drops.append(Drops(policy=choice.shown, set=number))
        self.result.notes += [note for note in network.problems if note not in self.result.notes]
        self._begin_s += agenda.now
        return whole

    def _save(self) -> None:
        self.result.switch_overs = list(self._recorder.switch_overs)
        self.result.notes += list(dict.fromkeys(self._recorder.problems))[:20]
        results.save(self._out, self.result, self._recorder.samples, self._recorder.events)
