"""What the parts of a job send, as steps of flows.

Arrives: a job, its nodes, a pattern file where the program has one.
Leaves: `Program`s: pauses and sets of transfers, for the network to carry out.
Must not know: links, paths, shares, time.

Each follows what the lab really runs. Staging: one transfer a node, so one stream, file after file. MPI_Alltoall,
`pairwise`: in step s of p - 1, rank r sends to r + s and receives from r - s, and goes on when both are done;
`linear`: everything at once. Steps end together for all ranks, where a real rank waits for its two partners only: with
three ranks that is the same. Ranks on one node exchange without the network.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from waystage.events import Direction, FlowEndpoint, TrafficClass
from waystage.experiment.programs import COLLECTIVES, PROGRAMS, TOGETHER
from waystage.experiment.queue import Start
from waystage.experiment.schema import Compute, SimOptions, Striped
from waystage.experiment.workload import JobRequest
from waystage.mpi_steps import OPEN_MPI, steps_of
from waystage.patterns import Pattern, PatternError
from waystage.worlds.base import Unfit
from waystage.worlds.sim.resources import Flow, Resources
from waystage.worlds.sim.wire import MPI_HEAD, Wire

IO_PIECE_BYTES = 16 * 1024 * 1024
"""As in the lab: I/O of a job is one transfer of at most this size after another."""

_OPEN_MPI_ALLTOALL = {"1": "linear", "2": "pairwise", "4": "linear"}
"""Values of Open MPI's parameter coll_tuned_alltoall_algorithm; 4 is linear with a bound on outstanding messages."""


class Transfers(msgspec.Struct, frozen=True):
    """Transfers that begin together, column by column: bytes on the wire there, and of acknowledgements back."""

    traffic: TrafficClass
    sources: Sequence[str]
    targets: Sequence[str]
    data: NDArray[np.float64]
    acknowledgements: NDArray[np.float64]
    primitive: str = ""
    """Of the tags that the data carries."""


class Step(msgspec.Struct, frozen=True):
    """After `pause_s` the transfers begin; the step ends with the last of them."""

    pause_s: float = 0.0
    transfers: Transfers | None = None


class Loop(msgspec.Struct, frozen=True):
    """`steps` one after the other, all of it `repeat` times."""

    steps: tuple[Step, ...]
    repeat: int = 1


Program = tuple[Loop, ...]
"""Loops one after the other."""


