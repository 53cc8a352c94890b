"""What a world is: a place in which one experiment file runs.

Arrives: a validated experiment and the policies to compare.
Leaves: results in one schema, whichever world ran it.
Must not know: how any one world works.

`sim` moves flows without bytes, `lab` moves bytes on an emulated cluster, `cluster` on the real one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import waystage
from waystage.experiment import results
from waystage.experiment.queue import Start
from waystage.experiment.results import JobRecord, RunResult
from waystage.experiment.schema import Compute, Experiment, PolicyChoice
from waystage.experiment.workload import JobRequest, jobs_of_set
from waystage.interconnect.graphml import read_topology
from waystage.task import Progress
from waystage.worlds.recorder import Recorder, Watcher


class WorldError(RuntimeError):
    """A world that cannot run the experiment here; the message says what is missing and how to get it."""


class Unfit(WorldError):
    """The experiment asks for what this world cannot do; the message says what to change in its file."""


class JobFailed(Exception):
    """A part of a job that did not work or did not end in time; the message is the cause a user reads."""


def job_record(
    request: JobRequest,
    start: Start,
    cause: str,
    times: tuple[float, float],
    took: Mapping[str, float],
    **run: Any,
) -> JobRecord:
    """The record of a job that ran from `times[0]` to `times[1]`; `run` holds `policy`, `set` and `submitted_at_s`."""
    return JobRecord(
        **run,
        index=request.index,
        job_id=start.job_id,
        kind=request.kind,
        nodes=start.nodes,
        storage=request.storage,
        started_at_s=times[0],
        ended_at_s=times[1],
        stage_in_s=took["in"],
        compute_s=took["compute"],
        stage_out_s=took["out"],
        status="failed" if cause else "done",
        cause=cause,
    )


class World(Protocol):
    """`run` must leave nothing behind, also when it raises or is interrupted. `watcher` sees comparisons of policies."""

    name: str
    watcher: Watcher | None

    def run(self, experiment: Experiment, out: Path, progress: Progress) -> RunResult: ...


class PolicyRun(ABC):
    """One run: every set under every policy. `result` grows as sets end, and is saved however the run ends.

    Policies alternate set by set and take turns at going first: what drifts on a machine drifts for all of them.
    """

    def __init__(
        self,
        world: str,
        experiment: Experiment,
        out: Path,
        progress: Progress,
        *,
        start_ns: int,
        **about: Any,
    ) -> None:
        self.experiment, self.out = experiment, out
        self.topology = read_topology(experiment.topology)
        self.recorder = Recorder(self.topology, start_ns, experiment.measure.interval_s)
        self._progress = progress
        self.begun: Callable[[Iterable[int]], Iterable[int]] = iter
        """Of the numbers of sets, those to run; a benchmark ends early so."""
        self._total = experiment.sets * len(experiment.policies) * experiment.jobs.count
        self.result = RunResult(
            name=experiment.name, world=world, experiment=experiment, waystage=waystage.__version__, **about
        )

    @abstractmethod
    def run_set(self, choice: PolicyChoice, number: int, jobs: Sequence[JobRequest]) -> bool:
        """Run one set; False where a failed job ended it early."""

    @property
    def computes(self) -> list[Compute]:
        """Every computation of the experiment."""
        jobs = self.experiment.jobs
        return [jobs.compute, *(mix.compute for mix in jobs.mixes if mix.compute is not None)]

    def run_sets(self) -> None:
        policies = self.experiment.policies
        begin = self.experiment.first_set
        for number in self.begun(range(begin, begin + self.experiment.sets)):
            jobs = jobs_of_set(self.experiment, self.topology, number)
            first = number % len(policies)
            for choice in (*policies[first:], *policies[:first]):
                if not self.run_set(choice, number, jobs):
                    self.result.notes.append(
                        f"set {number + 1} under {choice.shown} ended early at a failed job, as limits.on_failure says"
                    )

    def done(self, record: JobRecord) -> None:
        self.result.jobs.append(record)

    def report(self, choice: PolicyChoice, number: int, what: str = "") -> None:
        last = self.experiment.first_set + self.experiment.sets
        where = f"set {number + 1} of {last}, {choice.shown}"
        self._progress(f"{where}: {what}" if what else where, len(self.result.jobs) / self._total)

    def save(self) -> None:
        """Write the folder from what has been recorded."""
        self.result.switch_overs = list(self.recorder.switch_overs)
        self.result.notes += list(dict.fromkeys(self.recorder.problems))[:20]
        results.save(self.out, self.result, self.recorder.samples, self.recorder.events)
