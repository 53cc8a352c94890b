"""The results of a scenario, in a folder.

Arrives: a loaded scenario and its finished runs, or the folder.
Leaves: `result.json`, `links.parquet`, `jobs.parquet`, a GraphML file for each run; and the result back.
Must not know: how runs are made or shown.

docs/reference/simulator.md describes the files. There is no time of day, no path of this machine and no address in them:
the same scenario gives the same bytes, whatever the number of processes and however often it was interrupted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from waystage import __version__
from waystage.experiment.results import ResultError
from waystage.simulate import graphml
from waystage.simulate.loading import Loaded, shown_as
from waystage.simulate.one_run import Combination, choice_of
from waystage.simulate.records import SCHEMA, FinishedRun, RunRecord
from waystage.simulate.runner import combinations, count
from waystage.simulate.store import Store

RESULT_FILE = "result.json"
LINKS_FILE = "links.parquet"
JOBS_FILE = "jobs.parquet"
GRAPHML_FOLDER = "graphml"

MOST_GRAPHML = 100
"""Runs of which each gets a GraphML file; of more, only the best of each topology."""


class TopologyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A topology of the result; `digest` is that of its nodes, links, slots and capacities."""

    label: str
    hosts: int
    switches: int
    links: int
    slots: int
    digest: str


class SourceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A source of jobs: how many ranks, and what all of them send in one iteration. `warning`: why not to trust it."""

    name: str
    ranks: int
    bytes: float
    digest: str
    warning: str = ""


class ScenarioResult(msgspec.Struct, frozen=True, kw_only=True):
    """What result.json holds. `planned` runs less those in `runs` were not made, because of an interruption."""

    schema: int = SCHEMA
    kind: str = "scenario"
    name: str
    description: str = ""
    waystage: str = ""
    mode: str
    duration_s: float
    seeds: tuple[int, ...]
    topologies: tuple[TopologyRecord, ...]
    sources: tuple[SourceRecord, ...]
    planned: int
    runs: tuple[RunRecord, ...]

    @property
    def interrupted(self) -> bool:
        return len(self.runs) < self.planned


def save(loaded: Loaded, folder: Path) -> ScenarioResult:
    """Write the files from the runs that the folder holds."""
    store = Store(folder, loaded)
    folder.mkdir(parents=True, exist_ok=True)
    scenario = loaded.scenario
    runs = []
    with _Tables(folder) as tables:
        for which, run in _found(loaded, store):
            runs.append(_record(loaded, which, run))
            tables.add(loaded, which, run)
    result = ScenarioResult(
        name=scenario.name,
        description=scenario.description,
        waystage=__version__,
        mode=scenario.mode,
        duration_s=scenario.duration,
        seeds=scenario.seeds,
        topologies=tuple(
            TopologyRecord(
                label=label,
                hosts=len(cluster.hosts),
                switches=len(cluster.switches),
                links=cluster.capacity.size // 2,
                slots=cluster.total_slots,
                digest=cluster.digest,
            )
            for label, cluster in zip(loaded.labels, loaded.clusters, strict=True)
        ),
        sources=tuple(
            SourceRecord(
                name=source_name(loaded, i),
                ranks=traffic.ranks,
                bytes=float(traffic.total.amount.sum()),
                digest=traffic.digest,
                warning=traffic.warning,
            )
            for i, traffic in enumerate(loaded.traffics)
        ),
        planned=count(loaded),
        runs=tuple(runs),
    )
    _graphml(loaded, store, folder, result)
    _write(folder / RESULT_FILE, msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")
    return result


def load(folder: Path) -> ScenarioResult | None:
    """The result in a folder; None where there is none of a scenario. Raises ResultError where it is newer or broken."""
    path = folder / RESULT_FILE
    try:
        data = path.read_bytes()
        head = msgspec.json.decode(data, type=_Head)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    if head.kind != "scenario":
        return None
    if head.schema > SCHEMA:
        raise ResultError(
            f"{path}: schema {head.schema} is newer than {SCHEMA}, which this Waystage reads: update it"
        )
    try:
        return msgspec.json.decode(data, type=ScenarioResult)
    except msgspec.MsgspecError as error:
        raise ResultError(f"{path}: is no result of a scenario: {error}") from None


class _Head(msgspec.Struct):
    kind: str = ""
    schema: int = 0


def source_name(loaded: Loaded, index: int) -> str:
    """The name in the file, else that of the trace or pattern, told apart by number where need be."""
    names = []
    for source in loaded.scenario.jobs:
        if source.name is not None:
            names.append(source.name)
        elif source.trace is not None:
            names.append(Path(source.trace).name.split(".")[0])
        else:
            assert source.pattern is not None
            names.append(f"{source.pattern.kind}-{source.pattern.ranks}")
    name = names[index]
    return name if names.count(name) == 1 else f"{name}-{index + 1}"


def best_runs(result: ScenarioResult) -> list[RunRecord]:
    """Of each topology the finished run with the least largest load; the first of equals."""
    best: dict[str, RunRecord] = {}
    for run in result.runs:
        if run.status == "done" and run.metrics.started:
            now = best.get(run.topology)
            if now is None or run.metrics.max_load_bytes < now.metrics.max_load_bytes:
                best[run.topology] = run
    return list(best.values())


def _found(loaded: Loaded, store: Store) -> Iterator[tuple[Combination, FinishedRun]]:
    for which in combinations(loaded):
        run = store.get(which)
        if run is not None:
            yield which, run


def _record(loaded: Loaded, which: Combination, run: FinishedRun) -> RunRecord:
    return RunRecord(
        number=which.number,
        topology=loaded.labels[which.topology],
        scheduler=shown_as("scheduler", choice_of(loaded, which, "scheduler")),
        host_selector=shown_as("host_selector", choice_of(loaded, which, "host_selector")),
        process_mapper=shown_as("process_mapper", choice_of(loaded, which, "process_mapper")),
        router=shown_as("router", choice_of(loaded, which, "router")),
        seed=which.seed,
        status=run.status,
        cause=run.cause,
        metrics=run.metrics,
    )


def _graphml(loaded: Loaded, store: Store, folder: Path, result: ScenarioResult) -> None:
    wanted = {run.number for run in (result.runs if result.planned <= MOST_GRAPHML else best_runs(result))}
    target = folder / GRAPHML_FOLDER
    for which, run in _found(loaded, store):
        if which.number in wanted and run.status == "done":
            target.mkdir(exist_ok=True)
            cluster = loaded.clusters[which.topology]
            text = graphml.with_loads(cluster, run.peak_loads(), run.total_loads())
            _write(target / f"run-{which.number}.graphml", text.encode())


class _Tables:
    """The two Parquet files, written run by run; they appear when all is written."""

    def __init__(self, folder: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        word = pa.dictionary(pa.int32(), pa.string())
        self._links = pa.schema(
            [
                ("run", pa.int32()),
                ("from", word),
                ("to", word),
                ("capacity_bytes_per_s", pa.float64()),
                ("between_switches", pa.bool_()),
                ("peak_bytes", pa.float64()),
                ("total_bytes", pa.float64()),
            ]
        )
        self._jobs = pa.schema(
            [
                ("run", pa.int32()),
                ("job", pa.int32()),
                ("source", pa.int32()),
                ("submitted_s", pa.float64()),
                ("started_s", pa.float64()),
                ("ended_s", pa.float64()),
                ("status", pa.string()),
                ("hosts", pa.list_(pa.string())),
            ]
        )
        self._paths = [folder / LINKS_FILE, folder / JOBS_FILE]
        self._parts = [path.with_suffix(".part") for path in self._paths]
        self._writers = [
            pq.ParquetWriter(part, schema, compression="zstd")
            for part, schema in zip(self._parts, (self._links, self._jobs), strict=True)
        ]

    def __enter__(self) -> _Tables:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            for writer in self._writers:
                writer.close()
            if kind is None:
                for part, path in zip(self._parts, self._paths, strict=True):
                    os.replace(part, path)
        finally:
            for part in self._parts:
                part.unlink(missing_ok=True)

    def add(self, loaded: Loaded, which: Combination, run: FinishedRun) -> None:
        import pyarrow as pa

        if run.status != "done":
            return
        cluster = loaded.clusters[which.topology]
        peak, total = run.peak_loads(), run.total_loads()
        used = np.flatnonzero(total > 0)
        names = pa.array(cluster.names)

        def ends(column: Any) -> Any:
            return pa.DictionaryArray.from_arrays(pa.array(column[used].astype(np.int32)), names)

        columns = [
            pa.array(np.full(used.size, which.number, dtype=np.int32)),
            ends(cluster.links_from),
            ends(cluster.links_to),
            pa.array(cluster.capacity[used]),
            pa.array(cluster.between_switches[used]),
            pa.array(peak[used]),
            pa.array(total[used]),
        ]
        self._writers[0].write_table(pa.table(columns, schema=self._links))
        rows = [
            {
                "run": which.number,
                "job": job.job,
                "source": job.source,
                "submitted_s": job.submitted_s,
                "started_s": job.started_s,
                "ended_s": job.ended_s,
                "status": job.status,
                "hosts": [cluster.hosts[h] for h in job.hosts],
            }
            for job in run.jobs
        ]
        self._writers[1].write_table(pa.Table.from_pylist(rows, schema=self._jobs))


def _write(path: Path, data: bytes) -> None:
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(data)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
