"""The results of an experiment, in a folder.

Arrives: the records of a run.
Leaves: a folder with `result.json` and, by kind, `timelines.parquet` and `events.jsonl`; and the result back.
Must not know: how the records were made, how they are drawn.

docs/reference/results.md describes the files. A reader of schema N refuses what is newer, reads what is older, and
ignores fields that it does not know.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from waystage.experiment.schema import ContentionStudy, Experiment
from waystage.experiment.timelines import PortSample, Timelines
from waystage.outputs import write_whole

SCHEMA = 2
"""2: `kind` in every result, and `sweep` instead of `scenario`. Raised when an older reader would misunderstand one."""

RESULT_FILE = "result.json"
TIMELINES_FILE = "timelines.parquet"
EVENTS_FILE = "events.jsonl"
EXPERIMENT_FILE = "experiment.yaml"
"""The experiment as it was run, options of the command line included: `waystage run` takes it."""
LOGS_FOLDER = "logs"


class ResultError(ValueError):
    """A folder that holds no readable result; the message says which file and why."""


class Result(msgspec.Struct, kw_only=True):
    """What every result has. `waystage` is the version that made it."""

    name: str = ""
    schema: int = SCHEMA
    waystage: str = ""


# -- policies ------------------------------------------------------------------------------------------------


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


class IoRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One collective operation of a job. `waited_s` is for a grant, `took_s` the rest, both in seconds.

    `epoch` counts server maps from 1, `aggregators` is how many the map has.
    """

    policy: str
    set: int
    index: int
    job_id: str
    op: int
    requested_at_s: float
    waited_s: float = 0.0
    took_s: float = 0.0
    bytes: int = 0
    epoch: int = 0
    aggregators: int = 0

    @property
    def io_s(self) -> float:
        return self.waited_s + self.took_s


class AloneRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A job of this kind without others and without a policy, in seconds: the whole, and its collective I/O."""

    kind: str
    job_s: float
    io_s: float


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


class Drops(msgspec.Struct, frozen=True, kw_only=True):
    """Packets dropped in a set: `cpu` where the switch itself did not keep up, `queue` at full link queues."""

    policy: str
    set: int
    cpu: int = 0
    queue: int = 0


class RunResult(Result, kw_only=True, tag_field="kind", tag="policies"):
    """A comparison of policies. `invalid` says why its numbers do not count; `notes` what a reader should know."""

    world: str
    experiment: Experiment
    started: str = ""
    wall_s: float = 0.0
    machine: dict[str, Any] = {}
    idle_pct: float = 100.0
    lowest_idle_pct: float = 100.0
    jobs: list[JobRecord] = []
    io: list[IoRecord] = []
    alone: list[AloneRecord] = []
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


# -- sweep ---------------------------------------------------------------------------------------------------


class Metrics(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over a run. Links are those between two switches, as in PFSim; each direction counts separately.

    `max_load_bytes`: the largest load of any link at any time. Load mode adds up what all running jobs send in their
    life; time mode, which knows when bytes cross, counts what crossed the busiest link by the end.
    `max_congestion_s`: the same in seconds at the link's full rate, for the link where that is most.
    `bound_bytes`: what the busiest link carries at least, whatever the routing over `bound_over` (shortest paths, or
    all paths where the router may take others) of the jobs that ran when the largest load was reached, on the same
    hosts; 0 where nothing crossed a link. `imbalance`: the load of the busiest link by the mean of all. Means are over
    the jobs that started (`mean_wait_s`) or ended (`mean_job_s`).
    """

    submitted: int = 0
    started: int = 0
    finished: int = 0
    max_load_bytes: float = 0.0
    busiest_link: str = ""
    max_congestion_s: float = 0.0
    imbalance: float = 1.0
    total_bytes: float = 0.0
    mean_wait_s: float = 0.0
    mean_job_s: float = 0.0
    last_end_s: float = 0.0
    node_use: float = 0.0
    bound_bytes: float = 0.0
    bound_over: str = ""

    @property
    def gap(self) -> float | None:
        """By what share the largest load is above the bound; None where there is no bound."""
        return self.max_load_bytes / self.bound_bytes - 1 if self.bound_bytes > 0 else None


class RunRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One combination with one seed. `number` counts from 1 in the order of the file."""

    number: int
    topology: str
    scheduler: str
    host_selector: str
    process_mapper: str
    router: str
    seed: int
    status: Literal["done", "failed"] = "done"
    cause: str = ""
    metrics: Metrics = Metrics()


class TopologyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A topology of a sweep; `digest` is that of its nodes, links, slots and capacities."""

    label: str
    hosts: int
    switches: int
    links: int
    slots: int
    digest: str


class SourceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A source of jobs: its ranks, and what all of them send in one iteration. `warning`: why not to trust it."""

    name: str
    ranks: int
    bytes: float
    digest: str
    warning: str = ""


class SweepResult(Result, kw_only=True, tag_field="kind", tag="sweep"):
    """`planned` runs less those in `runs` were not made, because of an interruption."""

    description: str = ""
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

    @property
    def failed(self) -> list[RunRecord]:
        return [run for run in self.runs if run.status == "failed"]


# -- contention ----------------------------------------------------------------------------------------------


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One ratio of loaders to targets, as a mean over seeds. Times are in units of one object read by one loader."""

    ratio: int
    imbalance: float
    straggler_ratio: float
    file_level: float
    ideal_object_level: float
    object_level: float
    chosen: float


class Row(Point, frozen=True, kw_only=True):
    """One ratio with one seed."""

    seed: int
    chosen_loaders: int


class ContentionResult(Result, kw_only=True, tag_field="kind", tag="contention"):
    """`objects`: how many the files have, by seed."""

    study: ContentionStudy
    objects: tuple[int, ...]
    best_loaders: int
    points: tuple[Point, ...]
    rows: tuple[Row, ...]


# -- files ---------------------------------------------------------------------------------------------------

AnyResult = RunResult | SweepResult | ContentionResult
R = TypeVar("R", bound=AnyResult)

_KINDS: dict[str, type[Any]] = {
    "policies": RunResult,
    "sweep": SweepResult,
    "scenario": SweepResult,  # schema 1
    "contention": ContentionResult,
}


def save(folder: Path, result: RunResult, samples: Sequence[PortSample], events: Iterable[bytes]) -> None:
    """Write the folder of a comparison of policies. Each file appears complete or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / EVENTS_FILE, b"".join(line + b"\n" for line in events))
    experiment = msgspec.json.format(msgspec.json.encode(result.experiment), indent=1)  # JSON is YAML
    write_whole(folder / EXPERIMENT_FILE, experiment + b"\n")
    Timelines.of(samples).save(folder / TIMELINES_FILE)
    write(folder, result)


def write(folder: Path, result: AnyResult) -> None:
    """Write `result.json`."""
    write_whole(folder / RESULT_FILE, msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")


def read(folder: Path) -> AnyResult:
    """The result of any kind. Raises ResultError where the folder holds none, or one that is newer or broken."""
    path = folder / RESULT_FILE
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ResultError(f"{path}: {error.strerror}: give the folder that `waystage run` wrote") from None
    try:
        head = msgspec.json.decode(data, type=_Head)
        if head.schema > SCHEMA:
            raise ResultError(
                f"{path}: schema {head.schema} is newer than {SCHEMA}, which this Waystage reads: update it"
            )
        if head.kind not in _KINDS:
            raise ResultError(f"{path}: is no result: kind {head.kind!r} is not known")
        content = msgspec.json.decode(data)
        content.pop("kind", None)
        found: AnyResult = msgspec.convert(content, _KINDS[head.kind])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ResultError(f"{path}: is no result: {error}") from None
    return found


def load(folder: Path) -> RunResult:
    """The result of a comparison of policies. Raises ResultError, also for another kind."""
    found = read(folder)
    if not isinstance(found, RunResult):
        raise ResultError(
            f"{folder / RESULT_FILE}: is of a sweep or contention study: give a run of policies"
        )
    return found


def load_timelines(folder: Path) -> Timelines:
    """The samples of a run; none where the file is absent. Raises ResultError where it is broken."""
    import pyarrow as pa

    path = folder / TIMELINES_FILE
    if not path.exists():
        return Timelines.of([])
    try:
        samples = Timelines.read(path)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ResultError(f"{path}: is no timeline file: {error}") from None
    if not samples.are_times_sane():
        raise ResultError(
            f"{path}: has times that are none: copy the folder again, or run the experiment again"
        )
    return samples


class _Head(msgspec.Struct):
    kind: str = "policies"
    schema: int = 1
