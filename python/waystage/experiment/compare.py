"""Two runs of one experiment side by side: what was predicted and what was measured.

Arrives: the results and timelines of two runs, the first of which predicts the second.
Leaves: errors by link, class and job, the largest of each, and whether both put the policies in the same order.
Must not know: which worlds ran them, how the answer is printed.

An error is (predicted - measured) / measured. Links: what left each port between switches in all sets that both ran
whole. A link that carried less than `SMALL_LINK` of the busiest one's bytes is listed, but is not among the largest
errors: what it carried is acknowledgements and start-up traffic, and a small number divides badly.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import msgspec

from waystage.experiment.results import (
    ContentionResult,
    IoRecord,
    JobRecord,
    RunResult,
    SweepResult,
)
from waystage.experiment.schema import Compute, Experiment
from waystage.experiment.sweep_summary import summarise
from waystage.experiment.timelines import PortSample

SMALL_LINK = 0.01

JobKey = tuple[str, int, int]
"""Policy, set, index."""

TIMES: dict[str, Callable[[JobRecord], float]] = {
    "job_s": lambda job: job.job_s,
    "stage_in_s": lambda job: job.stage_in_s,
    "compute_s": lambda job: job.compute_s,
    "stage_out_s": lambda job: job.stage_out_s,
}


class CompareError(ValueError):
    """Two runs that have nothing to compare; the message says why."""


class LinkError(msgspec.Struct, frozen=True, kw_only=True):
    """What left `node` through `port` in one class, or in all; `small` where it is too little to judge."""

    policy: str
    node: str
    port: int
    peer: str
    traffic: str
    predicted_bytes: int
    measured_bytes: int
    small: bool

    @property
    def error_pct(self) -> float:
        return _error_pct(self.predicted_bytes, self.measured_bytes)


class TimeError(msgspec.Struct, frozen=True, kw_only=True):
    """One time of one job, or of the mean job of a policy (`set` and `index` are -1)."""

    policy: str
    set: int
    index: int
    quantity: str
    predicted_s: float
    measured_s: float

    @property
    def error_pct(self) -> float:
        return _error_pct(self.predicted_s, self.measured_s)


class RunComparison(msgspec.Struct, frozen=True, kw_only=True):
    """`links` and `jobs` worst first. `order_*`: the policies, shortest mean job time first."""

    links: list[LinkError]
    jobs: list[TimeError]
    means: list[TimeError]
    order_predicted: list[str]
    order_measured: list[str]
    jobs_compared: int
    notes: list[str]

    @property
    def max_link_error_pct(self) -> float:
        """Over all traffic of each link that carried enough; 0 where none did."""
        return max((abs(e.error_pct) for e in self.links if e.traffic == "all" and not e.small), default=0.0)

    @property
    def max_job_error_pct(self) -> float:
        return max((abs(e.error_pct) for e in self.jobs if e.quantity == "job_s"), default=0.0)

    @property
    def max_mean_error_pct(self) -> float:
        return max((abs(e.error_pct) for e in self.means if e.quantity == "job_s"), default=0.0)

    @property
    def max_operation_error_pct(self) -> float:
        """Of the mean time of collective operations, waiting included; 0 where there are none."""
        return max((abs(e.error_pct) for e in self.means if e.quantity == "operation_s"), default=0.0)

    @property
    def same_order(self) -> bool:
        """No two policies stand the other way round; where one world gives both the same time, it orders neither."""
        times = [(e.predicted_s, e.measured_s) for e in self.means if e.quantity == "job_s"]
        return all(
            _sign(one[0], other[0]) * _sign(one[1], other[1]) >= 0
            for one, other in itertools.combinations(times, 2)
        )


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of one combination of a sweep, or of one ratio of a contention study, in two runs."""

    name: str
    quantity: str
    first: float
    second: float

    @property
    def error_pct(self) -> float:
        return _error_pct(self.first, self.second)


