"""The contents of an experiment file, of every kind.

Arrives: nothing; these are the keys of the file, documented in docs/reference/experiment.md.
Leaves: frozen structs, in which every amount is in bytes and every time in seconds.
Must not know: YAML, files, any world. Options of one world are under that world's key.

An experiment compares *policies* (`Experiment`), sweeps over combinations of scheduling, placement and routing
(`Sweep`), or studies storage *contention* (`ContentionStudy`). `loading` makes these from a file and checks them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from waystage.events import Direction, RuleStyle

Positive = Annotated[int, Meta(ge=1)]
Whole = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0)]
PositiveSeconds = Annotated[float, Meta(gt=0)]
Name = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Count = Annotated[int, Meta(ge=1, le=2**31)]
Bytes = Annotated[int, Meta(ge=1, le=2**53)]
Amount = Annotated[int, Meta(ge=0, le=2**53)]
"""Bytes: beyond 2^53 a double, in which loads are added up, skips integers."""


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A mapping of the file. Unknown keys are errors: a misspelt option that is ignored spoils a day of runs."""


class Choice(Part, frozen=True, kw_only=True):
    """A policy or algorithm by shipped name or `module:Class`; `label` tells two choices of one name apart."""

    name: str
    options: dict[str, Any] = {}
    label: Name | None = None

    @property
    def shown(self) -> str:
        """The name in results."""
        return self.label or self.name


class Distribution(Part, frozen=True, kw_only=True):
    """Random times: from one submission to the next, or how long a job holds its nodes.

    `together`: always 0. `fixed`: `mean_s`. `uniform`: from `low_s` to `high_s`. `exponential`: of mean `mean_s`, or of
    `rate_per_s` events a second. `lognormal`: around `median_s`, `sigma` of the logarithm.
    `listed`: those of `each_s` in order, then from the first again.
    """

    distribution: Literal["together", "fixed", "uniform", "exponential", "lognormal", "listed"] = "together"
    mean_s: Seconds | None = None
    rate_per_s: PositiveSeconds | None = None
    low_s: Seconds | None = None
    high_s: Seconds | None = None
    median_s: PositiveSeconds | None = None
    sigma: Seconds | None = None
    each_s: tuple[Seconds, ...] | None = None


class Sizes(Part, frozen=True, kw_only=True):
    """Sizes of files: lognormal around `median`, `sigma` of the logarithm, none larger than `largest`."""

    median: Bytes
    sigma: Annotated[float, Meta(ge=0, le=10)]
    largest: Bytes


# -- policies: the same jobs under each policy, in the simulator, the lab or a cluster ---------------------


class PolicyChoice(Choice, frozen=True, kw_only=True):
    """A policy to run; `rules` overrides the file's rule style for it."""

    rules: RuleStyle | None = None


class FileSystem(Part, frozen=True, kw_only=True):
    """A file system of the simulator. One loader alone gets `bytes_per_s` from a target; x get a g(x)-th of it each.

    `slowdown` lists points (x, g); the default keeps a target's total for any number of loaders. `hosts` serve
    the targets in turn; by default all storage nodes do.
    """

    name: Name
    targets: Annotated[int, Meta(ge=1, le=4096)]
    bytes_per_s: Bytes
    slowdown: Annotated[tuple[tuple[float, float], ...], Meta(min_length=1)] = ((1.0, 1.0), (2.0, 2.0))
    hosts: tuple[str, ...] = ()


class WidePath(Part, frozen=True, kw_only=True):
    """A wide-area path of the simulator, in each direction `bytes_per_s`; `host` is its near end."""

    name: Name
    bytes_per_s: Bytes
    rtt_s: Seconds = 0.0
    host: str = ""


class Striped(Part, frozen=True, kw_only=True):
    """Data on `stripes` targets of a file system of the file, read or written by `loaders` for each; none: no file
    system limits it. Each loader moves `object_bytes` at once, and all of a flow together no more than `memory`.
    """

    file_system: str | None = None
    stripes: Positive | Literal["all"] = 1
    loaders: Annotated[int, Meta(ge=1, le=4096)] = 1
    object_bytes: Bytes | None = None
    memory: Bytes | None = None


