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
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

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
def storage(lab: Lab, experiment: Experiment) -> Iterator[dict[str, Path]]:
    """Emulated file systems for those of the experiment, by name: where each is mounted. Raises LabError."""
    wanted = collectives(experiment)
    if not wanted:
        yield {}
        return
    from waystage.worlds.lab import pfs

    used = {what.file_system: what.stripes for what in wanted}
    points: dict[str, Path] = {}
    with contextlib.ExitStack() as stack:
        for system in experiment.file_systems:
            if system.name in used:
                point, folder = (lab.run_dir / kind / system.name for kind in ("pfs", "pfs-data"))
                point.mkdir(parents=True)
                folder.mkdir(parents=True)
                pfs.mount(point, _shape(system, used[system.name]), folder)
                stack.callback(pfs.unmount, point, force=True)
                points[system.name] = point
        yield points


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


class Programs:
    """Runs jobs with collective I/O on a lab; `points` are those of `storage`."""

    def __init__(self, lab: Lab, points: dict[str, Path], mpirun_options: Sequence[str]) -> None:
        self._lab, self._points, self._options = lab, points, tuple(mpirun_options)

    def run(
        self,
        request: JobRequest,
        start: Start,
        limit_s: float,
        stop: threading.Event,
        operations: Operations,
    ) -> list[IoRecord]:
        """Records of the operations, with times of the monotonic clock and without a policy. Raises JobFailed."""
        what = request.collective
        assert what is not None
        name = f"collective I/O of job {start.job_id}"
        folder = self._lab.run_dir / "io" / start.job_id
        folder.mkdir(parents=True)
        file = self._points[what.file_system] / start.job_id
        try:
            process = self._start(what, start, file, folder)
        except (LabError, OSError) as error:
            raise JobFailed(f"{name}: {error}") from None
        load = _Load(what, start.nodes, folder)
        running = SupervisedProcess(process, name, heard=load.heard)
        try:
            running.wait(limit_s, stop)
            self._verify(what, start, file)
            return [
                self._record(line.split(), what, request.index, start.job_id, operations)
                for line in load.operations
            ]
        finally:
            file.unlink(missing_ok=True)

    def _start(self, what: CollectiveIo, start: Start, file: Path, folder: Path) -> mpi.MpiJob:
        count = len(start.nodes) if what.aggregators == "all" else what.aggregators
        words: list[object] = [mpi.build("phases"), file, what.bytes, what.operations, what.compute_s]
        words += [what.start_s, count, what.buffer]
        # Images of two windows and as much to stage: half of the memory each.
        memory = max(16 << 20, 8 * what.buffer)
        launcher = [sys.executable, "-m", "waystage", "mpi", "--io", "--quiet", "--job", start.job_id]
        launcher += ["--memory", f"{memory}B", "--"]
        return mpi.start(
            self._lab,
            start.nodes,
            [str(word) for word in words],
            processes_per_node=what.processes_per_node,
            options=self._options,
            launcher=launcher,
            variables={
                "WAYSTAGE_FLOWS": str(self._lab.flow_socket),
                "WAYSTAGE_IO_DELAY_FILE": str(folder / "%h"),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def _record(
        self,
        words: Sequence[str],
        what: CollectiveIo,
        index: int,
        job_id: str,
        operations: Operations,
    ) -> IoRecord:
        op, began_ns, io_s = int(words[1]), int(words[2]), float(words[3])
        waited_s = min(operations.waited_s(job_id, op), io_s)
        epoch, aggregators = operations.map_at(job_id, _wall_ns(began_ns) + round(io_s * 1e9))
        return IoRecord(
            policy="",
            set=0,
            index=index,
            job_id=job_id,
            op=op,
            requested_at_s=began_ns / 1e9,
            waited_s=waited_s,
            took_s=io_s - waited_s,
            bytes=what.bytes,
            epoch=epoch,
            aggregators=aggregators,
        )

    def _verify(self, what: CollectiveIo, start: Start, file: Path) -> None:
        """The last write of each rank, in the folder behind the emulated file system: to read it through it takes time."""
        behind = self._lab.run_dir / "pfs-data" / what.file_system / file.name
        ranks = len(start.nodes) * what.processes_per_node
        if (size := os.stat(behind).st_size) != what.bytes:
            raise JobFailed(f"{file.name} has {size} bytes and not {what.bytes}: a write was lost")
        data = np.memmap(behind, dtype=np.uint8, mode="r")
        each = what.bytes // ranks
        for rank in range(ranks):
            low, high = each * rank, what.bytes if rank == ranks - 1 else each * (rank + 1)
            for at in range(low, high, _VERIFIED_AT_ONCE):
                if (data[at : min(high, at + _VERIFIED_AT_ONCE)] != (what.operations + rank) % 256).any():
                    raise JobFailed(f"{file.name} has wrong bytes of rank {rank} from {at} on")


class _Load:
    """Follows a program's lines, and loads aggregators from one operation to another."""

    def __init__(self, what: CollectiveIo, nodes: Sequence[str], folder: Path) -> None:
        self._what, self._nodes, self._folder = what, nodes, folder
        self.operations: list[str] = []
        self._set(1)

    def heard(self, line: str) -> None:
        """Called with each line, by the thread that reads it."""
        if line.startswith("op "):
            self.operations.append(line)
            self._set(int(line.split()[1]) + 1)

    def _set(self, op: int) -> None:
        """For the operation that comes. An aggregator reads its load four times a second."""
        what = self._what
        count = len(self._nodes) if what.aggregators == "all" else what.aggregators
        usual_s = window_bytes(what.bytes // count, what.buffer) / what.aggregator_bytes_per_s
        delays = dict.fromkeys(self._nodes, usual_s)
        for slow in what.slow:
            if slow.start <= op and (slow.end is None or op < slow.end):
                delays[self._nodes[slow.aggregator]] += slow.delay_s
        for node, seconds in delays.items():
            file = self._folder / node
            draft = file.with_suffix(".new")
            draft.write_text(f"{round(seconds * 1e6)}\n", encoding="ascii")
            draft.replace(file)


def _wall_ns(monotonic_ns: int) -> int:
    return time.time_ns() - time.monotonic_ns() + monotonic_ns