class SimParts:
    """`one_job.Parts` from the experiment's numbers. Raises Unfit for what cannot be simulated."""

    def __init__(self, options: SimOptions, mpirun: Sequence[str], resources: Resources) -> None:
        self._options = options
        self._resources = resources
        self._wire = Wire(options.mtu)
        self._alltoall = alltoall_algorithm(options, mpirun)
        self._mpirun = tuple(mpirun)
        self._patterns: dict[str, Pattern] = {}

    @property
    def switch_over_s(self) -> float:
        return self._options.switch_over_s

    def stage(self, request: JobRequest, start: Start, direction: Direction) -> tuple[Flow, ...]:
        move = request.staging(direction)
        nodes = start.nodes if move.to == "each" else start.nodes[:1]
        return tuple(
            self._flow(
                request,
                start,
                move,
                node,
                direction,
                flow_id=f"{start.job_id}:{direction}" + (f":{number}" if len(nodes) > 1 else ""),
                traffic="staging",
                engine="staging",
                bytes=move.bytes,
            )
            for number, node in enumerate(nodes)
        )

    def io(self, request: JobRequest, start: Start) -> Flow:
        assert request.io is not None
        return self._flow(
            request,
            start,
            request.io,
            start.nodes[0],
            "in" if request.io.direction == "read" else "out",
            flow_id=f"{start.job_id}:io",
            traffic="io",
            engine="program",
            bytes=request.io.bytes,
            piece_bytes=IO_PIECE_BYTES,
        )

    def _flow(
        self,
        request: JobRequest,
        start: Start,
        what: Striped,
        node: str,
        direction: Direction,
        **about: Any,
    ) -> Flow:
        """A flow between `node` and the file system, or the job's storage node where `what` names none."""
        legs, far = self._resources.between(what, request.index, node, direction, request.storage)
        near = FlowEndpoint(host=node)
        return Flow(
            legs=legs,
            source=far if direction == "in" else near,
            destination=near if direction == "in" else far,
            job_id=start.job_id,
            loaders=what.loaders,
            object_bytes=what.object_bytes or 0,
            memory_bytes=what.memory or 0,
            pause_s=self._options.transfer_s,
            **about,
        )

    def compute(self, request: JobRequest, start: Start) -> Program:
        compute = request.compute
        ranks = [node for node in start.nodes for _ in range(compute.processes_per_node)]
        return (Loop((Step(self._options.program_s),)), *self._loops(compute, ranks))

    def check(self, compute: Compute, nodes: int) -> None:
        """Raises Unfit where jobs of `nodes` nodes cannot run this."""
        ranks = [str(node) for node in range(nodes) for _ in range(compute.processes_per_node)]
        self._loops(compute, ranks)

    def _loops(self, compute: Compute, ranks: Sequence[str]) -> Program:
        """Rank i is on node `ranks[i]`."""
        if compute.pattern:
            return self._recorded(compute, ranks)
        if compute.program in COLLECTIVES:
            return self._collectives(compute, ranks)
        return (self._shipped(compute, ranks),)

    def declared(self, compute: Compute) -> list[tuple[str, str, int]]:
        """Primitive, algorithm and root of the collectives that a program under `--paths` declares."""
        if not compute.paths or compute.pattern:
            return []
        names = COLLECTIVES.get(compute.program, ())
        return [(name, self._algorithm(name), -1 if name == "allreduce" else 0) for name in names]

    def _collectives(self, compute: Compute, ranks: Sequence[str]) -> Program:
        """Programs that call one primitive after the other, TOGETHER times each."""
        names = COLLECTIVES[compute.program]
        loops = []
        for begin in range(0, compute.iterations, TOGETHER):
            primitive = names[begin // TOGETHER % len(names)]
            steps = [Step(compute.time_s)] if compute.time_s else []
            for step in steps_of(primitive, self._algorithm(primitive), len(ranks), compute.message, 0):
                pairs = [(ranks[a], ranks[b]) for a, b in step.pairs if ranks[a] != ranks[b]]
                if pairs:
                    sent = self._equal("mpi", pairs, round(step.bytes) + MPI_HEAD)
                    named = msgspec.structs.replace(sent, primitive=primitive if compute.tags else "")
                    steps.append(Step(self._options.message_s, named))
            loops.append(Loop(tuple(steps), min(TOGETHER, compute.iterations - begin)))
        return tuple(loops)

    def _algorithm(self, primitive: str) -> str:
        """As `mpirun` selects. Raises Unfit: Open MPI's choice changes with its version."""
        parameter, names = f"coll_tuned_{primitive}_algorithm", OPEN_MPI[primitive]
        known = {n: name for n, name in enumerate(names, 1) if steps_of(primitive, name, 2, 1, 0)}
        for word, value in itertools.pairwise(self._mpirun):
            if word == parameter and value.isdigit() and int(value) in known:
                return known[int(value)]
        raise Unfit(
            f"the simulator needs the algorithm of MPI_{primitive.capitalize()}: add --mca "
            f"coll_tuned_use_dynamic_rules 1 --mca {parameter} N to lab.mpirun, with N one of "
            + ", ".join(f"{n} ({name})" for n, name in known.items())
        )

    def _shipped(self, compute: Compute, ranks: Sequence[str]) -> Loop:
        """One iteration is what the source file of that name in the lab's `programs` does."""
        if compute.program not in PROGRAMS:
            raise Unfit(
                f"program {compute.program}: the simulator runs no programs; record what it sends with "
                "`waystage profile` and name the file as jobs.compute.pattern"
            )
        steps = [Step(compute.time_s)] if compute.time_s else []
        for size, exchanged in self._exchanges(compute, len(ranks)):
            pairs = [(ranks[src], ranks[dst]) for src, dst in exchanged if ranks[src] != ranks[dst]]
            if pairs and size:
                steps.append(Step(self._options.message_s, self._equal("mpi", pairs, size + MPI_HEAD)))
        return Loop(tuple(steps), compute.iterations)

    def _exchanges(self, compute: Compute, count: int) -> Iterator[tuple[int, list[tuple[int, int]]]]:
        """Bytes and pairs of ranks of each step of one iteration."""
        everyone = range(count)
        if compute.program == "alltoall":
            shifts = [[shift] for shift in everyone[1:]]
            for together in shifts if self._alltoall == "pairwise" else [list(everyone[1:])]:
                yield compute.message, [(r, (r + shift) % count) for shift in together for r in everyone]
        elif compute.program == "ring":
            yield compute.message, [(r, (r + 1) % count) for r in everyone]
        elif compute.program == "cg":
            columns, transposed = cg_grid(count)
            distances = [columns >> level for level in range(1, columns.bit_length())]
            for distance in distances:
                yield compute.message, [(r, r ^ distance) for r in everyone]
            yield compute.message, [(r, transposed[r]) for r in everyone]
            for distance in distances * 2:
                yield 8, [(r, r ^ distance) for r in everyone]

    def _recorded(self, compute: Compute, ranks: Sequence[str]) -> Program:
        """A pattern of one iteration: its phases in turn, again and again. Of a run: each phase cut into equal parts."""
        assert compute.pattern is not None
        pattern = self._pattern(compute.pattern)
        if pattern.ranks > len(ranks):
            raise Unfit(
                f"pattern {compute.pattern} is of {pattern.ranks} ranks and a job has {len(ranks)} processes: "
                "raise jobs.nodes or processes_per_node"
            )
        pause = (Step(compute.time_s),) if compute.time_s else ()
        if compute.pattern_of == "iteration":
            steps = [
                step for phase in range(pattern.phases) for step in self._phase(pattern, phase, ranks, 1)
            ]
            return (Loop((*pause, *steps), compute.iterations),)
        return tuple(
            Loop((*pause, *self._phase(pattern, phase, ranks, compute.iterations)), compute.iterations)
            for phase in range(pattern.phases)
        )

    def _phase(self, pattern: Pattern, phase: int, ranks: Sequence[str], parts: int) -> Iterator[Step]:
        """One stream for every pair of ranks on different nodes; each class of message sizes has its own headers."""
        _, src, dst, _, _, messages, payload = pattern.counted(phase=phase).rows()
        node = np.array(_numbers(ranks), dtype=np.int64)
        apart = node[src.astype(np.int64)] != node[dst.astype(np.int64)]
        if not apart.any():
            return
        src, dst = src[apart].astype(np.int64), dst[apart].astype(np.int64)
        count = messages[apart].astype(np.float64)
        size = payload[apart].astype(np.float64) + MPI_HEAD * count
        pair, of_row = np.unique(src * pattern.ranks + dst, return_inverse=True)
        data = np.bincount(of_row, self._wire.data(size, count), pair.size) / parts
        back = np.bincount(of_row, self._wire.acknowledgements(size, count), pair.size) / parts
        sources = [ranks[int(p) // pattern.ranks] for p in pair]
        targets = [ranks[int(p) % pattern.ranks] for p in pair]
        yield Step(self._options.message_s, Transfers("mpi", sources, targets, data, back))

    def _pattern(self, path: str) -> Pattern:
        if path not in self._patterns:
            try:
                self._patterns[path] = Pattern.read(path)
            except PatternError as error:
                raise Unfit(str(error)) from None
        return self._patterns[path]

    def _equal(self, traffic: TrafficClass, pairs: Sequence[tuple[str, str]], payload: int) -> Transfers:
        """As much for every pair, as one message."""
        size, one = np.full(len(pairs), float(payload)), np.ones(len(pairs))
        return Transfers(
            traffic,
            [src for src, _ in pairs],
            [dst for _, dst in pairs],
            self._wire.data(size, one),
            self._wire.acknowledgements(size, one),
        )


def alltoall_algorithm(options: SimOptions, mpirun: Sequence[str]) -> str:
    """`pairwise` or `linear`: as the file says, else as `mpirun` selects."""
    if options.alltoall != "auto":
        return options.alltoall
    for name, value in itertools.pairwise(mpirun):
        if name == "coll_tuned_alltoall_algorithm":
            return _OPEN_MPI_ALLTOALL.get(value, "linear")
    return "linear"


def cg_grid(count: int) -> tuple[int, list[int]]:
    """Columns of CG's grid of processes, and the transposed place of each. Raises Unfit where there is no such grid."""
    if count & (count - 1):
        raise Unfit(f"program cg runs on a power of two of processes, not on {count}: change jobs.nodes")
    level = count.bit_length() - 1
    rows, columns = 1 << level // 2, 1 << (level + 1) // 2
    if rows == columns:
        return columns, [r % rows * rows + r // rows for r in range(count)]
    return columns, [2 * (r // 2 % rows * rows + r // 2 // rows) + r % 2 for r in range(count)]


def _numbers(names: Sequence[str]) -> list[int]:
    """For each name the number of its first appearance."""
    found: dict[str, int] = {}
    return [found.setdefault(name, len(found)) for name in names]
