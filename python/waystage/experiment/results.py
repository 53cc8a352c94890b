"""The results of a run, in one schema whichever world ran it.

Arrives: records of jobs, switch-overs and link use.
Leaves: a folder with `result.json`, `timelines.parquet`, `events.jsonl`; and back again.
Must not know: how the records were made, how they are drawn.

The files are documented in docs/reference/results.md. A reader of schema N refuses what is newer, and
ignores fields it does not know.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from waystage.experiment.schema import Experiment

SCHEMA = 1

RESULT_FILE = "result.json"
TIMELINES_FILE = "timelines.parquet"
EVENTS_FILE = "events.jsonl"
REPORT_FILE = "report.html"
LOGS_FOLDER = "logs"


class ResultError(ValueError):
    """A folder that holds no readable result; the message says which file and why."""


class JobRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One job of one set under one policy. Times in seconds, `*_at_s` from the start of the run.

    `job_s` is from start to end: staging and computation, without waiting in the queue. `staging_s` is
    the sum of stage-in and stage-out (what the paper's Fig. 11 calls by these names).
    """

    policy: str
    set: int
    index: int
    job_id: str
    kind: str = "job"
    nodes: tuple[str, ...] = ()
    storage: str | None = None
    submitted_at_s: float = 0.0
    started_at_s: float = 0.0
    ended_at_s: float = 0.0
    stage_in_s: float = 0.0
    compute_s: float = 0.0
    stage_out_s: float = 0.0
    status: Literal["done", "failed"] = "done"
    cause: str = ""

    @property
    def job_s(self) -> float:
        return self.ended_at_s - self.started_at_s

    @property
    def staging_s(self) -> float:
        return self.stage_in_s + self.stage_out_s


class SwitchOver(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One change of paths: `to` is `on` where classes are separated afterwards. Times in milliseconds.

    `total_ms` is from the publication of the event that caused it to the answer of the last barrier.
    """

    policy: str
    set: int
    at_s: float
    to: Literal["on", "off"]
    total_ms: float
    processor_ms: float
    planner_ms: float
    install_ms: float
    messages: int = 0
    switches: int = 0


class PortSample(msgspec.Struct, frozen=True, kw_only=True):
    """What left `node` through `port` (towards `peer`) in one class over an interval ending at `at_s`.

    `traffic` is a class, or `all` for the port's own counter. `core`: the node is a core switch.
    """

    policy: str
    set: int
    at_s: float
    interval_s: float
    node: str
    port: int
    peer: str
    traffic: str
    bytes: int
    core: bool = True


class Drops(msgspec.Struct, frozen=True, kw_only=True):
    """Packets dropped in a set: `cpu` where the switch itself did not keep up, `queue` at full link queues."""

    policy: str
    set: int
    cpu: int = 0
    queue: int = 0


class RunResult(msgspec.Struct, kw_only=True):
    """A whole run. `invalid` says why its numbers do not count; `notes` what a reader should know."""

    name: str
    world: str
    experiment: Experiment
    schema: int = SCHEMA
    waystage: str = ""
    started: str = ""
    wall_s: float = 0.0
    machine: dict[str, Any] = {}
    idle_pct: float = 100.0
    lowest_idle_pct: float = 100.0
    jobs: list[JobRecord] = []
    switch_overs: list[SwitchOver] = []
    drops: list[Drops] = []
    invalid: list[str] = []
    notes: list[str] = []
    interrupted: bool = False
    failure: str = ""

    @property
    def valid(self) -> bool:
        return not self.invalid

    @property
    def policies(self) -> list[str]:
        return [choice.shown for choice in self.experiment.policies]


def save(folder: Path, result: RunResult, samples: Sequence[PortSample], events: Iterable[bytes]) -> None:
    """Write the folder. Each file appears whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / EVENTS_FILE, b"".join(line + b"\n" for line in events))
    save_timelines(folder / TIMELINES_FILE, samples)
    _write(folder / RESULT_FILE, msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")


def load(folder: Path) -> RunResult:
    """Raises ResultError where the folder holds no result, or one that is newer or broken."""
    path = folder / RESULT_FILE
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ResultError(f"{path}: {error.strerror}: give the folder that `waystage run` wrote") from None
    try:
        version = msgspec.json.decode(data, type=_Version).schema
        if version > SCHEMA:
            raise ResultError(
                f"{path}: schema {version} is newer than {SCHEMA}, which this Waystage reads: update it"
            )
        return msgspec.json.decode(data, type=RunResult)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ResultError(f"{path}: is no result: {error}") from None


def save_timelines(path: Path, samples: Sequence[PortSample]) -> None:
    """One row a sample, columns as the fields of PortSample."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    fields = PortSample.__struct_fields__
    columns = {name: [getattr(s, name) for s in samples] for name in fields}
    kinds = {
        "set": pa.int32(),
        "port": pa.int32(),
        "bytes": pa.int64(),
        "at_s": pa.float64(),
        "interval_s": pa.float64(),
        "core": pa.bool_(),
    }
    table = pa.table({n: pa.array(v, type=kinds.get(n, pa.string())) for n, v in columns.items()})
    whole = path.with_suffix(".part")
    try:
        pq.write_table(table, whole, compression="zstd")
        os.replace(whole, path)
    finally:
        whole.unlink(missing_ok=True)


def load_timelines(folder: Path) -> list[PortSample]:
    """The samples of a run; none where the file is absent. Raises ResultError where it is broken."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = folder / TIMELINES_FILE
    if not path.exists():
        return []
    try:
        rows = pq.read_table(path).to_pylist()
        return [msgspec.convert(row, PortSample) for row in rows]
    except (pa.ArrowException, OSError, msgspec.MsgspecError) as error:
        raise ResultError(f"{path}: is no timeline file: {error}") from None


class _Version(msgspec.Struct):
    schema: int = 1


def _write(path: Path, data: bytes) -> None:
    whole = path.with_name(path.name + ".part")
    try:
        whole.write_bytes(data)
        os.replace(whole, path)
    finally:
        whole.unlink(missing_ok=True)
