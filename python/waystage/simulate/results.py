"""The result folder of a sweep.

Arrives: a loaded sweep and the finished runs that its folder holds.
Leaves: `result.json`, `links.parquet`, `jobs.parquet`, a GraphML file for each run.
Must not know: how runs are made or shown.

docs/reference/simulator.md describes the files. There is no time of day, no path of this machine and no address in them:
the same sweep gives the same bytes with any number of processes and interruptions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from waystage import __version__
from waystage.experiment import results
from waystage.experiment.results import RunRecord, SourceRecord, SweepResult, TopologyRecord
from waystage.outputs import write_whole, written
from waystage.simulate import graphml
from waystage.simulate.combinations import Combination, choice_of, combinations, count
from waystage.simulate.loading import Loaded
from waystage.simulate.records import FinishedRun
from waystage.simulate.store import Store

LINKS_FILE = "links.parquet"
JOBS_FILE = "jobs.parquet"
GRAPHML_FOLDER = "graphml"

MAX_GRAPHML = 100
"""Runs of which each gets a GraphML file; of more, only the best of each topology."""


def save(loaded: Loaded, folder: Path) -> SweepResult:
    """Write the files from the runs that the folder holds."""
    store = Store(folder, loaded)
    folder.mkdir(parents=True, exist_ok=True)
    sweep = loaded.sweep
    runs = []
    with _Tables(folder) as tables:
        for which, run in _found(loaded, store):
            runs.append(_record(loaded, which, run))
            tables.add(loaded, which, run)
    result = SweepResult(
        name=sweep.name,
        description=sweep.description,
        waystage=__version__,
        mode=sweep.mode,
        duration_s=sweep.duration,
        seeds=sweep.seeds,
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
    results.write(folder, result)
    return result


def source_name(loaded: Loaded, index: int) -> str:
    """The name in the file, else that of the trace or pattern, told apart by number where need be."""
    names = []
    for source in loaded.sweep.jobs:
        if source.name is not None:
            names.append(source.name)
        elif source.trace is not None:
            names.append(Path(source.trace).name.split(".")[0])
        else:
            assert source.pattern is not None
            names.append(f"{source.pattern.kind}-{source.pattern.ranks}")
    name = names[index]
    return name if names.count(name) == 1 else f"{name}-{index + 1}"


def best_runs(result: SweepResult) -> list[RunRecord]:
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
        scheduler=choice_of(loaded, which, "scheduler").shown,
        host_selector=choice_of(loaded, which, "host_selector").shown,
        process_mapper=choice_of(loaded, which, "process_mapper").shown,
        router=choice_of(loaded, which, "router").shown,
        seed=which.seed,
        status=run.status,
        cause=run.cause,
        metrics=run.metrics,
    )


def _graphml(loaded: Loaded, store: Store, folder: Path, result: SweepResult) -> None:
    wanted = {run.number for run in (result.runs if result.planned <= MAX_GRAPHML else best_runs(result))}
    target = folder / GRAPHML_FOLDER
    for which, run in _found(loaded, store):
        if which.number in wanted and run.status == "done":
            target.mkdir(exist_ok=True)
            cluster = loaded.clusters[which.topology]
            text = graphml.with_loads(cluster, run.peak_loads(), run.total_loads())
            write_whole(target / f"run-{which.number}.graphml", text.encode())


class _Tables:
    """The two Parquet files, written run by run; they appear when both are complete."""

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
        with contextlib.ExitStack() as files:
            self._writers = [
                files.enter_context(
                    pq.ParquetWriter(files.enter_context(written(folder / name)), schema, compression="zstd")
                )
                for name, schema in ((LINKS_FILE, self._links), (JOBS_FILE, self._jobs))
            ]
            self._files = files.pop_all()

    def __enter__(self) -> _Tables:
        return self

    def __exit__(self, *raised: Any) -> None:
        self._files.__exit__(*raised)

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
