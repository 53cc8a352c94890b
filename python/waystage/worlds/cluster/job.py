"""One job of an experiment on its nodes, run by its batch script: `python -m waystage.worlds.cluster.job ORDER RECORD`.

Arrives: a file with the order; Slurm's environment.
Leaves: a file with the job's record, its times in seconds since 1970; a part that failed is in the record.
Must not know: policies, controllers, other jobs.

The job's start and end reach the controller from Slurm's hooks. Only where the experiment names another first node than
Slurm does is the start repeated, with the nodes in that order.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType

import msgspec

from waystage.backplane import Backplane, BackplaneError
from waystage.events import Envelope, Event, EventError, JobFinished, JobStarted, envelope
from waystage.experiment.queue import Start
from waystage.experiment.workload import JobRequest
from waystage.jobs.hostlist import expand
from waystage.jobs.notify import Notifier
from waystage.outputs import write_whole
from waystage.worlds.base import job_record
from waystage.worlds.cluster.controllers import connection
from waystage.worlds.cluster.order import JobDone, JobOrder
from waystage.worlds.cluster.parts import SiteParts, SlurmLabParts
from waystage.worlds.lab.collective import Operation
from waystage.worlds.lab.errors import LabError
from waystage.worlds.lab.lab import Lab
from waystage.worlds.lab.one_job import JobRun

PATIENCE_S = 30.0
"""How long a notification waits for a controller that a busy machine stalls."""


class PartsOnly:
    """A publisher of staging and I/O: a job's start and end are Slurm's to report, unless its order of nodes differs."""

    def __init__(self, backplane: Backplane, reorders: bool) -> None:
        self._backplane, self._reorders = backplane, reorders

    def publish(self, event: Event, *, confirm: bool = False, timeout: float = 5.0) -> Envelope:
        if isinstance(event, JobFinished) or (isinstance(event, JobStarted) and not self._reorders):
            return envelope(event, source="cluster-job")
        return self._backplane.publish(event, confirm=confirm, timeout=timeout)

    def close(self) -> None:
        self._backplane.close()


def main(order_file: str, record_file: str) -> int:
    order = msgspec.json.decode(Path(order_file).read_bytes(), type=JobOrder)
    by_slurm = expand(os.environ["SLURM_JOB_NODELIST"])
    start = Start(job_id=os.environ["SLURM_JOB_ID"], nodes=order.nodes or by_slurm)
    began = time.time()
    try:
        done = _run(order, start, reorders=start.nodes != by_slurm)
    except (BackplaneError, EventError, LabError, OSError) as error:
        # The command reads records; what else a job prints is on a node.
        run = {"policy": order.policy, "set": order.set_index, "submitted_at_s": 0.0}
        took = {"in": 0.0, "compute": 0.0, "out": 0.0}
        cause = f"{start.nodes[0]}: {error}"
        done = JobDone(record=job_record(order.request, start, cause, (began, time.time()), took, **run))
    write_whole(Path(record_file), msgspec.json.encode(done))
    return 0


def _run(order: JobOrder, start: Start, *, reorders: bool) -> JobDone:
    """Raises BackplaneError where the controller does not answer, LabError where the lab is gone."""
    parts: SlurmLabParts | SiteParts
    if order.lab:
        parts = SlurmLabParts(Lab.attach(order.lab), order.mpirun)
    else:
        parts = SiteParts(order.options, order.mpirun)
    stop = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        stop.set()  # scancel, or a time limit: parts end, and what they left is removed

    signal.signal(signal.SIGTERM, end)
    operations: list[Operation] = []

    def phases(request: JobRequest, start: Start, limit_s: float, stop: threading.Event) -> None:
        operations.extend(parts.phases(request, start, limit_s, stop))

    config = connection(order.options, f"job-{start.job_id}", order.endpoint)
    with Notifier(PartsOnly(Backplane.open(config), reorders), patience_s=PATIENCE_S) as notifier:
        run = JobRun(
            parts,
            notifier,
            order.limits,
            policy=order.policy,
            set_index=order.set_index,
            set_began_s=0.0,
            now=time.time,
            phases=phases,
        )
        return JobDone(record=run(order.request, start, stop), operations=tuple(operations))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
