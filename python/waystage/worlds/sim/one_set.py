"""One set of jobs in simulated time: submissions, the queue, jobs as generators, and what falls due.

Arrives: the jobs of the set, a queue that gives nodes, a network that carries flows.
Leaves: a record a job; the use of every link, once a second.
Must not know: how flows share links, what a policy decides.

Of what falls due at the same moment, what was put down first is first: a run can be repeated to the byte.
"""

from __future__ import annotations

import functools
import heapq
import itertools
from collections.abc import Callable, Sequence

import msgspec

from waystage.events import Event, FlowFinished, FlowProgress, FlowStarted, UsePart
from waystage.experiment.queue import Queue, Start
from waystage.experiment.results import JobRecord
from waystage.experiment.workload import JobRequest
from waystage.interconnect.counters import together
from waystage.worlds.bins import EARLY
from waystage.worlds.sim.network import Network, PortCounts
from waystage.worlds.sim.one_job import Job
from waystage.worlds.sim.programs import Program
from waystage.worlds.sim.resources import Flow
from waystage.worlds.sim.waits import Await, Pause, Run, Waits

USE_EVERY_S = 1.0
"""The use of links is published as often as in the lab."""


class Agenda:
    """What falls due when. `now` is the simulated time, in seconds from the start of the set."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self.now + delay_s, next(self._order), call))

    @property
    def next_s(self) -> float:
        return self._due[0][0] if self._due else float("inf")

    def run_due(self) -> None:
        """Everything due at this moment, also what is put down meanwhile."""
        while self._due and self._due[0][0] <= self.now:
            heapq.heappop(self._due)[2]()


class _Waiting(msgspec.Struct):
    """Programs that a job waits for."""

    waits: Waits
    start: Start
    job: Job
    run: Run
    open: dict[int, int]


class SetRun:
    """`make_job` builds a job that has got its nodes; `done` is called with each record's job as it ends,
    `second` once a second; counters are read every `part_s()` between.

    `use` gets link use once a second. Where `count` is given, nothing reads that: readings since the last call,
    and the time, go to `count` alone, once a second, and become as rare as `part_s()` says.
    """

    def __init__(
        self,
        agenda: Agenda,
        network: Network,
        queue: Queue[str, str],
        *,
        make_job: Callable[[JobRequest, Start], Job],
        done: Callable[[Job], JobRecord],
        use: Callable[[Event], None],
        stop_on_failure: bool,
        second: Callable[[], None],
        part_s: Callable[[], float],
        count: Callable[[Sequence[PortCounts], float], None] | None = None,
    ) -> None:
        self._agenda, self._network, self._queue = agenda, network, queue
        self._make_job, self._done, self._use = make_job, done, use
        self._stop_on_failure, self._second = stop_on_failure, second
        self._part_s, self._count = part_s, count
        self._counted_s = 0.0
        self._parts: list[UsePart] = []
        self._counts: list[PortCounts] = []
        self._programs: dict[int, _Waiting] = {}
        self._flows: dict[int, Flow] = {}
        self._copies: dict[int, Flow] = {}
        self._copies_due = 0
        self._requests: dict[str, JobRequest] = {}
        self._left = 0
        self._use_due_s = 0.0
        self._stopped = False

    def run(self, jobs: Sequence[tuple[str, JobRequest]], copies: Sequence[tuple[float, Flow]] = ()) -> bool:
        """Run the set, then until the next reading of the counters; False where a failed job ended it early.

        `copies` begin at their times; the set has ended when its jobs and these have.
        """
        self._requests = dict(jobs)
        self._left = len(jobs)
        for job_id, request in sorted(jobs, key=lambda entry: (entry[1].submit_s, entry[1].index)):
            self._agenda.later(request.submit_s, functools.partial(self._submit, job_id))
        for start_s, flow in copies:
            self._copies_due += 1
            self._agenda.later(start_s, functools.partial(self._start_copy, flow))
        self._read_later()
        while self._is_open():
            self._advance()
        if self._stopped:
            for number, waiting in self._programs.items():
                self._stop(number)
                waiting.open.clear()
            self._programs.clear()
            for number in list(self._copies):
                del self._copies[number]
                self._stop(number)
        while self._agenda.now < self._use_due_s:
            self._advance()
        self._agenda.run_due()
        return not self._stopped

    def _advance(self) -> None:
        """To the next moment at which anything happens."""
        self._agenda.run_due()
        for at_s, program in self._network.run_until(self._agenda.next_s):
            self._agenda.now = at_s
            self._ended(program)
        self._agenda.now = self._network.now

    def _is_open(self) -> bool:
        return not self._stopped and bool(self._left or self._copies or self._copies_due)

    def _start(self, program: Program | Flow) -> int:
        if not isinstance(program, Flow):
            return self._network.start(program)
        self._use(
            FlowStarted(
                flow_id=program.flow_id,
                traffic=program.traffic,
                engine=program.engine,
                job_id=program.job_id,
                source=program.source,
                destination=program.destination,
                bytes=program.bytes,
                controls=program.controls,
                loaders=program.loaders,
            )
        )
        number = self._network.start(program)
        self._flows[number] = program
        return number

    def _stop(self, number: int) -> None:
        done = self._network.stop(number)
        flow = self._flows.pop(number, None)
        if flow is not None:
            self._use(FlowFinished(flow_id=flow.flow_id, bytes_done=round(done), outcome="cancelled"))

    def _start_copy(self, flow: Flow) -> None:
        self._copies_due -= 1
        if not self._stopped:
            self._copies[self._start(flow)] = flow

    def _submit(self, job_id: str) -> None:
        self._queue.submit(job_id, self._requests[job_id].nodes)
        self._launch()

    def _launch(self) -> None:
        for start in list(self._queue.starts()):
            job = self._make_job(self._requests[start.job_id], start)
            self._step(job, start, job.run(), None)

    def _step(self, job: Job, start: Start, waits: Waits, answer: bool | None) -> None:
        """Let the job go on to its next wait."""
        if self._stopped:
            return
        try:
            wait = next(waits) if answer is None else waits.send(answer)
        except StopIteration:
            self._end(job, start)
            return
        if isinstance(wait, Pause):
            self._agenda.later(wait.seconds, lambda: self._step(job, start, waits, True))
            return
        if isinstance(wait, Await):
            # Not from within the registration: a generator cannot be continued while it runs.
            wait.register(lambda: self._agenda.later(0.0, lambda: self._step(job, start, waits, True)))
            return
        waiting = _Waiting(waits, start, job, wait, {})
        for index, program in enumerate(wait.programs):
            number = self._start(program)
            waiting.open[number] = index
            self._programs[number] = waiting
        self._agenda.later(wait.limit_s, lambda: self._too_late(waiting))

    def _ended(self, number: int) -> None:
        flow = self._flows.pop(number, None)
        if flow is not None:
            self._use(FlowFinished(flow_id=flow.flow_id, bytes_done=flow.bytes))
        if self._copies.pop(number, None) is not None:
            return
        waiting = self._programs.pop(number)
        index = waiting.open.pop(number)
        if waiting.run.ended is not None:
            waiting.run.ended(index)
        if not waiting.open:
            self._step(waiting.job, waiting.start, waiting.waits, True)

    def _too_late(self, waiting: _Waiting) -> None:
        if not waiting.open:
            return
        for number in waiting.open:
            del self._programs[number]
            self._stop(number)
        waiting.open.clear()
        self._step(waiting.job, waiting.start, waiting.waits, False)

    def _end(self, job: Job, start: Start) -> None:
        self._left -= 1
        record = self._done(job)
        if record.status == "failed" and self._stop_on_failure:
            self._stopped = True
            return
        self._queue.finish(start.job_id)
        self._launch()

    def _read_counters(self) -> None:
        if self._is_reading_due():
            self._read_part()
        if self._count is not None:
            self._count(self._counts, self._agenda.now)
        elif self._parts:
            self._use(together(self._parts))
        self._parts, self._counts = [], []
        flows = self._network.progress()
        if flows:
            self._use(FlowProgress(flows=flows))
        self._second()
        if self._is_open():
            self._read_later()

    def _read_part(self) -> None:
        self._counted_s = self._agenda.now
        if self._count is not None:
            counts = self._network.counts()
            if counts is not None:
                self._counts.append(counts)
            return
        part = self._network.use()
        if part is not None:
            self._parts.append(part)

    def _is_reading_due(self) -> bool:
        """At a full second. The bin that began with the last reading ends with this one, or the set does."""
        if self._count is None or not self._is_open():
            return True
        most_s = self._part_s()
        early_s = min(EARLY * most_s, USE_EVERY_S / 2)
        return self._agenda.now - self._counted_s + early_s >= most_s

    def _read_later(self) -> None:
        self._use_due_s = self._agenda.now + USE_EVERY_S
        parts = max(1, int(USE_EVERY_S / self._part_s()))
        for at in range(1, parts):
            self._agenda.later(at * USE_EVERY_S / parts, self._read_part)
        self._agenda.later(USE_EVERY_S, self._read_counters)
