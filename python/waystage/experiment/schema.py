"""The experiment file's contents: topology, policies, jobs, measurements.

Arrives: nothing; these are the words of the file, documented in docs/reference/experiment.md.
Leaves: frozen structs that every world understands.
Must not know: YAML, files, any world. What only one world understands stands under that world's key.

`loading.load` makes an `Experiment` from a file and is the only place that checks one.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from waystage.events import RuleStyle

SCHEMA = 1
"""Raised when an older reader would misunderstand a file."""

Positive = Annotated[int, Meta(ge=1)]
Whole = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0)]
PositiveSeconds = Annotated[float, Meta(gt=0)]
Name = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Unknown keys are errors: a misspelt option that is silently ignored spoils a day of runs."""


class PolicyChoice(_Part, frozen=True, kw_only=True):
    """A policy to run, with options; `label` tells two choices of one policy apart. `rules` overrides the file's."""

    name: str
    options: dict[str, Any] = {}
    label: Name | None = None
    rules: RuleStyle | None = None

    @property
    def shown(self) -> str:
        return self.label or self.name


class Arrivals(_Part, frozen=True, kw_only=True):
    """Time from one job's submission to the next.

    `together`: all at once. `fixed`: `mean_s` apart. `uniform`: between `low_s` and `high_s`.
    `exponential`: a Poisson process of mean distance `mean_s`.
    """

    distribution: Literal["together", "fixed", "uniform", "exponential"] = "together"
    mean_s: PositiveSeconds | None = None
    low_s: Seconds | None = None
    high_s: PositiveSeconds | None = None


class Staging(_Part, frozen=True, kw_only=True):
    """A stage-in or stage-out: `bytes` for the job's first node (`head`), or that much for every node (`each`)."""

    bytes: Whole = 0
    to: Literal["head", "each"] = "head"
    files: Positive = 1


class Compute(_Part, frozen=True, kw_only=True):
    """The computation: `program` is a shipped name, or a path to an MPI program with `arguments`.

    A shipped program repeats its communication `iterations` times; every process sends `message` bytes to
    each peer in it and computes for `time_s` between two of them. `pattern` is a profile of the program, for the
    simulator, which runs no program: of a whole `run`, cut into `iterations` equal parts, or of one `iteration`.
    """

    program: str = "alltoall"
    arguments: tuple[str, ...] = ()
    iterations: Positive = 50
    message: Whole = 64 * 1024
    time_s: Seconds = 0.0
    processes_per_node: Positive = 1
    pattern: str | None = None
    pattern_of: Literal["run", "iteration"] = "run"


class ComputeIo(_Part, frozen=True, kw_only=True):
    """Use of the global file system during the computation (class `io`): `bytes` each way named, by the first node."""

    bytes: Positive
    direction: Literal["read", "write"] = "write"


class Mix(_Part, frozen=True, kw_only=True):
    """A kind of job: `share` of the jobs of a set are of it; what it gives replaces what `jobs` gives."""

    name: Name
    share: Annotated[float, Meta(gt=0)] = 1.0
    stage_in: Staging | None = None
    stage_out: Staging | None = None
    compute: Compute | None = None
    io: ComputeIo | None = None


class Jobs(_Part, frozen=True, kw_only=True):
    """The jobs of one set. `placement` chooses nodes, or lists them: the n-th job gets the n-th list, cyclically."""

    count: Positive
    nodes: Positive
    concurrent: Positive | None = None
    placement: Literal["alternate-edges", "linear"] | tuple[tuple[str, ...], ...] = "alternate-edges"
    storage: tuple[str, ...] = ()
    arrivals: Arrivals = Arrivals()
    stage_in: Staging = Staging()
    stage_out: Staging = Staging()
    compute: Compute = Compute()
    io: ComputeIo | None = None
    mixes: tuple[Mix, ...] = ()


class Measure(_Part, frozen=True, kw_only=True):
    """Over how long the use of links is summed; counters are read once a second."""

    interval_s: Annotated[float, Meta(ge=1, le=60)] = 1.0


class Limits(_Part, frozen=True, kw_only=True):
    """When to give up on a part of a job, and whether the rest of its set still runs."""

    staging_s: PositiveSeconds = 120.0
    compute_s: PositiveSeconds = 300.0
    on_failure: Literal["continue", "stop"] = "continue"


class LabOptions(_Part, frozen=True, kw_only=True):
    """What only the emulated cluster understands: its name, the space of a host's tmpfs, more `mpirun` arguments."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_]{1,16}$")] = "lab"
    tmpfs: Positive = 256 * 1024 * 1024
    mpirun: tuple[str, ...] = ()


class SimOptions(_Part, frozen=True, kw_only=True):
    """What only the simulator understands: what costs time or bytes beside the flows themselves.

    `mtu` gives the headers that are added to every payload. The times are medians measured on the lab
    (`waystage bench sim-accuracy` measures them anew), by programs of their own but for the first: from a decision to its paths in force; before a transfer's first byte; start and end of a
    program; before the messages of one step; that a notification holds up its job. `queue_s` is not measured: it
    is how long what begins on a link that others fill waits behind them. The lab's queues hold 30 ms, and TCP (CUBIC,
    RFC 9438, which falls back to 70 %) keeps them 85 % full on average. `alltoall` is how MPI_Alltoall
    is carried out; `auto` is what `lab.mpirun` asks Open MPI for, and `linear` where it asks for nothing.
    """

    mtu: Annotated[int, Meta(ge=576, le=65535)] = 9000
    switch_over_s: Seconds = 0.0075
    transfer_s: Seconds = 0.0
    program_s: Seconds = 0.5
    message_s: Seconds = 0.003
    queue_s: Seconds = 0.0255
    notify_s: Seconds = 0.006
    alltoall: Literal["auto", "pairwise", "linear"] = "auto"


class Experiment(_Part, frozen=True, kw_only=True):
    """One experiment file. `topology` is a shipped name or an absolute path once loaded."""

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
    measure: Measure = Measure()
    limits: Limits = Limits()
    lab: LabOptions = LabOptions()
    sim: SimOptions = SimOptions()
