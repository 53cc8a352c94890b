"""Collective I/O in the lab: programs that compute and write in phases, through real aggregators on each node.

Arrives: a job with `collective` and its nodes; events of its applications.
Leaves: a record of each operation; the bytes, verified, on an emulated file system.
Must not know: policies, when jobs start.

The program is run by `waystage mpi --io` and knows nothing of Waystage. Targets and their contention are those of the
emulated file system (docs/reference/pfs.md); writes reach it without crossing the emulated network,
which carries the shuffle. The load of an aggregator is a sleep before each of its buffers.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np

from waystage.events import Envelope, IoApplicationStarted, IoCompleted, ServerMapAdopted
from waystage.experiment.queue import Start
from waystage.experiment.results import IoRecord
from waystage.experiment.schema import CollectiveIo, Experiment, FileSystem
from waystage.experiment.workload import JobRequest
from waystage.worlds.base import JobFailed, Unfit
from waystage.worlds.lab import mpi
from waystage.worlds.lab.errors import LabError
from waystage.worlds.lab.supervision import SupervisedProcess
from waystage.worlds.windows import window_bytes

if TYPE_CHECKING:
    from waystage.worlds.lab.lab import Lab
    from waystage.worlds.lab.pfs.shape import Shape

STRIPE_BYTES = 1 << 20
LARGEST_BUFFER = 32 << 20
"""The largest window of an aggregator."""

_VERIFIED_AT_ONCE = 1 << 22


def collectives(experiment: Experiment) -> list[CollectiveIo]:
    """Every kind of collective I/O of the experiment."""
    jobs = experiment.jobs
    return [what for what in (jobs.collective, *(mix.collective for mix in jobs.mixes)) if what is not None]


def check(experiment: Experiment) -> None:
    """Raises Unfit for what the lab does not emulate."""
    stripes: dict[str, int | Literal["all"]] = {}
    for what in collectives(experiment):
        if any(slow.lost for slow in what.slow):
            raise Unfit("collective.slow.lost: the lab kills no aggregator; use --on sim, or leave it out")
        if what.noise:
            raise Unfit(
                "collective.noise: the lab's aggregators have their own; use --on sim, or leave it out"
            )
        if what.buffer > LARGEST_BUFFER:
            raise Unfit(
                f"collective.buffer of {what.buffer} bytes: an aggregator of the lab has at most 32 MiB"
            )
        if stripes.setdefault(what.file_system, what.stripes) != what.stripes:
            raise Unfit(
                f"collective.stripes: files of {what.file_system} have two stripe counts; the lab's have one"
            )


class Operations:
    """A subscriber's callback: what events say of the operations of each job."""

    def __init__(self) -> None:
        self._job_of: dict[str, str] = {}
        self._waited: dict[str, dict[int, float]] = defaultdict(dict)
        self._maps: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
        self._lock = threading.Lock()

    def __call__(self, item: Envelope) -> None:
        event = item.event
        with self._lock:
            if isinstance(event, IoApplicationStarted) and event.job_id:
                self._job_of[event.app] = event.job_id
            elif isinstance(event, IoCompleted) and event.operations == 1:
                self._waited[self._job_of.get(event.app, "")][event.op] = event.waited_ns / 1e9
            elif isinstance(event, ServerMapAdopted):
                maps = self._maps[self._job_of.get(event.app, "")]
                maps.append((item.time_ns, event.epoch, len(event.aggregators)))

    def records(
        self,
        found: Sequence[Operation],
        request: JobRequest,
        job_id: str,
        run_began_s: float,
    ) -> list[IoRecord]:
        """What a job's program and the events say together, without a policy. The run began `run_began_s` after 1970."""
        records = []
        for one in found:
            assert request.collective is not None, "operations are of jobs with collective I/O"
            waited_s = min(self.waited_s(job_id, one.op), one.took_s)
            epoch, aggregators = self.map_at(job_id, round((one.began_s + one.took_s) * 1e9))
            records.append(
                IoRecord(
                    policy="",
                    set=0,
                    index=request.index,
                    job_id=job_id,
                    op=one.op,
                    requested_at_s=one.began_s - run_began_s,
                    waited_s=waited_s,
                    took_s=one.took_s - waited_s,
                    bytes=request.collective.bytes,
                    epoch=epoch,
                    aggregators=aggregators,
                )
            )
        return records

    def waited_s(self, job_id: str, op: int) -> float:
        """For a grant; 0 where no report says so."""
        with self._lock:
            return self._waited[job_id].get(op, 0.0)

    def map_at(self, job_id: str, time_ns: int) -> tuple[int, int]:
        """Epoch and number of aggregators that an operation which ended then had; 0, 0: not known."""
        with self._lock:
            before = [found for found in self._maps[job_id] if found[0] <= time_ns]
            _, epoch, count = max(before, default=(0, 0, 0))
            return epoch, count


