"""How a job on a cluster carries out its parts, from its batch script: Open MPI within Slurm's allocation, and copies.

Arrives: a job and its nodes.
Leaves: moved bytes and ended programs, or `JobFailed` with the cause.
Must not know: notifications, times, other jobs.

In a lab's Slurm, staging is the lab's own: between namespaces, over the fabric, in its traffic class. Elsewhere it is
`waystage copy` between a directory that all nodes see and one of each node.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from waystage.events import Direction
from waystage.experiment.programs import PROGRAMS
from waystage.experiment.queue import Start
from waystage.experiment.schema import ClusterOptions, Compute
from waystage.experiment.workload import JobRequest
from waystage.worlds.base import JobFailed
from waystage.worlds.lab import mpi
from waystage.worlds.lab.collective import LabStorage, Operation, PhasesProgram
from waystage.worlds.lab.errors import LabError
from waystage.worlds.lab.lab import Lab
from waystage.worlds.lab.parts import LabParts, nodes_of
from waystage.worlds.lab.slurm_conf import MANAGEMENT
from waystage.worlds.lab.supervision import SupervisedProcess
from waystage.worlds.lab.wiring import SUBNET

_BLOCK = 1 << 20

PREPARE_LIMIT_S = 600.0
"""For what a job needs on its nodes before its time begins."""

_ON_NODE = """node=${SLURMD_NODENAME:-$(hostname)}
from=$1 into=$2
[ -z "$3" ] || from=$1/$node
shift 3
mkdir -p -- "$into" && exec "$@" "$from" "$into/$node"
"""
"""A copy on a node into a directory, under the node's name: `node_dir` may be one that all nodes see."""


class SlurmLabParts(LabParts):
    """A job of a lab's Slurm: its data moves as in the lab, its program runs in Slurm's allocation."""

    def __init__(self, lab: Lab, mpirun_options: Sequence[str]) -> None:
        super().__init__(lab, mpirun_options)
        # More ranks than processors is the rule here, as in `worlds.lab.mpi`.
        values = {
            "pml": "ob1",
            "btl": "tcp,self",
            "btl_tcp_if_include": str(SUBNET),
            "oob_tcp_if_include": str(MANAGEMENT),
            "mpi_yield_when_idle": "1",
            "hwloc_base_binding_policy": "none",
            "rmaps_base_mapping_policy": "slot",
            "rmaps_base_no_oversubscribe": "0",
        }
        self._options = [word for name, value in values.items() for word in ("--mca", name, value)]
        self._options += mpirun_options

    def compute(self, request: JobRequest, start: Start, limit_s: float, stop: threading.Event) -> None:
        compute_in_allocation(request.compute, start, self._options, limit_s, stop)

    def phases(
        self, request: JobRequest, start: Start, limit_s: float, stop: threading.Event
    ) -> list[Operation]:
        """Collective I/O to the lab's emulated file systems, which the run has mounted."""
        storage, flows = LabStorage(self._lab), {"WAYSTAGE_FLOWS": str(self._lab.flow_socket)}
        program = storage.program(request, start)
        try:
            found = phases_in_allocation(program, request, start, self._options, limit_s, stop, flows)
            storage.verify(program, request, start)
            return found
        finally:
            storage.remove(request, start)


class SiteParts:
    """A job of any other Slurm. `storage_dir` is a directory that every node sees."""

    def __init__(self, options: ClusterOptions, mpirun_options: Sequence[str]) -> None:
        assert options.storage_dir is not None, "the world has checked it"
        self._storage = Path(options.storage_dir)
        self._local = Path(options.node_dir)
        self._options = list(mpirun_options)

    def prepare(self, request: JobRequest, start: Start) -> None:
        """The data of a stage-in in `storage_dir`; that of a stage-out on the nodes that send it.

        Outside the job's times: they shall hold the transfers and nothing else.
        """
        moves = request.stage_in, request.stage_out
        try:
            for move in moves:
                _make_files(self._source(move.bytes, move.files), move.bytes, move.files)
        except OSError as error:
            raise JobFailed(f"{self._storage}: {error.strerror}") from None
        out = request.stage_out
        if out.bytes:
            source, local = self._source(out.bytes, out.files), self._local / f"waystage-{start.job_id}"
            never = threading.Event()
            nodes = nodes_of(out, start)
            self._copy(source, local / "out", nodes, "data of stage-out", PREPARE_LIMIT_S, never)

    def stage(
        self, request: JobRequest, start: Start, direction: Direction, limit_s: float, stop: threading.Event
    ) -> None:
        move = request.staging(direction)
        shared = self._source(move.bytes, move.files)
        local = self._local / f"waystage-{start.job_id}"
        nodes = nodes_of(move, start)
        if direction == "in":
            return self._copy(shared, local / "in", nodes, "stage-in", limit_s, stop)
        place = self._storage / "jobs" / start.job_id
        return self._copy(local / "out", place, nodes, "stage-out", limit_s, stop, from_node=True)

    def compute(self, request: JobRequest, start: Start, limit_s: float, stop: threading.Event) -> None:
        compute_in_allocation(request.compute, start, self._options, limit_s, stop)

    def phases(
        self, request: JobRequest, start: Start, limit_s: float, stop: threading.Event
    ) -> list[Operation]:
        """Collective I/O to a file in `storage_dir`, by the site's own storage and aggregators."""
        assert request.collective is not None
        place = self._storage / "jobs" / f"{start.job_id}-io"
        program = PhasesProgram(request.collective, start, place)
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            found = phases_in_allocation(program, request, start, self._options, limit_s, stop, {})
            program.verify(place)
            return found
        except OSError as error:
            raise JobFailed(f"{place}: {error.strerror}") from None

    def io(self, request: JobRequest, start: Start, limit_s: float, stop: threading.Event) -> None:
        assert request.io is not None
        amount, place = request.io.bytes, self._storage / "jobs" / f"{start.job_id}-io"
        if request.io.direction == "read":
            place = self._source(amount, 1) / "0.bin"
            _make_files(place.parent, amount, 1)
            words = ["dd", f"if={place}", "of=/dev/null", "bs=1M"]
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            words = [
                "dd",
                "if=/dev/zero",
                f"of={place}",
                "bs=1M",
                f"count={amount}",
                "iflag=count_bytes",
                "conv=fsync",
            ]
        _run(words, f"I/O of job {start.job_id}", limit_s, stop)

    def clear(self, start: Start) -> None:
        """Remove the job's files from its nodes and the shared directory."""
        local = self._local / f"waystage-{start.job_id}"
        subprocess.run(
            ["srun", "--overlap", "--ntasks-per-node=1", "rm", "-rf", "--", str(local)],
            check=False,
            capture_output=True,
        )
        for place in (self._storage / "jobs" / start.job_id, self._storage / "jobs" / f"{start.job_id}-io"):
            shutil.rmtree(place, ignore_errors=True) if place.is_dir() else place.unlink(missing_ok=True)

    def _source(self, size: int, files: int) -> Path:
        return self._storage / "data" / f"{size}-{files}"

    def _copy(
        self,
        source: Path,
        into: Path,
        nodes: Sequence[str],
        what: str,
        limit_s: float,
        stop: threading.Event,
        *,
        from_node: bool = False,
    ) -> None:
        """One `waystage copy` on each of `nodes`, at the same time."""
        copy = ["sh", "-c", _ON_NODE, "sh", str(source), str(into), "from-node" if from_node else ""]
        copy += [sys.executable, "-m", "waystage", "copy", "--quiet"]
        words = [
            "srun",
            "--overlap",
            f"--nodes={len(nodes)}",
            f"--ntasks={len(nodes)}",
            "--ntasks-per-node=1",
        ]
        _run([*words, f"--nodelist={','.join(nodes)}", *copy], what, limit_s, stop)


