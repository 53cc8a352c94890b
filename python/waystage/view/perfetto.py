"""A recorded run as a trace for Perfetto and chrome://tracing.

Arrives: the folder of a run.
Leaves: JSON in the Trace Event Format.
Must not know: pages.

Each policy and set is a process, each job a thread in it with its phases as slices; decisions and path changes are
instants; loads of classes into the core are counters. Times are microseconds from the start of the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from waystage import events
from waystage.experiment import results
from waystage.experiment.results import JobRecord, RunResult
from waystage.experiment.timelines import PortSample
from waystage.view.describe import event_text
from waystage.view.recorded import read_events, run_of, start_ns

Entry = dict[str, Any]


def trace(folder: Path) -> bytes:
    """The trace as JSON. Raises ResultError."""
    result = run_of(folder)
    items = sorted(read_events(folder / results.EVENTS_FILE), key=lambda item: item.time_ns)
    begun = start_ns(result, items)
    sets = {
        key: number for number, key in enumerate(dict.fromkeys((j.policy, j.set) for j in result.jobs), 1)
    }
    found = [*_processes(sets), *_jobs(result, sets), *_loads(results.load_timelines(folder), sets)]
    for item in items:
        if isinstance(item.event, events.Decided | events.PathsChanged | events.PathsRefused):
            name = type(item.event).__name__
            at_us = max(0, item.time_ns - begun) / 1e3
            about = {"text": event_text(item.event)}
            found.append({"ph": "i", "s": "g", "pid": 0, "tid": 0, "ts": at_us, "name": name, "args": about})
    head = {"displayTimeUnit": "ms", "otherData": {"name": result.name, "world": result.world}}
    return msgspec.json.encode(head | {"traceEvents": found})


def _processes(sets: dict[tuple[str, int], int]) -> Iterator[Entry]:
    yield {"ph": "M", "pid": 0, "name": "process_name", "args": {"name": "controller"}}
    for (policy, number), process in sets.items():
        name = f"{policy}, set {number + 1}"
        yield {"ph": "M", "pid": process, "name": "process_name", "args": {"name": name}}


def _jobs(result: RunResult, sets: dict[tuple[str, int], int]) -> Iterator[Entry]:
    for job in result.jobs:
        process = sets[job.policy, job.set]
        name = {"name": f"{job.job_id} ({job.kind})"}
        yield {"ph": "M", "pid": process, "tid": job.index + 1, "name": "thread_name", "args": name}
        about = {"nodes": ", ".join(job.nodes), "status": job.status, "cause": job.cause}
        for what, begin_s, took_s in _phases(job):
            yield {
                "ph": "X",
                "pid": process,
                "tid": job.index + 1,
                "ts": begin_s * 1e6,
                "dur": max(0.0, took_s) * 1e6,
                "name": what,
                "cat": "job",
                "args": about if what == "job" else {},
            }


def _phases(job: JobRecord) -> Iterator[tuple[str, float, float]]:
    """Name, start and duration in s. Stage-out ends with the job."""
    yield "waits", job.submitted_at_s, job.started_at_s - job.submitted_at_s
    yield "job", job.started_at_s, job.job_s
    if job.stage_in_s:
        yield "stage-in", job.started_at_s, job.stage_in_s
    yield "computation", job.started_at_s + job.stage_in_s, job.compute_s
    if job.stage_out_s:
        yield "stage-out", job.ended_at_s - job.stage_out_s, job.stage_out_s


def _loads(samples: Sequence[PortSample], sets: dict[tuple[str, int], int]) -> Iterator[Entry]:
    """Bytes that left core switches, as Mbit/s of each class."""
    sums: dict[tuple[str, int, float], dict[str, float]] = {}
    for sample in samples:
        if sample.core and sample.traffic != "all" and sample.interval_s > 0:
            rates = sums.setdefault((sample.policy, sample.set, sample.at_s), {})
            mbps = sample.bytes * 8 / sample.interval_s / 1e6
            rates[sample.traffic] = rates.get(sample.traffic, 0.0) + mbps
    classes = sorted({traffic for rates in sums.values() for traffic in rates})
    for (policy, number, at_s), rates in sorted(sums.items(), key=lambda entry: entry[0][2]):
        process = sets.get((policy, number))
        if process is not None:
            shown = {traffic: round(rates.get(traffic, 0.0), 3) for traffic in classes}
            yield {"ph": "C", "pid": process, "ts": at_s * 1e6, "name": "core, Mbit/s", "args": shown}