@contextlib.contextmanager
def storage(lab: Lab, experiment: Experiment) -> Iterator[None]:
    """Emulated file systems for those of the experiment, mounted at `pfs/NAME` in the lab's folder. Raises LabError."""
    wanted = collectives(experiment)
    if not wanted:
        yield
        return
    from waystage.worlds.lab import pfs

    used = {what.file_system: what.stripes for what in wanted}
    with contextlib.ExitStack() as stack:
        for system in experiment.file_systems:
            if system.name in used:
                point, folder = (lab.run_dir / kind / system.name for kind in ("pfs", "pfs-data"))
                point.mkdir(parents=True, exist_ok=True)
                folder.mkdir(parents=True, exist_ok=True)
                if point.is_mount():  # by a run on this lab that was killed
                    pfs.unmount(point, force=True)
                pfs.mount(point, _shape(system, used[system.name]), folder)
                stack.callback(pfs.unmount, point, force=True)
        yield


def _shape(system: FileSystem, stripes: int | Literal["all"]) -> Shape:
    from waystage.worlds.lab.pfs import shape

    none = shape.Latencies(lookup=0, open=0, close=0, layout=0, readdir=0, change=0)
    return shape.Shape(
        name=system.name,
        targets=shape.Targets(
            count=system.targets,
            read_per_s=system.bytes_per_s,
            write_per_s=system.bytes_per_s,
            slowdown=system.slowdown,
        ),
        metadata=shape.Metadata(messages_per_s=1e6, latency_ms=none),
        layout=shape.Layout(parts=(shape.LayoutPart(stripes=stripes, stripe_size=STRIPE_BYTES),)),
        client=shape.Client(pages="direct"),
    )


class Operation(msgspec.Struct, frozen=True):
    """What a program says of one operation: when it began, in seconds since 1970, and how long its slowest rank took."""

    op: int
    began_s: float
    took_s: float


