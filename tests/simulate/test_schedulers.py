"""Schedulers: hand-worked cases, and what each promises whatever comes."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waystage.experiment.schedulers.conservative import Conservative
from waystage.experiment.schedulers.easy import Easy
from waystage.experiment.schedulers.fcfs import Fcfs
from waystage.experiment.scheduling import Moment, Running, Waiting

Job = tuple[float, int, float, float]
"""Arrival, nodes, length, estimate."""


class Replay:
    """A cluster of `nodes` nodes on which a scheduler runs jobs; a second, naive queue to check the first one by."""

    def __init__(self, scheduler: Any, nodes: int) -> None:
        self.scheduler, self.nodes = scheduler, nodes
        self.started: dict[int, float] = {}
        self.ended: dict[int, float] = {}
        self.moments: list[tuple[Moment, Sequence[int]]] = []

    def run(self, jobs: Sequence[Job]) -> dict[int, float]:
        events = [(job[0], 1, i) for i, job in enumerate(jobs)]
        heapq.heapify(events)
        waiting: list[int] = []
        while events:
            now = events[0][0]
            while events and events[0][0] == now:
                _, kind, i = heapq.heappop(events)
                if kind == 0:
                    self.ended[i] = now
                else:
                    waiting.append(i)
            while True:
                moment = self.moment(now, waiting, jobs)
                chosen = self.scheduler.choose(moment)
                self.moments.append((moment, chosen))
                if not chosen:
                    break
                for i in chosen:
                    assert i in waiting
                    waiting.remove(i)
                    self.started[i] = now
                    heapq.heappush(events, (now + jobs[i][2], 0, i))
                assert self.held(jobs) <= self.nodes, "more nodes are used than there are"
        assert not waiting, "a job that fits never started"
        return self.started

    def held(self, jobs: Sequence[Job]) -> int:
        return sum(jobs[i][1] for i in self.started if i not in self.ended)

    def moment(self, now: float, waiting: Sequence[int], jobs: Sequence[Job]) -> Moment:
        free = self.nodes - self.held(jobs)
        return Moment(
            now_s=now,
            nodes=self.nodes,
            free_nodes=free,
            free_slots=free,
            waiting=tuple(
                Waiting(
                    job=i, ranks=jobs[i][1], nodes=jobs[i][1], submitted_s=jobs[i][0], estimate_s=jobs[i][3]
                )
                for i in waiting
            ),
            running=tuple(
                Running(
                    job=i,
                    nodes=jobs[i][1],
                    started_s=at,
                    expected_end_s=max(at + jobs[i][3], math.nextafter(now, math.inf)),
                )
                for i, at in self.started.items()
                if i not in self.ended
            ),
        )


def starts(scheduler: Any, nodes: int, jobs: Sequence[tuple[float, int, float]]) -> list[float]:
    found = Replay(scheduler, nodes).run([(at, count, length, length) for at, count, length in jobs])
    return [found[i] for i in range(len(jobs))]


# Ten nodes. Job 0 holds 6 until 10; job 1 wants 8; 2 and 3 want 4 and 2 and could go ahead.
QUEUE = [(0.0, 6, 10.0), (1.0, 8, 10.0), (2.0, 4, 8.0), (3.0, 2, 20.0), (4.0, 4, 9.0)]


def test_fcfs_lets_no_job_pass() -> None:
    assert starts(Fcfs(), 10, QUEUE) == [0, 1 + 9, 20, 20, 20]


def test_easy_lets_pass_what_ends_before_the_head_starts_or_uses_nodes_that_it_leaves_free() -> None:
    # Job 2 ends at 10, when job 1 starts; job 3 is long, but two nodes are left over beside job 1; job 4 has to wait.
    assert starts(Easy(), 10, QUEUE) == [0, 10, 2, 10, 20]


def test_easy_uses_the_extra_nodes_once() -> None:
    # Job 1 will leave 2 nodes over: job 2 takes them, so that job 3, which fits at the same moment, must not.
    jobs = [(0.0, 6, 10.0), (1.0, 8, 10.0), (2.0, 2, 30.0), (2.0, 2, 30.0)]
    assert starts(Easy(), 10, jobs) == [0, 10, 2, 20]


def test_conservative_lets_no_job_pass_at_the_cost_of_another() -> None:
    # Job 3 fits beside jobs 0 and 1, so EASY starts it, and job 2, which needs every node, waits for it.
    jobs = [(0.0, 6, 10.0), (1.0, 8, 10.0), (2.0, 10, 10.0), (3.0, 2, 30.0)]
    assert starts(Easy(), 10, jobs) == [0, 10, 33, 3]
    assert starts(Conservative(), 10, jobs) == [0, 10, 20, 30]


def test_conservative_moves_everybody_up_when_a_job_ends_early() -> None:
    replay = Replay(Conservative(), 10)
    found = replay.run([(0.0, 10, 3.0, 10.0), (1.0, 10, 5.0, 5.0), (2.0, 10, 5.0, 5.0)])
    assert [found[i] for i in range(3)] == [0, 3, 8]


def test_a_job_of_unknown_length_delays_no_other() -> None:
    unknown = float("inf")
    jobs = [(0.0, 6, 10.0, 10.0), (1.0, 8, 5.0, 5.0), (2.0, 4, 100.0, unknown), (3.0, 2, 1.0, unknown)]
    for scheduler in (Easy(), Conservative()):
        found = Replay(scheduler, 10).run(jobs)
        assert found[1] == 10, scheduler


NODES = 8
workloads = st.lists(
    st.tuples(
        st.integers(0, 30).map(float),
        st.integers(1, NODES),
        st.integers(1, 12).map(float),
        st.integers(0, 10),
    ),
    min_size=1,
    max_size=14,
).map(lambda jobs: [(at, count, length, length + slack) for at, count, length, slack in sorted(jobs)])


@pytest.mark.parametrize("kind", [Fcfs, Easy, Conservative])
@settings(max_examples=120, deadline=None)
@given(jobs=workloads)
def test_every_job_runs_and_no_node_is_used_twice(kind: Any, jobs: list[Job]) -> None:
    Replay(kind(), NODES).run(jobs)


@settings(max_examples=150, deadline=None)
@given(jobs=workloads)
def test_fcfs_starts_jobs_in_order_of_arrival(jobs: list[Job]) -> None:
    found = Replay(Fcfs(), NODES).run(jobs)
    order = [found[i] for i in range(len(jobs))]
    assert order == sorted(order)


@settings(max_examples=300, deadline=None)
@given(jobs=workloads)
def test_easy_never_delays_the_head_of_the_queue(jobs: list[Job]) -> None:
    replay = Replay(Easy(), NODES)
    replay.run(jobs)
    for moment, chosen in replay.moments:
        waiting = [job for job in moment.waiting if job.job not in chosen]
        if waiting:
            head = waiting[0]
            # By when its nodes are free if nothing starts from now on but what was before it.
            before = {job.job for job in moment.waiting[: moment.waiting.index(head)]}
            free = moment.free_nodes - sum(jobs[i][1] for i in before)
            ends = [(r.expected_end_s, r.nodes) for r in moment.running]
            ends += [(moment.now_s + jobs[i][3], jobs[i][1]) for i in before]
            latest = moment.now_s
            for end, count in sorted(ends):
                if free >= head.nodes:
                    break
                free, latest = free + count, end
            assert replay.started[head.job] <= latest


@settings(max_examples=300, deadline=None)
@given(jobs=workloads)
def test_conservative_keeps_every_promise(jobs: list[Job]) -> None:
    class Watched(Conservative):
        first: dict[int, float] = {}

        def choose(self, moment: Moment) -> Sequence[int]:
            chosen = super().choose(moment)
            for job, at in self.promised_s.items():
                assert at <= self.first.get(job, math.inf), "a reservation was put off"
                self.first[job] = at
            return chosen

    watched = Watched()
    watched.first = {}
    found = Replay(watched, NODES).run(jobs)
    assert all(found[job] <= at for job, at in watched.first.items())


@settings(max_examples=100, deadline=None)
@given(jobs=workloads)
def test_a_late_arrival_delays_no_job_under_conservative(jobs: list[Job]) -> None:
    # With estimates that are right, an arrival changes nothing for those before it.
    right = [(at, count, length, length) for at, count, length, _ in jobs]
    all_of_them = Replay(Conservative(), NODES).run(right)
    without_last = Replay(Conservative(), NODES).run(right[:-1])
    assert all(all_of_them[i] == at for i, at in without_last.items())
