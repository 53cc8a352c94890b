"""The scenario file's contents: topologies, algorithms, jobs, seeds.

Arrives: nothing; these are the words of the file, documented in docs/reference/simulator.md.
Leaves: frozen structs.
Must not know: YAML, files, how anything is simulated.

`duration`, `topology`, `output`, `algorithms` and `jobs` are PFSim's keys with PFSim's meaning; the rest is ours and
may be left out.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from waystage.experiment.schema import Name

SCHEMA = 1
"""Raised when an older reader would misunderstand a file."""

Mode = Literal["load", "time"]
Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1, le=2**31)]
Amount = Annotated[int, Meta(ge=0, le=2**53)]
"""Bytes: beyond 2^53 a double, in which loads are added up, skips whole numbers."""
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]

DEFAULT_LIMIT_S = 600.0
"""Ten minutes for one run: the largest cases take one, so what takes longer loops."""


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Unknown keys are errors: a misspelt option that is silently ignored spoils a day of runs."""


class TopologyChoice(_Part, frozen=True, kw_only=True):
    """A topology: a kind with its parameters. `file` takes `path`; the generated kinds are in `topologies`."""

    kind: str
    params: dict[str, Any] = {}
    label: Name | None = None


class AlgorithmChoice(_Part, frozen=True, kw_only=True):
    """An algorithm by shipped name, PFSim's name or `module:Class`; `label` tells two choices of one apart."""

    name: str
    options: dict[str, Any] = {}
    label: Name | None = None


class Algorithms(_Part, frozen=True, kw_only=True):
    """A list for each task; every combination is run."""

    scheduler: tuple[AlgorithmChoice, ...] = (AlgorithmChoice(name="fcfs"),)
    host_selector: tuple[AlgorithmChoice, ...] = (AlgorithmChoice(name="linear"),)
    process_mapper: tuple[AlgorithmChoice, ...] = (AlgorithmChoice(name="block"),)
    router: tuple[AlgorithmChoice, ...]


class Distribution(_Part, frozen=True, kw_only=True):
    """Random numbers of one kind; `distributions` says which, and their `params`."""

    distribution: str
    params: dict[str, Any] = {}


class GeneratedPattern(_Part, frozen=True, kw_only=True):
    """Traffic by rule instead of by trace: `bytes` from each rank to each of its partners."""

    kind: Literal["all-to-all", "ring", "grid", "random"]
    ranks: Count
    bytes: Annotated[int, Meta(ge=1, le=2**53)] = 1
    partners: Count = 4


class JobSource(_Part, frozen=True, kw_only=True):
    """Jobs of one kind that keep arriving.

    `submit`: seconds from one arrival to the next. `duration`: how long a job holds its nodes in load mode; in time
    mode the time it asks for, which only backfilling looks at. `estimate`: what the scheduler is told, as a multiple
    of the duration. `count`: jobs at most. Time mode: a job stages `stage_in` bytes to each of its nodes, computes
    for `compute_s` and communicates, `iterations` times, and stages `stage_out` bytes from each node.
    """

    submit: Distribution
    duration: Distribution | None = None
    trace: str | None = None
    pattern: GeneratedPattern | None = None
    name: Name | None = None
    count: Count | None = None
    estimate: Annotated[float, Meta(ge=1)] = 1.0
    iterations: Count = 1
    compute_s: NotNegative = 0.0
    stage_in: Amount = 0
    stage_out: Amount = 0


class Scenario(_Part, frozen=True, kw_only=True):
    """A whole file. `duration` is the simulated time in seconds after which a run ends."""

    duration: Positive
    topology: tuple[TopologyChoice, ...]
    algorithms: Algorithms
    jobs: tuple[JobSource, ...]
    output: str | None = None
    name: Name = "scenario"
    description: str = ""
    mode: Mode = "load"
    seeds: tuple[Seed, ...] = (0,)
    limit_s: Positive = DEFAULT_LIMIT_S


def shown(choice: AlgorithmChoice) -> str:
    """How the choice is called in tables."""
    return choice.label or choice.name
