"""How the lab carries out the parts of a job: file transfers for staging and I/O, Open MPI for computation.

Arrives: a job and its nodes.
Leaves: moved bytes and ended programs, or `JobFailed` with the cause.
Must not know: notifications, times, other jobs.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Sequence

from waystage.events import Direction
from waystage.experiment.programs import PROGRAMS
from waystage.experiment.queue import Start
from waystage.experiment.schema import Compute, Staging
from waystage.experiment.workload import JobRequest
from waystage.worlds.base import JobFailed
from waystage.worlds.lab import mpi, staging, tag_service
from waystage.worlds.lab.errors import LabError
from waystage.worlds.lab.lab import Lab
from waystage.worlds.lab.supervision import SupervisedProcess, transfer_ended, why_ended


class LabParts:
    """`one_job.Parts` on a lab whose staging services run."""

    def __init__(self, lab: Lab, mpirun_options: Sequence[str]) -> None:
        self._lab = lab
        self._mpirun_options = tuple(mpirun_options)
        self._preparing = threading.Lock()

    def build(self, computes: Sequence[Compute], *, phases: bool = False) -> None:
        """Compile what the jobs will run, so that no job's time holds a compiler's. Raises LabError."""
        for compute in computes:
            if compute.program in PROGRAMS:
                mpi.build(compute.program)
        if phases:
            mpi.build("phases")

    def prepare(self, request: JobRequest, start: Start) -> None:
        """Make the files that will be staged: a job's time shall hold their transfer and nothing else.

        One job at a time: jobs that start together stage the same files of the storage host.
        """
        try:
            with self._preparing:
                self._make_files(request, start, "in")
                self._make_files(request, start, "out")
        except LabError as error:
            raise JobFailed(str(error)) from None

    def stage(
        self, request: JobRequest, start: Start, direction: Direction, limit_s: float, stop: threading.Event
    ) -> None:
        move = request.staging(direction)
        assert request.storage is not None
        transfers: list[staging.Transfer] = []
        try:
            for node in nodes_of(move, start):
                transfers.append(
                    staging.stage(
                        self._lab,
                        start.job_id,
                        direction,
                        node,
                        storage=request.storage,
                        size=move.bytes,
                        files=move.files,
                    )
                )
            for transfer in transfers:
                self._finish(transfer, f"stage-{direction} of job {start.job_id}", limit_s, stop)
        except LabError as error:
            raise JobFailed(str(error)) from None
        finally:
            for transfer in transfers:
                if not transfer.is_over:
                    transfer.kill()

    def compute(self, request: JobRequest, start: Start, limit_s: float, stop: threading.Event) -> None:
        compute = request.compute
        try:
            process = mpi.start(
                self._lab,
                start.nodes,
                self._command(compute),
                processes_per_node=compute.processes_per_node,
                options=self._mpirun_options,
                launcher=(sys.executable, "-m", "waystage", *compute.launcher) if compute.launcher else (),
                variables={
                    "WAYSTAGE_FLOWS": str(self._lab.flow_socket),
                    "WAYSTAGE_JOB": start.job_id,
                    "WAYSTAGE_TAGS_SOCKET": str(tag_service.socket_of(self._lab)),
                },
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        except (LabError, OSError) as error:
            raise JobFailed(f"program {compute.program} of job {start.job_id}: {error}") from None
        SupervisedProcess(process, f"program {compute.program} of job {start.job_id}").wait(limit_s, stop)

    def io(self, request: JobRequest, start: Start, limit_s: float, stop: threading.Event) -> None:
        assert request.io is not None and request.storage is not None
        try:
            transfer = staging.job_io(
                self._lab,
                start.job_id,
                request.io.direction,
                start.nodes[0],
                storage=request.storage,
                size=request.io.bytes,
            )
            self._finish(transfer, f"I/O of job {start.job_id}", limit_s, stop)
        except LabError as error:
            raise JobFailed(str(error)) from None

    def clear(self, start: Start) -> None:
        staging.remove_job(self._lab, start.job_id)

    def _make_files(self, request: JobRequest, start: Start, direction: Direction) -> None:
        move = request.staging(direction)
        if not move.bytes:
            return
        assert request.storage is not None
        for node in nodes_of(move, start):
            sender = request.storage if direction == "in" else node
            part, rest = divmod(move.bytes, move.files)
            for index in range(move.files):
                staging.source_file(self._lab, sender, part + (1 if index < rest else 0), index)

    def _finish(self, transfer: staging.Transfer, what: str, limit_s: float, stop: threading.Event) -> None:
        if not transfer_ended(transfer, limit_s, stop):
            transfer.kill()
            raise JobFailed(f"{what} {why_ended(limit_s, stop)}")
        transfer.wait()

    def _command(self, compute: Compute) -> list[str]:
        if compute.program in PROGRAMS:
            return mpi.shipped(
                compute.program, iterations=compute.iterations, message=compute.message, time_s=compute.time_s
            )
        return [compute.program, *compute.arguments]


def nodes_of(move: Staging, start: Start) -> tuple[str, ...]:
    """The nodes whose data a staging moves."""
    return start.nodes if move.to == "each" else start.nodes[:1]