class WideCopy(Striped, frozen=True, kw_only=True):
    """A wide-area copy beside the jobs of each set: `bytes` over a path, from `start_s` on.

    Its near end is the file system, and the path's host where there is none.
    """

    name: Name
    path: str
    bytes: Bytes
    direction: Direction = "in"
    mode: Literal["fair", "fast-start", "modest", "aggressive"] = "fair"
    start_s: Seconds = 0.0


class Staging(Striped, frozen=True, kw_only=True):
    """A stage-in or stage-out: `bytes` for the job's first node (`head`), or that much for every node (`each`)."""

    bytes: Whole = 0
    to: Literal["head", "each"] = "head"
    files: Positive = 1


class Compute(Part, frozen=True, kw_only=True):
    """The computation: `program` is a shipped name, or a path to an MPI program with `arguments`.

    A shipped program repeats its communication `iterations` times; in each, every process sends `message` bytes to
    each peer after computing for `time_s`. `pattern` is a profile of the program for the simulator, which runs no
    program: of a complete `run`, cut into `iterations` equal parts, or of one `iteration`. With `paths` the program
    declares its collectives (`waystage mpi --paths`), and with `tags` its packets say what they belong to (`--tags`).
    """

    program: str = "alltoall"
    arguments: tuple[str, ...] = ()
    iterations: Positive = 50
    message: Whole = 64 * 1024
    time_s: Seconds = 0.0
    processes_per_node: Positive = 1
    pattern: str | None = None
    pattern_of: Literal["run", "iteration"] = "run"
    paths: bool = False
    tags: bool = False

    @property
    def launcher(self) -> tuple[str, ...]:
        """Words of `waystage mpi` before the launcher's; empty where the program runs as it is."""
        wanted = [option for option, on in (("--paths", self.paths), ("--tags", self.tags)) if on]
        return ("mpi", *wanted, "--") if wanted else ()


class ComputeIo(Striped, frozen=True, kw_only=True):
    """Use of the global file system by the first node during the computation (class `io`)."""

    bytes: Positive
    direction: Literal["read", "write"] = "write"


class SlowAggregator(Part, frozen=True, kw_only=True):
    """A load on aggregator number `aggregator` (from 0, in the order of the job's nodes): `delay_s` more for each window.

    From operation `start` on, to before operation `end`; none: to the last. `lost`: it dies in the middle of `start`.
    """

    aggregator: Whole
    delay_s: Seconds = 0.0
    start: Positive = 1
    end: Positive | None = None
    lost: bool = False


class CollectiveIo(Part, frozen=True, kw_only=True):
    """A program that computes and writes in phases, in the place of `compute`: `compute_s`, then one collective write.

    `bytes` are those of all ranks in one operation, and the program makes `operations` of them. `aggregators` nodes
    of the job, the first ones, aggregate; each takes `aggregator_bytes_per_s` into `buffer`s, which it writes over
    `stripes` targets of `file_system`. `noise` is the sigma of the logarithm of each aggregator's speed, drawn anew for
    each operation. `start_s` of computation precede the first phase.
    """

    file_system: str
    bytes: Bytes
    operations: Positive = 10
    compute_s: Seconds = 0.0
    start_s: Seconds = 0.0
    stripes: Positive | Literal["all"] = "all"
    aggregators: Positive | Literal["all"] = "all"
    aggregator_bytes_per_s: Bytes = 1 << 40
    buffer: Bytes = 16 << 20
    noise: Annotated[float, Meta(ge=0, le=2)] = 0.0
    slow: tuple[SlowAggregator, ...] = ()
    processes_per_node: Positive = 1


class Mix(Part, frozen=True, kw_only=True):
    """A kind of job: `share` of the jobs of a set are of it; what it gives replaces what `jobs` gives."""

    name: Name
    share: Annotated[float, Meta(gt=0)] = 1.0
    nodes: Positive | None = None
    stage_in: Staging | None = None
    stage_out: Staging | None = None
    compute: Compute | None = None
    io: ComputeIo | None = None
    collective: CollectiveIo | None = None
    due_s: Seconds | None = None


