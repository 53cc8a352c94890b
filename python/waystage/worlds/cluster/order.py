"""What the world hands to a job on its nodes: the contents of a file in the run's folder.

Arrives: nothing.
Leaves: a frozen struct, encoded as JSON.
Must not know: Slurm, processes.
"""

from __future__ import annotations

import msgspec

from waystage.experiment.schema import ClusterOptions, Limits
from waystage.experiment.workload import JobRequest


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
