"""A simulated application that computes and writes in phases, through aggregators.

Arrives: a job's description, its nodes, what it is asked to keep to at its control points.
Leaves: events of collective I/O, a record of each operation; meanwhile, as a generator, what it waits for.
Must not know: how flows share links, policies, other applications.

The control points are those of Isaila et al., "CLARISSE", section IV: before the shuffle, where a grant is waited for
and the server map is adopted by all ranks, and after it. Service of an aggregator is the time from the beginning of the
operation to the end of its last write. The load of an aggregator (section V.B) is a delay for each buffer that it
writes. An operation whose aggregator dies is begun again with the others.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Protocol

import msgspec

from waystage.events import (
    AggregatorLost,
    AggregatorReport,
    AggregatorStarted,
    AggregatorUse,
    Event,
    FlowEndpoint,
    IoApplicationFinished,
    IoApplicationStarted,
    IoCompleted,
    IoRequested,
    IoUse,
    ServerMapAdopted,
)
from waystage.experiment.results import IoRecord
from waystage.experiment.schema import CollectiveIo
from waystage.worlds.sim.applications import Applications
from waystage.worlds.sim.resources import Flow, Leg, aggregator_resource
from waystage.worlds.sim.waits import Await, Pause, Run, Waits
from waystage.worlds.windows import window_bytes

NOTICED_S = 1.0
"""From the death of an aggregator to the application's word of it: a connection that is reset, or a lease."""


Totals = tuple[int, int, int]
"""Bytes, ns of service and windows written."""


class Storage(Protocol):
    """Where operations write, and the speeds of aggregators."""

    def operation(
        self, what: CollectiveIo, app: str, nodes: Sequence[str], servers: Sequence[str]
    ) -> tuple[Leg, ...]: ...


class Links(Protocol):
    @property
    def now(self) -> float: ...

    def set_resource(self, name: str, bytes_per_s: float) -> None: ...

    def reweigh(self, flow_id: str, weight: float) -> None: ...

    def moved(self, flow_id: str) -> list[float]: ...