class Jobs(Part, frozen=True, kw_only=True):
    """The jobs of one set. `placement` chooses nodes, or lists them: the n-th job gets the n-th list, cyclically.

    A job computes `due_s` after it got its nodes at the earliest, as one that waits for its turn while it stages in.
    """

    count: Positive
    nodes: Positive
    concurrent: Positive | None = None
    placement: Literal["alternate-edges", "linear"] | tuple[tuple[str, ...], ...] = "alternate-edges"
    storage: tuple[str, ...] = ()
    arrivals: Distribution = Distribution()
    stage_in: Staging = Staging()
    stage_out: Staging = Staging()
    compute: Compute = Compute()
    io: ComputeIo | None = None
    collective: CollectiveIo | None = None
    due_s: Seconds = 0.0
    mixes: tuple[Mix, ...] = ()


class Measure(Part, frozen=True, kw_only=True):
    """The interval over which the use of links is summed; None for the shortest that the length of a set allows."""

    interval_s: Annotated[float, Meta(ge=0.1, le=60)] | None = None


class Limits(Part, frozen=True, kw_only=True):
    """When a part of a job is stopped, and whether the rest of its set still runs."""

    staging_s: PositiveSeconds = 120.0
    compute_s: PositiveSeconds = 300.0
    on_failure: Literal["continue", "stop"] = "continue"