class PhasesProgram:
    """The program of one job on its nodes, writing to `file`. `folder` is for the loads of its aggregators."""

    def __init__(self, what: CollectiveIo, start: Start, file: Path, folder: Path | None = None) -> None:
        self._what, self._start, self._file, self._folder = what, start, file, folder
        self._operations: list[Operation] = []

    def words(self) -> list[str]:
        """The program and its arguments. Raises LabError where it cannot be compiled."""
        what = self._what
        count = len(self._start.nodes) if what.aggregators == "all" else what.aggregators
        words: list[object] = [mpi.build("phases"), self._file, what.bytes, what.operations, what.compute_s]
        return [str(word) for word in [*words, what.start_s, count, what.buffer]]

    def launcher(self) -> list[str]:
        """The words before mpirun."""
        # Images of two windows and as much to stage: half of the memory each.
        memory = max(16 << 20, 8 * self._what.buffer)
        words = [sys.executable, "-m", "waystage", "mpi", "--io", "--quiet", "--job", self._start.job_id]
        return [*words, "--memory", f"{memory}B", "--"]

    def variables(self) -> dict[str, str]:
        """For the environment of its processes."""
        return {} if self._folder is None else {"WAYSTAGE_IO_DELAY_FILE": str(self._folder / "%h")}

    def load(self) -> None:
        """Load the aggregators for the first operation. Raises OSError."""
        if self._folder is not None:
            self._folder.mkdir(parents=True)
        self._set(1)

    def wait(self, running: SupervisedProcess, limit_s: float, stop: threading.Event) -> list[Operation]:
        """Its operations, once it has ended well. Raises JobFailed."""
        running.wait(limit_s, stop)
        return self._operations

    def heard(self, line: str) -> None:
        """Called with each line, by the thread that reads it."""
        if line.startswith("op "):
            _, op, began_ns, took_s, *_ = line.split()
            self._operations.append(Operation(int(op), int(began_ns) / 1e9, float(took_s)))
            self._set(int(op) + 1)

    def verify(self, behind: Path) -> None:
        """The last write of each rank, in the file `behind` the one it wrote to. Raises JobFailed."""
        what, name = self._what, behind.name
        ranks = len(self._start.nodes) * what.processes_per_node
        if (size := os.stat(behind).st_size) != what.bytes:
            raise JobFailed(f"{name} has {size} bytes and not {what.bytes}: a write was lost")
        data = np.memmap(behind, dtype=np.uint8, mode="r")
        each = what.bytes // ranks
        for rank in range(ranks):
            low, high = each * rank, what.bytes if rank == ranks - 1 else each * (rank + 1)
            for at in range(low, high, _VERIFIED_AT_ONCE):
                if (data[at : min(high, at + _VERIFIED_AT_ONCE)] != (what.operations + rank) % 256).any():
                    raise JobFailed(f"{name} has wrong bytes of rank {rank} from {at} on")

    def _set(self, op: int) -> None:
        """Loads for the operation that comes. An aggregator reads its load four times a second."""
        if self._folder is None:
            return
        what, nodes = self._what, self._start.nodes
        count = len(nodes) if what.aggregators == "all" else what.aggregators
        usual_s = window_bytes(what.bytes // count, what.buffer) / what.aggregator_bytes_per_s
        delays = dict.fromkeys(nodes, usual_s)
        for slow in what.slow:
            if slow.start <= op and (slow.end is None or op < slow.end):
                delays[nodes[slow.aggregator]] += slow.delay_s
        for node, seconds in delays.items():
            file = self._folder / node
            draft = file.with_suffix(".new")
            draft.write_text(f"{round(seconds * 1e6)}\n", encoding="ascii")
            draft.replace(file)


class LabStorage:
    """Where the files of a lab's jobs with collective I/O are: on the emulated file systems of `storage`."""

    def __init__(self, lab: Lab) -> None:
        self._run_dir = lab.run_dir

    def program(self, request: JobRequest, start: Start) -> PhasesProgram:
        """The program of a job."""
        assert request.collective is not None
        folder = self._run_dir / "io" / start.job_id
        return PhasesProgram(request.collective, start, self._file(request, start, "pfs"), folder)

    def verify(self, program: PhasesProgram, request: JobRequest, start: Start) -> None:
        """In the folder behind the emulated file system: to read it through it takes time. Raises JobFailed."""
        program.verify(self._file(request, start, "pfs-data"))

    def remove(self, request: JobRequest, start: Start) -> None:
        """Remove the job's file and the loads of its aggregators."""
        self._file(request, start, "pfs").unlink(missing_ok=True)
        shutil.rmtree(self._run_dir / "io" / start.job_id, ignore_errors=True)

    def _file(self, request: JobRequest, start: Start, place: str) -> Path:
        assert request.collective is not None
        return self._run_dir / place / request.collective.file_system / start.job_id


class Programs:
    """Runs jobs with collective I/O on a lab inside `storage`."""

    def __init__(self, lab: Lab, mpirun_options: Sequence[str]) -> None:
        self._lab, self._options = lab, tuple(mpirun_options)
        self._storage = LabStorage(lab)

    def run(
        self, request: JobRequest, start: Start, limit_s: float, stop: threading.Event
    ) -> list[Operation]:
        """Raises JobFailed."""
        what = request.collective
        assert what is not None
        name = f"collective I/O of job {start.job_id}"
        program = self._storage.program(request, start)
        try:
            program.load()
            process = mpi.start(
                self._lab,
                start.nodes,
                program.words(),
                processes_per_node=what.processes_per_node,
                options=self._options,
                launcher=program.launcher(),
                variables={"WAYSTAGE_FLOWS": str(self._lab.flow_socket), **program.variables()},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        except (LabError, OSError) as error:
            raise JobFailed(f"{name}: {error}") from None
        try:
            operations = program.wait(SupervisedProcess(process, name, heard=program.heard), limit_s, stop)
            self._storage.verify(program, request, start)
            return operations
        finally:
            self._storage.remove(request, start)
