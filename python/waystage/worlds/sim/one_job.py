"""One simulated job: stage-in, computation, stage-out, with the notifications around them.

Arrives: a job and its nodes.
Leaves: its record; meanwhile, as a generator, what it waits for.
Must not know: how flows share links, policies, other jobs.

The order is that of the lab's jobs (section III.C of the link-separation paper): the job starts on its nodes, stages in,
computes, stages out and ends. Staging begins at once when it is notified and does not wait for paths.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from waystage.events import (
    CollectiveDeclared,
    Direction,
    Event,
    IoFinished,
    IoStarted,
    JobFinished,
    JobStarted,
    MpiProgramFinished,
    MpiRanksReported,
    StagingFinished,
    StagingStarted,
)
from waystage.experiment.queue import Start
from waystage.experiment.results import IoRecord, JobRecord
from waystage.experiment.schema import Compute, Limits
from waystage.experiment.workload import JobRequest
from waystage.worlds.base import JobFailed, job_record
from waystage.worlds.sim.collective import Facts, Phases
from waystage.worlds.sim.programs import Program
from waystage.worlds.sim.resources import Flow
from waystage.worlds.sim.waits import Pause, Run, Waits

AGENT = "sim"
"""Of all ranks."""


class Parts(Protocol):
    """What the parts of a job send; how long a first collective waits for its paths."""

    @property
    def switch_over_s(self) -> float: ...

    def stage(self, request: JobRequest, start: Start, direction: Direction) -> tuple[Flow, ...]: ...

    def compute(self, request: JobRequest, start: Start) -> Program: ...

    def declared(self, compute: Compute) -> list[tuple[str, str, int]]: ...

    def io(self, request: JobRequest, start: Start) -> Flow: ...


class Job:
    """Iterate `run`, answering each wait; then `record` is there. Events count their times from `epoch_ns`."""

    def __init__(
        self,
        request: JobRequest,
        start: Start,
        parts: Parts,
        limits: Limits,
        *,
        notify_s: float,
        epoch_ns: int,
        now: Callable[[], float],
        tell: Callable[[Event], None],
        facts: Facts,
    ) -> None:
        self._request, self._start, self._parts, self._limits = request, start, parts, limits
        self._notify_s = notify_s
        self._epoch_ns = epoch_ns
        self._now, self._tell = now, tell
        self._took = {"in": 0.0, "compute": 0.0, "out": 0.0}
        self._began = self._ended = now()
        self._cause = ""
        self._facts = facts
        self._io: list[IoRecord] = []

    def run(self) -> Waits:
        job_id = self._start.job_id
        yield from self._notify(JobStarted(job_id=job_id, nodes=self._start.nodes))
        try:
            yield from self._stage("in")
            yield from self._wait_until_due()
            yield from self._write_in_phases() if self._request.collective else self._compute()
            yield from self._stage("out")
        except JobFailed as failure:
            self._cause = str(failure)
        yield from self._notify(JobFinished(job_id=job_id))
        self._ended = self._now()

    def record(self, policy: str, set_index: int, began_s: float) -> JobRecord:
        """The job's record; the set began `began_s` after the run."""
        times = began_s + self._began, began_s + self._ended
        run = {"policy": policy, "set": set_index, "submitted_at_s": began_s + self._request.submit_s}
        return job_record(self._request, self._start, self._cause, times, self._took, **run)

    def operations(self, policy: str, set_index: int, began_s: float) -> list[IoRecord]:
        """Records of its collective operations."""
        return [
            msgspec.structs.replace(
                record,
                policy=policy,
                set=set_index,
                index=self._request.index,
                requested_at_s=began_s + record.requested_at_s,
            )
            for record in self._io
        ]

    def _notify(self, event: Event) -> Waits:
        """The notifier waits for the controller's word that it has the event."""
        self._tell(event)
        if self._notify_s:
            yield Pause(self._notify_s)

    def _stage(self, direction: Direction) -> Waits:
        request, job_id = self._request, self._start.job_id
        amount = request.amount(direction, len(self._start.nodes))
        if not amount:
            return
        due_ns = round((self._began + request.due_s) * 1e9) if request.due_s and direction == "in" else 0
        if due_ns:
            due_ns += self._epoch_ns
        yield from self._notify(
            StagingStarted(job_id=job_id, direction=direction, bytes=amount, due_ns=due_ns)
        )
        began = self._now()
        programs = self._parts.stage(request, self._start, direction)
        whole = yield Run(programs, self._limits.staging_s)
        self._took[direction] = self._now() - began
        yield from self._notify(StagingFinished(job_id=job_id, direction=direction))
        if not whole:
            raise JobFailed(_late(f"stage-{direction} of job {job_id}", self._limits.staging_s))

    def _wait_until_due(self) -> Waits:
        """A job whose turn has not come does not compute, though its data is there."""
        left_s = self._began + self._request.due_s - self._now()
        if left_s > 0:
            yield Pause(left_s)

    def _write_in_phases(self) -> Waits:
        """A program that computes and writes in phases, with control points around each write."""
        what, job_id, facts = self._request.collective, self._start.job_id, self._facts
        assert what is not None
        began = self._now()
        phases = Phases(
            what,
            job_id,
            self._start.nodes,
            storage=facts.storage,
            links=facts.links,
            applications=facts.applications,
            now=self._now,
            tell=self._tell,
            limit_s=self._limits.compute_s,
            seed=f"{facts.seed}/{self._request.index}",
        )
        yield from phases.run()
        self._io = phases.records
        self._took["compute"] = self._now() - began
        if phases.failed:
            raise JobFailed(_late(f"a collective write of job {job_id}", self._limits.compute_s))

    def _declare(self) -> Waits:
        """Ranks report where they are, and declare their collectives; the first call of each waits for its paths."""
        compute, job_id = self._request.compute, self._start.job_id
        if not compute.paths:
            return
        app, each = f"0/{job_id}", compute.processes_per_node
        size = each * len(self._start.nodes)
        for at, node in enumerate(self._start.nodes):
            ranks = tuple(range(at * each, (at + 1) * each))
            self._tell(
                MpiRanksReported(app=app, agent=AGENT, host=node, ranks=ranks, size=size, job_id=job_id)
            )
        for number, (primitive, algorithm, root) in enumerate(self._parts.declared(compute)):
            self._tell(
                CollectiveDeclared(
                    app=app,
                    agent=AGENT,
                    key=f"{number:016x}",
                    primitive=primitive,
                    algorithm=algorithm,
                    bytes=compute.message,
                    root=root,
                    ranks=tuple(range(size)),
                )
            )
            yield Pause(self._parts.switch_over_s)

    def _compute(self) -> Waits:
        """The computation's time includes its I/O: it has ended when both have."""
        request, job_id = self._request, self._start.job_id
        began = self._now()
        programs: list[Program | Flow] = [self._parts.compute(request, self._start)]
        yield from self._declare()
        if request.io is not None:
            self._tell(IoStarted(job_id=job_id, bytes=request.io.bytes))
            programs.append(self._parts.io(request, self._start))

        io_done = False

        def ended(index: int) -> None:
            nonlocal io_done
            if index == 1:
                io_done = True
                self._tell(IoFinished(job_id=job_id))

        whole = yield Run(tuple(programs), self._limits.compute_s, ended)
        if request.io is not None and not io_done:
            self._tell(IoFinished(job_id=job_id))
        self._took["compute"] = self._now() - began
        for node in self._start.nodes if request.compute.paths else ():
            self._tell(MpiProgramFinished(app=f"0/{job_id}", agent=AGENT, host=node))
        if not whole:
            raise JobFailed(
                _late(f"program {request.compute.program} of job {job_id}", self._limits.compute_s)
            )


def _late(what: str, limit_s: float) -> str:
    return f"{what} did not end within {limit_s:g} s and was stopped"