class LabOptions(Part, frozen=True, kw_only=True):
    """Options of the emulated cluster: its name, the size of a host's tmpfs in bytes, more `mpirun` arguments."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_]{1,16}$")] = "lab"
    tmpfs: Positive = 256 * 1024 * 1024
    mpirun: tuple[str, ...] = ()


class ClusterOptions(Part, frozen=True, kw_only=True):
    """Options of a real cluster: arguments of `sbatch` and `mpirun` (None: those of the lab), where data lives.

    `storage_dir` is a directory that every node sees, `node_dir` one on each node. `set_policy` is a command that makes
    the running controller use a policy, whose name is added to it; without it only one policy can be run. `config` is a
    client's file with endpoints and certificates, which every node sees. In a lab's Slurm all of these are known. `placement: slurm` leaves the choice of nodes to Slurm.
    """

    sbatch: tuple[str, ...] = ()
    mpirun: tuple[str, ...] | None = None
    storage_dir: str | None = None
    node_dir: str = "/tmp"
    set_policy: tuple[str, ...] = ()
    endpoint: str | None = None
    config: str | None = None
    placement: Literal["file", "slurm"] = "file"


class SimOptions(Part, frozen=True, kw_only=True):
    """Options of the simulator: what costs time or bytes beside the flows themselves.

    `mtu` gives the headers of every payload. The times are medians measured on the lab (`waystage bench sim-accuracy`
    measures them anew): from a decision to its paths in force; before a transfer's first byte; start and end of a
    program; before the messages of one step; for the confirmation of a notification. `queue_s` is not measured: a
    message that begins on a full link waits that long behind the switch's queue. The lab's queues hold 30 ms, and TCP
    (CUBIC, RFC 9438, which falls back to 70 %) keeps them 85 % full on average. `obey_s` is from a decision to its
    effect on a flow: engines obey within 100 ms; `grant_s`, from a decision to what an application that
    does collective I/O knows at its control points. `alltoall` is the algorithm of
    MPI_Alltoall; `auto` is what `lab.mpirun` selects, and `linear` where it selects none.
    """

    mtu: Annotated[int, Meta(ge=576, le=65535)] = 9000
    switch_over_s: Seconds = 0.0075
    transfer_s: Seconds = 0.0
    program_s: Seconds = 0.5
    message_s: Seconds = 0.003
    queue_s: Seconds = 0.0255
    notify_s: Seconds = 0.006
    obey_s: Seconds = 0.05
    grant_s: Seconds = 0.004
    alltoall: Literal["auto", "pairwise", "linear"] = "auto"


class Experiment(Part, frozen=True, kw_only=True, tag_field="kind", tag="policies"):
    """A comparison of policies. `topology` is a shipped name or an absolute path once loaded."""

    name: Name
    topology: str
    policies: tuple[PolicyChoice, ...]
    jobs: Jobs
    schema: Literal[1] = 1
    description: str = ""
    rules: RuleStyle = "labelled"
    seed: Whole = 0
    hash_seed: Literal["per-set"] | Whole = "per-set"
    sets: Positive = 1
    first_set: Whole = 0
    file_systems: tuple[FileSystem, ...] = ()
    wide_paths: tuple[WidePath, ...] = ()
    copies: tuple[WideCopy, ...] = ()
    measure: Measure = Measure()
    limits: Limits = Limits()
    lab: LabOptions = LabOptions()
    cluster: ClusterOptions = ClusterOptions()
    sim: SimOptions = SimOptions()


# -- sweep: every combination of topologies, algorithms and seeds, in the simulator -----------------------


class TopologyChoice(Part, frozen=True, kw_only=True):
    """A topology: `file` with a `path`, or a generated kind with its parameters (`simulate.topologies`)."""

    kind: str
    params: dict[str, Any] = {}
    label: Name | None = None


class Algorithms(Part, frozen=True, kw_only=True):
    """A list for each task; every combination is run."""

    scheduler: tuple[Choice, ...] = (Choice(name="fcfs"),)
    host_selector: tuple[Choice, ...] = (Choice(name="linear"),)
    process_mapper: tuple[Choice, ...] = (Choice(name="block"),)
    router: tuple[Choice, ...]


class GeneratedPattern(Part, frozen=True, kw_only=True):
    """Traffic by rule instead of by trace: `bytes` from each rank to each of its partners."""

    kind: Literal["all-to-all", "ring", "grid", "random"]
    ranks: Count
    bytes: Bytes = 1
    partners: Count = 4


class JobSource(Part, frozen=True, kw_only=True):
    """Jobs of one kind that keep arriving.

    `submit`: from one arrival to the next. `duration`: how long a job holds its nodes in load mode; in time mode the
    time it requests, which only backfilling uses. `estimate`: the requested time as a multiple of the duration.
    `count`: jobs at most. Time mode: a job stages `stage_in` bytes to each of its nodes, computes for `compute_s` and
    communicates, `iterations` times, and stages `stage_out` bytes from each node.
    """

    submit: Distribution
    duration: Distribution | None = None
    trace: str | None = None
    pattern: GeneratedPattern | None = None
    name: Name | None = None
    count: Count | None = None
    estimate: Annotated[float, Meta(ge=1)] = 1.0
    iterations: Count = 1
    compute_s: Seconds = 0.0
    stage_in: Amount = 0
    stage_out: Amount = 0


class Sweep(Part, frozen=True, kw_only=True, tag_field="kind", tag="sweep"):
    """A sweep over combinations. `duration` is the simulated time in seconds at which a run ends.

    `limit_s` bounds the real time of one run: the largest cases take a minute, so what takes ten loops.
    """

    name: Name
    duration: PositiveSeconds
    topology: tuple[TopologyChoice, ...]
    algorithms: Algorithms
    jobs: tuple[JobSource, ...]
    schema: Literal[1] = 1
    description: str = ""
    output: str | None = None
    mode: Literal["load", "time"] = "load"
    seeds: tuple[Seed, ...] = (0,)
    limit_s: PositiveSeconds = 600.0


# -- contention: loaders on storage targets, in the simulator ----------------------------------------------


class LayoutPart(Part, frozen=True, kw_only=True, omit_defaults=False):
    """The bytes of a file up to `to` (none: the rest) are striped over this many targets."""

    stripes: Positive | Literal["all"]
    to: Bytes | None = None


class Contention(Part, frozen=True, kw_only=True, omit_defaults=False):
    """The model; `slowdown` lists (loaders on a target, time of an object relative to one loader alone)."""

    targets: Annotated[int, Meta(ge=2, le=65535)]
    files: Annotated[int, Meta(ge=1, le=100_000_000)]
    sizes: Sizes
    stripe_size: Bytes = 1 << 20
    layout: Annotated[tuple[LayoutPart, ...], Meta(min_length=1)]
    ratios: Annotated[tuple[Positive, ...], Meta(min_length=1)]
    slowdown: Annotated[tuple[tuple[float, float], ...], Meta(min_length=1)]
    dealing: Literal["queue", "cyclic"] = "queue"


class ContentionStudy(
    Part, frozen=True, kw_only=True, omit_defaults=False, tag_field="kind", tag="contention"
):
    """A study of storage contention: the model, and a seed for each repetition."""

    name: Name
    contention: Contention
    schema: Literal[1] = 1
    description: str = ""
    seeds: Annotated[tuple[Seed, ...], Meta(min_length=1)] = (1,)


AnyExperiment = Experiment | Sweep | ContentionStudy