def differences(
    first: SweepResult | ContentionResult, second: SweepResult | ContentionResult
) -> list[Difference]:
    """Of what both have, the largest first. Raises CompareError where that is nothing."""
    ours, theirs = _figures(first), _figures(second)
    found = [
        Difference(name=name, quantity=quantity, first=value, second=theirs[name][quantity])
        for name, figures in ours.items()
        if name in theirs
        for quantity, value in figures.items()
        if quantity in theirs[name]
    ]
    if not found:
        raise CompareError("no combination or ratio is in both runs: compare runs of one experiment")
    return sorted(found, key=lambda d: (-abs(d.error_pct), d.name, d.quantity))


def _figures(result: SweepResult | ContentionResult) -> dict[str, dict[str, float]]:
    if isinstance(result, ContentionResult):
        points = (msgspec.structs.asdict(point) for point in result.points)
        return {f"{point.pop('ratio')}:1": point for point in points}
    rows = [row for row in summarise(result) if row.failed < len(row.runs)]
    names = ("max_load_bytes", "mean_wait_s", "mean_job_s", "node_use")
    return {row.name: {name: getattr(row, name) for name in names} for row in rows}


def compare(
    predicted: RunResult,
    measured: RunResult,
    predicted_samples: Sequence[PortSample],
    measured_samples: Sequence[PortSample],
) -> RunComparison:
    """Raises CompareError where no policy ran a set whole in both."""
    ours, theirs = _jobs(predicted), _jobs(measured)
    sets = _whole_sets(predicted) & _whole_sets(measured)
    if not sets:
        raise CompareError(
            "no set ran whole under the same policy in both runs: compare runs of one experiment"
        )
    keys = [key for key in ours if key[:2] in sets and key in theirs]
    jobs = [
        TimeError(
            policy=key[0],
            set=key[1],
            index=key[2],
            quantity=name,
            predicted_s=of(ours[key]),
            measured_s=of(theirs[key]),
        )
        for key in keys
        for name, of in TIMES.items()
        if of(ours[key]) or of(theirs[key])
    ]
    means = _means(jobs) + _means(_operations(keys, predicted, measured))
    links = _links(sets, predicted_samples, measured_samples)
    return RunComparison(
        links=sorted(links, key=lambda e: (e.small, -abs(e.error_pct), e.policy, e.node, e.port, e.traffic)),
        jobs=sorted(jobs, key=lambda e: (-abs(e.error_pct), e.policy, e.set, e.index, e.quantity)),
        means=means,
        order_predicted=_order(means, "predicted_s"),
        order_measured=_order(means, "measured_s"),
        jobs_compared=len(keys),
        notes=_notes(predicted, measured, ours, theirs, sets),
    )


def _jobs(result: RunResult) -> dict[JobKey, JobRecord]:
    return {(job.policy, job.set, job.index): job for job in result.jobs}


def _whole_sets(result: RunResult) -> set[tuple[str, int]]:
    """(policy, set) of which every job is done."""
    done: dict[tuple[str, int], int] = defaultdict(int)
    for job in result.jobs:
        done[job.policy, job.set] += job.status == "done"
    return {key for key, count in done.items() if count == result.experiment.jobs.count}


def _means(jobs: Iterable[TimeError]) -> list[TimeError]:
    sums: dict[tuple[str, str], list[float]] = {}
    for error in jobs:
        total = sums.setdefault((error.policy, error.quantity), [0.0, 0.0, 0.0])
        total[0] += error.predicted_s
        total[1] += error.measured_s
        total[2] += 1
    return [
        TimeError(
            policy=policy, set=-1, index=-1, quantity=quantity, predicted_s=a / count, measured_s=b / count
        )
        for (policy, quantity), (a, b, count) in sums.items()
    ]


def _operations(keys: Sequence[JobKey], predicted: RunResult, measured: RunResult) -> list[TimeError]:
    """The mean collective operation of each job that both have, and its wait for a grant."""
    found: list[TimeError] = []
    of_both = [_io_of(predicted), _io_of(measured)]
    for key in keys:
        ours, theirs = (of.get(key, []) for of in of_both)
        if not ours or not theirs:
            continue
        for name in ("operation_s", "waited_s"):
            a, b = (
                sum(r.io_s if name == "operation_s" else r.waited_s for r in records) / len(records)
                for records in (ours, theirs)
            )
            found.append(
                TimeError(policy=key[0], set=key[1], index=key[2], quantity=name, predicted_s=a, measured_s=b)
            )
    return found


