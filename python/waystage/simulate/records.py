"""A finished run of a sweep, as its file keeps it.

Arrives: nothing; these are the records of the files of finished runs.
Leaves: structs, as bytes and back.
Must not know: how a run is made or shown.

There is no time of day and no path of this machine in any of them: the same seed gives the same bytes.
"""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from waystage.experiment.results import Metrics

SCHEMA = 1

F64 = NDArray[np.float64]


class JobTimes(msgspec.Struct, frozen=True, kw_only=True):
    """One job. Times in simulated seconds; None for what had not happened when the run ended."""

    job: int
    source: int
    submitted_s: float
    started_s: float | None
    ended_s: float | None
    status: Literal["done", "running", "waiting"]
    hosts: tuple[int, ...] = ()


class FinishedRun(msgspec.Struct, frozen=True, kw_only=True):
    """`peak` and `total` are the loads of every directed link, as little-endian doubles."""

    schema: int = SCHEMA
    status: Literal["done", "failed"] = "done"
    cause: str = ""
    metrics: Metrics = Metrics()
    peak: bytes = b""
    total: bytes = b""
    jobs: tuple[JobTimes, ...] = ()

    def peak_loads(self) -> F64:
        return np.frombuffer(self.peak, dtype="<f8")

    def total_loads(self) -> F64:
        return np.frombuffer(self.total, dtype="<f8")
