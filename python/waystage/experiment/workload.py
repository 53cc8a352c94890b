"""The jobs of one set: kinds, sizes and submission times, drawn from a seed.

Arrives: an `Experiment`, its `Topology` and the number of the set.
Leaves: `JobRequest`s in order of submission, the same for every policy and in every world.
Must not know: when they really run, and where.
"""

from __future__ import annotations

import random

import msgspec

from waystage.events import Direction
from waystage.experiment.distributions import sampler
from waystage.experiment.schema import (
    CollectiveIo,
    Compute,
    ComputeIo,
    Distribution,
    Experiment,
    Mix,
    Staging,
)
from waystage.topology import Topology


class JobRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One job of a set. `submit_s` counts from the start of the set; `storage` is where its data lives."""

    index: int
    kind: str
    submit_s: float
    nodes: int
    storage: str | None
    stage_in: Staging
    stage_out: Staging
    compute: Compute
    io: ComputeIo | None
    collective: CollectiveIo | None = None
    due_s: float = 0.0

    def amount(self, direction: Direction, nodes: int) -> int:
        """Bytes that a job on `nodes` nodes stages."""
        staging = self.staging(direction)
        return staging.bytes * (nodes if staging.to == "each" else 1)

    def staging(self, direction: Direction) -> Staging:
        return self.stage_in if direction == "in" else self.stage_out


def jobs_of_set(experiment: Experiment, topology: Topology, set_index: int) -> tuple[JobRequest, ...]:
    """The jobs of set number `set_index`, from 0. A pure function of its arguments."""
    jobs = experiment.jobs
    draw = random.Random(f"{experiment.seed}/{set_index}")
    times = _times(jobs.arrivals, jobs.count, draw)
    kinds = _kinds(jobs.mixes, jobs.count, draw)
    storage = jobs.storage or topology.storage_hosts
    requests = []
    for index, (submit_s, mix) in enumerate(zip(times, kinds, strict=True)):
        requests.append(
            JobRequest(
                index=index,
                kind=mix.name if mix else "job",
                submit_s=submit_s,
                nodes=(mix and mix.nodes) or jobs.nodes,
                storage=storage[index % len(storage)] if storage else None,
                stage_in=(mix and mix.stage_in) or jobs.stage_in,
                stage_out=(mix and mix.stage_out) or jobs.stage_out,
                compute=(mix and mix.compute) or jobs.compute,
                io=(mix and mix.io) or jobs.io,
                collective=(mix and mix.collective) or jobs.collective,
                due_s=mix.due_s if mix is not None and mix.due_s is not None else jobs.due_s,
            )
        )
    return tuple(requests)


def _times(arrivals: Distribution, count: int, draw: random.Random) -> list[float]:
    """Submission times; the first job comes at 0."""
    gap = sampler(arrivals)
    times, now = [], 0.0
    for _ in range(count):
        times.append(round(now, 6))
        now += gap(draw)
    return times


def _kinds(mixes: tuple[Mix, ...], count: int, draw: random.Random) -> list[Mix | None]:
    """Which kind each job is: counts by largest remainder of the shares, order shuffled."""
    if not mixes:
        return [None] * count
    total = sum(mix.share for mix in mixes)
    exact = [count * mix.share / total for mix in mixes]
    counts = [int(e) for e in exact]
    by_remainder = sorted(range(len(mixes)), key=lambda i: (counts[i] - exact[i], i))
    for i in by_remainder[: count - sum(counts)]:
        counts[i] += 1
    kinds: list[Mix | None] = [mix for mix, n in zip(mixes, counts, strict=True) for _ in range(n)]
    draw.shuffle(kinds)
    return kinds