def _io_of(result: RunResult) -> dict[JobKey, list[IoRecord]]:
    found: dict[JobKey, list[IoRecord]] = defaultdict(list)
    for record in result.io:
        found[record.policy, record.set, record.index].append(record)
    return found


def _sign(one_s: float, other_s: float) -> int:
    """Which is shorter; 0 where they differ by rounding alone."""
    if math.isclose(one_s, other_s, rel_tol=1e-9):
        return 0
    return -1 if one_s < other_s else 1


def _order(means: Iterable[TimeError], of: str) -> list[str]:
    times = {e.policy: getattr(e, of) for e in means if e.quantity == "job_s"}
    return sorted(times, key=lambda policy: (times[policy], policy))


def _links(
    sets: set[tuple[str, int]], ours: Sequence[PortSample], theirs: Sequence[PortSample]
) -> list[LinkError]:
    peers: dict[tuple[str, int], str] = {}
    sums: list[dict[tuple[str, str, int, str], int]] = [defaultdict(int), defaultdict(int)]
    for total, samples in zip(sums, (ours, theirs), strict=True):
        for sample in samples:
            if (sample.policy, sample.set) in sets:
                peers[sample.node, sample.port] = sample.peer
                total[sample.policy, sample.node, sample.port, sample.traffic] += sample.bytes
    if not sums[0] or not sums[1]:
        return []
    busiest: dict[str, int] = defaultdict(int)
    for (policy, _, _, traffic), count in sums[1].items():
        if traffic == "all":
            busiest[policy] = max(busiest[policy], count)
    return [
        LinkError(
            policy=policy,
            node=node,
            port=port,
            peer=peers[node, port],
            traffic=traffic,
            predicted_bytes=sums[0][policy, node, port, traffic],
            measured_bytes=sums[1][policy, node, port, traffic],
            small=max(total[policy, node, port, traffic] for total in sums) < SMALL_LINK * busiest[policy],
        )
        for policy, node, port, traffic in sorted(set(sums[0]) | set(sums[1]))
    ]


def _notes(
    predicted: RunResult,
    measured: RunResult,
    ours: dict[JobKey, JobRecord],
    theirs: dict[JobKey, JobRecord],
    sets: set[tuple[str, int]],
) -> list[str]:
    notes = []
    a, b = _as_run(predicted.experiment), _as_run(measured.experiment)
    differing = [
        name
        for name in ("topology", "jobs", "seed", "hash_seed", "rules")
        if getattr(a, name) != getattr(b, name)
    ]
    if differing:
        notes.append(
            f"the two experiments differ in {', '.join(differing)}: this compares more than two worlds"
        )
    if (predicted.io or measured.io) and {predicted.world, measured.world} == {"sim", "lab"}:
        notes.append(
            "collective writes cross the network to storage in the simulator alone: compare times and not links"
        )
    left_out = len({key[:2] for key in (*ours, *theirs)} - sets)
    if left_out:
        notes.append(f"{left_out} sets are left out: not there, or not whole, in both runs")
    for name, result in (("first", predicted), ("second", measured)):
        notes += [f"the {name} run is not valid: {reason}" for reason in result.invalid]
        if result.interrupted or result.failure:
            notes.append(f"the {name} run ended early")
    moved = [k for k in ours if k in theirs and k[:2] in sets and ours[k].nodes != theirs[k].nodes]
    if moved:
        notes.append(f"{len(moved)} jobs ran on other nodes than predicted: the queue was in another state")
    return notes


def _as_run(experiment: Experiment) -> Experiment:
    """Without the patterns, which stand for the same programs in the simulator."""

    def bare(compute: Compute | None) -> Compute | None:
        return compute and msgspec.structs.replace(compute, pattern=None, pattern_of="run")

    jobs = experiment.jobs
    mixes = tuple(msgspec.structs.replace(mix, compute=bare(mix.compute)) for mix in jobs.mixes)
    jobs = msgspec.structs.replace(jobs, compute=bare(jobs.compute), mixes=mixes)
    return msgspec.structs.replace(experiment, jobs=jobs)


def _error_pct(predicted: float, measured: float) -> float:
    if measured:
        return 100.0 * (predicted - measured) / measured
    return 0.0 if not predicted else float("inf")
