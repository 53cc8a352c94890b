"""What one run leaves behind.

Arrives: nothing; these are the records of result.json and of the files of finished runs.
Leaves: structs, as bytes and back.
Must not know: how a run is made or shown.

There is no time of day and no path of this machine in any of them: the same seed gives the same bytes.
"""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

SCHEMA = 1

Status = Literal["done", "failed"]
JobStatus = Literal["done", "running", "waiting"]

F64 = NDArray[np.float64]


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One job. Times in simulated seconds; None for what had not happened when the run ended."""

    job: int
    source: int
    submitted_s: float
    started_s: float | None
    ended_s: float | None
    status: JobStatus
    hosts: tuple[int, ...] = ()


class Metrics(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over a run. Links are those between two switches, as in PFSim; both directions count by themselves.

    `max_load_bytes`: the largest load of any link at any time: load mode adds up what all running jobs send in their
    whole life; in time mode, which knows when bytes cross, it is what crossed the busiest link by the end.
    `max_congestion_s`: the same in seconds at the link's full rate, for the link where that is most.
    `bound_bytes`: what the busiest link carries at least, whatever the routing over `bound_over` (shortest paths, or all
    paths where the router may take others) of the jobs that ran when the largest load was reached, on the same hosts; 0
    where nothing crossed a link. `imbalance`: the load of the busiest link by the mean of all. Means are over the jobs that got so far.
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
    status: Status = "done"
    cause: str = ""
    metrics: Metrics = Metrics()


class FinishedRun(msgspec.Struct, frozen=True, kw_only=True):
    """What the file of a run holds: the loads of every directed link as little-endian doubles."""

    schema: int = SCHEMA
    status: Status = "done"
    cause: str = ""
    metrics: Metrics = Metrics()
    peak: bytes = b""
    total: bytes = b""
    jobs: tuple[JobRecord, ...] = ()

    def peak_loads(self) -> F64:
        return np.frombuffer(self.peak, dtype="<f8")

    def total_loads(self) -> F64:
        return np.frombuffer(self.total, dtype="<f8")