class Phases:
    """Iterate `run`. Raises nothing; `failed` says whether an operation did not end in time."""

    def __init__(
        self,
        what: CollectiveIo,
        job_id: str,
        nodes: Sequence[str],
        *,
        storage: Storage,
        links: Links,
        applications: Applications,
        now: Callable[[], float],
        tell: Callable[[Event], None],
        limit_s: float,
        seed: str,
    ) -> None:
        self._what, self._job_id, self._nodes = what, job_id, tuple(nodes)
        self.app = f"0/{job_id}"
        self._storage, self._links, self._applications = storage, links, applications
        self._now, self._tell, self._limit_s = now, tell, limit_s
        self._draw = random.Random(seed)
        count = len(nodes) if what.aggregators == "all" else what.aggregators
        self._offered = list(self._nodes[:count])
        self._map: tuple[str, ...] = ()
        self._epoch = 0
        self._totals: dict[str, Totals] = dict.fromkeys(self._offered, (0, 0, 0))
        self._ends: dict[str, float] = {}
        self.records: list[IoRecord] = []
        self.failed = False

    def run(self) -> Waits:
        what = self._what
        for node in self._nodes:
            started = IoApplicationStarted(
                app=self.app, agent=node, host=node, ranks=what.processes_per_node, job_id=self._job_id
            )
            self._tell(started)
        for node in self._offered:
            self._tell(AggregatorStarted(app=self.app, agent=node, aggregator=node, host=node))
        if what.start_s:
            yield Pause(what.start_s)
        for op in range(1, what.operations + 1):
            if what.compute_s:
                yield Pause(what.compute_s)
            yield from self._operate(op)
            if self.failed:
                break
        for node in self._nodes:
            self._tell(IoApplicationFinished(app=self.app, agent=node, host=node))
        self._applications.forget(self.app)

    def _operate(self, op: int) -> Waits:
        what, agent = self._what, self._nodes[0]
        requested_s = self._now()
        self._tell(IoRequested(app=self.app, agent=agent, op=op, bytes=what.bytes, storage=what.file_system))
        yield Await(lambda granted: self._applications.wait(self.app, granted))
        granted_s = self._now()
        dying = [self._nodes[s.aggregator] for s in what.slow if s.lost and s.start == op]
        for host in dying:
            if host in self._adopt(op):
                yield from self._write(op, dead=host)
            if host in self._offered:
                self._offered.remove(host)
                self._tell(AggregatorLost(app=self.app, agent=host, aggregator=host, reason="it has died"))
        self._adopt(op)
        yield from self._write(op)
        self._applications.ended(self.app)
        self.records.append(
            IoRecord(
                policy="",
                set=0,
                index=0,
                job_id=self._job_id,
                op=op,
                requested_at_s=requested_s,
                waited_s=granted_s - requested_s,
                took_s=self._now() - granted_s,
                bytes=what.bytes,
                epoch=self._epoch,
                aggregators=len(self._map),
            )
        )
        self._report(self._totals)
        self._tell(
            IoCompleted(
                app=self.app,
                agent=agent,
                op=op,
                bytes=what.bytes,
                waited_ns=round((granted_s - requested_s) * 1e9),
                took_ns=round((self._now() - granted_s) * 1e9),
            )
        )

    def _adopt(self, op: int) -> tuple[str, ...]:
        """The server map of this operation, the same for all ranks; another one begins an epoch."""
        asked = self._applications.settings(self.app).aggregators
        found = tuple(host for host in asked if host in self._offered) or tuple(self._offered)
        if found != self._map:
            self._map, self._epoch = found, self._epoch + 1
            agent = self._nodes[0]
            self._tell(ServerMapAdopted(app=self.app, agent=agent, epoch=self._epoch, aggregators=found))
        return self._map

    def _write(self, op: int, dead: str = "") -> Generator[Pause | Run | Await, bool, None]:
        """One write with the map adopted; with a `dead` aggregator, until the application notices."""
        what, began_s = self._what, self._now()
        for host in self._map:
            speed = 0.0 if host == dead else self._speed(host, op)
            self._links.set_resource(aggregator_resource(self.app, self._nodes.index(host)), speed)
        legs = self._storage.operation(what, self.app, self._nodes, self._map)
        self._ends = {}

        def ended(index: int) -> None:
            if legs[index].resources:
                self._ends[legs[index].source] = self._links.now

        flow_id = f"{self._job_id}:io-{op}" + (f"-{dead}" if dead else "")
        flow = Flow(
            flow_id=flow_id,
            traffic="io",
            engine="aggregator",
            bytes=what.bytes,
            legs=legs,
            source=FlowEndpoint(host=self._nodes[0]),
            destination=FlowEndpoint(
                targets=tuple(dict.fromkeys(name for leg in legs for name in leg.resources[:1]))
            ),
            job_id=self._job_id,
            weight=self._stream_weight(),
            leg_ended=ended,
        )
        self._applications.runs(
            self.app,
            lambda: self._links.reweigh(flow_id, self._stream_weight()),
            lambda: self._report(self._so_far(legs, self._links.moved(flow_id), began_s)),
        )
        whole = yield Run((flow,), NOTICED_S if dead else self._limit_s)
        if dead:
            return
        self.failed = not whole
        self._totals = self._so_far(legs, [1.0] * len(legs), began_s)

    def _so_far(self, legs: Sequence[Leg], moved: Sequence[float], began_s: float) -> dict[str, Totals]:
        """Totals of each aggregator, with what it has written of the operation in progress."""
        written: dict[str, float] = defaultdict(float)
        for leg, share in zip(legs, moved, strict=False):
            if leg.resources:
                written[leg.source] += share * leg.share * self._what.bytes
        found = dict(self._totals)
        for host, amount in written.items():
            size, busy_ns, writes = self._totals[host]
            busy_s = self._ends.get(host, self._links.now) - began_s
            if amount >= 1:
                count = -(-round(amount) // self._window())
                found[host] = size + round(amount), busy_ns + round(busy_s * 1e9), writes + count
        return found

    def _stream_weight(self) -> float:
        """Without a policy every connection has the same weight; with one, weights are those of applications."""
        settings = self._applications.settings(self.app)
        return (settings.weight or 1.0) / len(self._map) if settings.version else 1.0

    def _speed(self, host: str, op: int) -> float:
        """Bytes a second of an aggregator in this operation: its own speed, a load's delay for each buffer, noise."""
        what, window = self._what, self._window()
        each_s = window / what.aggregator_bytes_per_s
        for slow in what.slow:
            if (
                self._nodes[slow.aggregator] == host
                and slow.start <= op
                and (slow.end is None or op < slow.end)
            ):
                each_s += slow.delay_s
        return window / each_s / (self._draw.lognormvariate(0.0, what.noise) if what.noise else 1.0)

    def _window(self) -> int:
        return window_bytes(self._what.bytes // len(self._map), self._what.buffer)

    def _report(self, totals: Mapping[str, Totals]) -> None:
        version = self._applications.settings(self.app).version
        for host in self._nodes:
            size, busy_ns, writes = totals.get(host, (0, 0, 0))
            use = AggregatorUse(
                app=self.app, aggregator=host, epoch=self._epoch, bytes=size, busy_ns=busy_ns, writes=writes
            )
            servers = (use,) if host in self._offered else ()
            process = IoUse(app=self.app, host=host, version=version)
            self._tell(AggregatorReport(agent=host, servers=servers, processes=(process,)))


class Facts(msgspec.Struct, frozen=True):
    """What a set's applications share."""

    storage: Storage
    links: Links
    applications: Applications
    seed: str
