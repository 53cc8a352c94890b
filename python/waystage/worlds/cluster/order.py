"""What the world hands to a job on its nodes, and what the job hands back: contents of files in the run's folder.

Arrives: nothing.
Leaves: a frozen struct, encoded as JSON.
Must not know: Slurm, processes.
"""

from __future__ import annotations

import msgspec

from waystage.experiment.results import JobRecord
from waystage.experiment.schema import ClusterOptions, Limits
from waystage.experiment.workload import JobRequest
from waystage.worlds.lab.collective import Operation


class JobOrder(msgspec.Struct, frozen=True, kw_only=True):
    """One job. `nodes` is the order of ranks, the head first; empty: Slurm's. `lab` names the lab whose Slurm it is."""

    request: JobRequest
    nodes: tuple[str, ...]
    options: ClusterOptions
    mpirun: tuple[str, ...]
    limits: Limits
    policy: str
    set_index: int
    endpoint: str = ""
    lab: str = ""


class JobDone(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a job that has ended, its times in seconds since 1970; what its program says of collective I/O."""

    record: JobRecord
    operations: tuple[Operation, ...] = ()