def compute_in_allocation(
    compute: Compute, start: Start, options: Sequence[str], limit_s: float, stop: threading.Event
) -> None:
    """Run the program on the job's nodes by mpirun, its first rank on the first node. Raises JobFailed."""
    try:
        program = (
            mpi.shipped(
                compute.program, iterations=compute.iterations, message=compute.message, time_s=compute.time_s
            )
            if compute.program in PROGRAMS
            else [compute.program, *compute.arguments]
        )
    except LabError as error:
        raise JobFailed(str(error)) from None
    words = _mpirun(start, compute.processes_per_node, options)
    if compute.launcher:
        words = [sys.executable, "-m", "waystage", *compute.launcher, *words]
    _run([*words, *program], f"program {compute.program} of job {start.job_id}", limit_s, stop)


def phases_in_allocation(
    program: PhasesProgram,
    request: JobRequest,
    start: Start,
    options: Sequence[str],
    limit_s: float,
    stop: threading.Event,
    variables: Mapping[str, str],
) -> list[Operation]:
    """Run a program with collective I/O on the job's nodes, an aggregator on each. Raises JobFailed."""
    assert request.collective is not None
    what = f"collective I/O of job {start.job_id}"
    exported = {**variables, **program.variables()}
    options = [*options, *(word for name in exported for word in ("-x", name))]
    try:
        words = [*program.launcher(), *_mpirun(start, request.collective.processes_per_node, options)]
        words += program.words()
        program.load()
    except LabError as error:
        raise JobFailed(f"{what}: {error}") from None
    except OSError as error:
        raise JobFailed(f"{what}: {error.filename}: {error.strerror}") from None
    return program.wait(_started(words, what, exported, program.heard), limit_s, stop)


def _mpirun(start: Start, per_node: int, options: Sequence[str]) -> list[str]:
    hosts = ",".join(f"{node}:{per_node}" for node in start.nodes)
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return ["mpirun", *root, "--host", hosts, "-np", str(len(start.nodes) * per_node), *options]


def _run(words: Sequence[str], what: str, limit_s: float, stop: threading.Event) -> None:
    _started(words, what).wait(limit_s, stop)


def _started(
    words: Sequence[str],
    what: str,
    variables: Mapping[str, str] | None = None,
    heard: Callable[[str], None] | None = None,
) -> SupervisedProcess:
    try:
        process = subprocess.Popen(
            list(words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            env={**os.environ, **(variables or {})},
        )
    except OSError as error:
        raise JobFailed(f"{what}: {words[0]}: {error.strerror}") from None
    return SupervisedProcess(process, what, heard=heard)


def _make_files(folder: Path, size: int, files: int) -> None:
    """`files` files of together `size` bytes, made once; random, so that nothing on the way can shorten them."""
    if not size or folder.is_dir():
        return
    draft = folder.with_name(f".{folder.name}.{os.getpid()}")
    draft.mkdir(parents=True)
    part, rest = divmod(size, files)
    for index in range(files):
        with (draft / f"{index}.bin").open("wb") as file:
            left = part + (1 if index < rest else 0)
            while left:
                block = os.urandom(min(left, _BLOCK))
                file.write(block)
                left -= len(block)
    try:
        draft.rename(folder)
    except OSError:  # another job of the same sizes was faster
        shutil.rmtree(draft)
