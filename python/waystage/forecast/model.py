"""The next minutes of a state: its flows and computing jobs on the flow clock, with a policy that answers.

Arrives: the state, a policy or none, a horizon and a number of steps.
Leaves: the slowdown of each job and the ends of flows.
Must not know: how to choose between policies, worlds, real time.

Deterministic: the same state gives the same forecast to the bit. Its cost is bounded by `steps` of work, and not by a
clock. A step is what takes some 30 us: an exchange or the end of a flow, whose share of a step grows with the routes;
starting and stopping flows; above all a policy's answer, which grows with the jobs and flows of the state.

What it assumes. A flow has the bytes left that it reports; one of unknown total goes on to the horizon. A job that
computes exchanges all-to-all among its nodes, each exchange beginning when all of the last has arrived, at the rate
that it declared or as fast as it can. A job whose stage-in ends computes on its nodes. Events that the future brings,
such as jobs that arrive, are not foreseen. Settings and plans take effect at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from waystage._native import FlowClock, FlowProgram
from waystage.events import (
    Action,
    AssignPaths,
    Envelope,
    Event,
    FlowAction,
    FlowEndpoint,
    FlowFinished,
    PathPlan,
    StagingFinished,
)
from waystage.forecast.curves import MOST_LOADERS
from waystage.forecast.resources import Kept, Resources, keyed
from waystage.forecast.weights import weight_of
from waystage.state import FlowInfo, JobInfo, State

Answer = Callable[[Event, State], Sequence[Action]]

LAP_S = 2.0
"""Least length of an exchange that has its links for itself: long beside a message."""

MOST_LAPS = 40
"""Exchanges of a job that are simulated; to a longer horizon they are longer."""

MPI_WEIGHT = 2 / 3
"""Of a message beside bulk data: each waits behind the queue that bulk data keeps, so that a program gets less than an
even share. Two messages of 50 ms beside one stream take 2.5 times as long, not twice, with a queue of 25 ms.
"""

MOST_PAIRS = 64
"""Pairs of nodes of an exchange; a larger job's are represented by shifts, each rank sending to a few others."""

ANSWER_STEPS = 4
"""Of a policy that is asked, with an empty state."""

LOOKED_AT = 8
"""Jobs and flows in the state, for each further step of an answer."""

ROUTES_A_STEP = 32
"""Routes of an exchange, or of flows that are moved, started or stopped, for each step."""

REPORT_S = 1.0
"""Progress is reported once a second: until then a flow is taken to go on as it did."""

UNKNOWN_BYTES = 1e15
"""A flow of unknown total goes on to the horizon."""


class Future(msgspec.Struct):
    """`slowdown` of each job (and of flows without one): time over the time that it would take alone, from 1 up.

    `ends_s` are the ends of flows in seconds from now; of those that go on past the horizon, as at their mean rate.
    `steps` were used; `complete` is False where they ran out, after `until_s` simulated seconds.
    """

    slowdown: dict[str, float] = {}
    ends_s: dict[str, float] = {}
    steps: int = 0
    until_s: float = 0.0
    complete: bool = True


class _Moving(msgspec.Struct):
    flow: FlowInfo
    owner: str
    runs: list[int]
    keys: list[int]
    legs: list[tuple[str, str, tuple[int, ...]]]
    left: list[float]


class _Work(msgspec.Struct):
    """What the flows of one owner have to do, and how long that takes alone."""

    flows: list[str] = []
    crossing: dict[int, float] = {}
    bytes: float = 0.0
    alone_s: float = 0.0


class _Exchange(msgspec.Struct):
    job: JobInfo
    pairs: list[tuple[str, str]]
    keys: list[int]
    size: float
    lap_s: float
    run: int = -1
    laps: int = 0


class Forecast:
    """One run of the future. `state` is copied, not changed; forecasts of one state may share routes in `kept`."""

    def __init__(
        self,
        state: State,
        *,
        horizon_s: float,
        steps: int,
        kept: Kept | None = None,
    ) -> None:
        self.state = own_copy(state)
        self._horizon_s, self._steps = horizon_s, steps
        self._lap_s = max(LAP_S, horizon_s / MOST_LAPS)
        topology = state.live_topology
        if topology is None:
            raise ValueError("no topology is known yet: nothing can be foreseen")
        self._resources = Resources(self.state, topology, kept)
        self._moving: dict[str, _Moving] = {}
        self._exchanges: dict[str, _Exchange] = {}
        self._owner: dict[int, str] = {}
        self._work: dict[str, _Work] = {}
        self._future = Future()
        flows = [*self.state.flows.values(), *_undescribed(self.state)]
        self._legs = {flow.flow_id: self._resources.legs(flow) for flow in flows}
        self._clock: FlowClock = self._resources.clock()
        self._resources.follow(self.state.requested or PathPlan())
        for flow in flows:
            if self._spent():
                break
            self._start(flow)
        for job in list(self.state.jobs.values()):
            if job.running and not job.staging and not self._spent():
                self._compute(job)

    def run(
        self, answer: Answer | None = None, first: Sequence[Action] = (), *, until_moved: bool = False
    ) -> Future:
        """The future after the actions `first`, with `answer` asked at each end of a flow or staging.

        Up to the horizon, or with `until_moved` to the end of the last flow.
        """
        self._act(first)
        while self._clock.now < self._horizon_s and (self._moving or (self._exchanges and not until_moved)):
            if self._spent():
                break
            ended = self._clock.run_until(self._horizon_s)
            self._future.steps += max(1, len(ended))
            # What ended together is known to have ended before a policy answers the first of it.
            touched: dict[str, None] = {}
            for _, run in ended:
                name = self._owner.pop(run, "")
                if name in self._exchanges and self._exchanges[name].run == run:
                    self._exchanges[name].laps += 1
                    self._lap(self._exchanges[name])
                elif name in self._moving:
                    moving = self._moving[name]
                    leg = moving.runs.index(run)
                    moving.runs[leg], moving.left[leg] = -1, 0.0
                    touched[name] = None
            over = [name for name in touched if not any(self._moving[name].left)]
            gone = [self._moving.pop(name) for name in over]
            for moving in gone:
                self._flow_ended(moving, answer if not self._spent() else None)
        self._future.until_s = self._clock.now
        self._finish()
        return self._future

    def _spent(self) -> bool:
        """Whether the steps are used up; the forecast is then not complete."""
        if self._future.steps >= self._steps:
            self._future.complete = False
        return not self._future.complete

    def _use(self, routes: int) -> None:
        self._future.steps += -(-routes // ROUTES_A_STEP)

    @property
    def steps(self) -> int:
        """Used so far."""
        return self._future.steps

    def seconds_alone(self, first: Sequence[Action] = ()) -> dict[str, dict[int, float]]:
        """For each job (or flow without one), the seconds that its flows alone would use each resource, after `first`."""
        self._act(first)
        if self._spent():
            return {}
        found: dict[str, dict[int, float]] = {}
        for moving in self._moving.values():
            uses = found.setdefault(moving.owner, {})
            for left, key in zip(moving.left, moving.keys, strict=True):
                for resource in self._clock.route(key).tolist():
                    uses[resource] = uses.get(resource, 0.0) + left / self._resources.best_of(resource)
        return found

    # -- flows -------------------------------------------------------------------------------------------

    def _start(self, flow: FlowInfo) -> None:
        legs = self._legs[flow.flow_id]
        since_s = max(0, self.state.time_ns - flow.heard_ns) / 1e9
        done = flow.bytes_done + min(since_s, REPORT_S) * flow.rate_bps / 8
        total = max(1.0, flow.bytes - done) if flow.bytes else UNKNOWN_BYTES
        owner = flow.job_id or flow.flow_id
        moving = _Moving(flow, owner, [-1] * len(legs), [], legs, [total / len(legs)] * len(legs))
        for source, target, beside in legs:
            route = (*self._resources.between(source, target, flow.traffic), *beside)
            moving.keys.append(self._clock.add_routes(*keyed(route)))
        self._moving[flow.flow_id] = moving
        self._use(len(legs))
        self._add_work(moving)
        self._begin(moving)

    def _begin(self, moving: _Moving) -> None:
        """Start its legs with what they have left, under the settings wanted."""
        wanted, flow = moving.flow.settings, moving.flow
        if wanted.paused:
            return
        loaders = min(MOST_LOADERS, wanted.loaders or flow.loaders or self._resources.own_loaders(flow))
        limit = float("inf")
        if wanted.rate_bps is not None:
            limit = max(1.0, wanted.rate_bps / 8) / (len(moving.legs) * loaders)
        for at, left in enumerate(moving.left):
            if left <= 0:
                continue
            program = FlowProgram()
            program.step()
            copies = np.full(loaders, moving.keys[at], dtype=np.uint32)
            # A leg that crosses nothing known still needs something to hold it.
            bound = limit if len(self._clock.route(moving.keys[at])) else min(limit, 1e12)
            program.flows(
                copies, np.full(loaders, left / loaders), weight=weight_of(wanted.mode), limit_bps=bound
            )
            moving.runs[at] = self._clock.start(program)
            self._owner[moving.runs[at]] = flow.flow_id

    def _halt(self, moving: _Moving) -> None:
        """Stop its legs, knowing what they have left."""
        at = [leg for leg, run in enumerate(moving.runs) if run >= 0]
        if not at:
            return
        runs = [moving.runs[leg] for leg in at]
        begun = [self._clock.times(run)[0] < self._clock.now for run in runs]
        left = self._clock.left(np.array(runs, dtype=np.uint32)).tolist()
        for leg, run, bytes_left, has_begun in zip(at, runs, left, begun, strict=True):
            if has_begun:
                moving.left[leg] = bytes_left
            self._clock.cancel(run)
            self._owner.pop(run, None)
            moving.runs[leg] = -1

    def _flow_ended(self, moving: _Moving, answer: Answer | None) -> None:
        flow_id = moving.flow.flow_id
        self._future.ends_s[flow_id] = self._clock.now
        self._see(FlowFinished(flow_id=flow_id, bytes_done=moving.flow.bytes), answer)
        job = self.state.jobs.get(moving.owner)
        if job is None or any(other.owner == moving.owner for other in self._moving.values()):
            return
        for direction in list(job.staging):
            self._see(StagingFinished(job_id=job.job_id, direction=direction), answer)
        if job.running and not job.staging and job.job_id not in self._exchanges:
            self._compute(job)

    # -- computing jobs ----------------------------------------------------------------------------------

    def _compute(self, job: JobInfo) -> None:
        pairs = _pairs(job.nodes)
        routes = [self._resources.between(source, target, "mpi") for source, target in pairs]
        kept = [(pair, route) for pair, route in zip(pairs, routes, strict=True) if route]
        if not kept:
            return
        keys = [self._clock.add_routes(*keyed(route)) for _, route in kept]
        self._future.steps += len(keys) // 4
        # Alone, a rank's sends share its own link: that many bytes for each pair take an exchange's time.
        fan = max(1, len(kept) // max(1, len(job.nodes)))
        size = self._lap_s * self._resources.best_of(kept[0][1][0]) / fan
        exchange = _Exchange(job, [pair for pair, _ in kept], keys, size, self._lap_s)
        declared = job.demand_bps.get("mpi", 0)
        if declared > 0:  # it offers no more than that: the rest of the time it computes
            exchange.lap_s = max(self._lap_s, size * len(kept) * 8 / declared)
        self._exchanges[job.job_id] = exchange
        self._lap(exchange)

    def _lap(self, exchange: _Exchange) -> None:
        program = FlowProgram()
        program.step(exchange.lap_s - self._lap_s)
        keys = np.array(exchange.keys, dtype=np.uint32)
        program.flows(keys, np.full(len(keys), exchange.size), weight=MPI_WEIGHT)
        exchange.run = self._clock.start(program)
        self._use(len(keys))
        self._owner[exchange.run] = exchange.job.job_id

    # -- policies ----------------------------------------------------------------------------------------

    def _see(self, event: Event, answer: Answer | None) -> None:
        """Fold an event of the future and have the policy's answer carried out."""
        now_ns = self.state.time_ns + 1
        self.state.apply(Envelope(event=event, event_id="foreseen", time_ns=now_ns))
        if answer is not None:
            self._future.steps += ANSWER_STEPS + (len(self.state.jobs) + len(self.state.flows)) // LOOKED_AT
            self._act(answer(event, self.state))

    def _act(self, actions: Sequence[Action]) -> None:
        changed: dict[str, None] = {}
        for action in actions:
            if isinstance(action, AssignPaths):
                self.state.record_request(action)
                self._reroute(action.plan)
            elif isinstance(action, FlowAction):
                self.state.record_flow(action)
                changed[action.flow_id] = None
        for flow_id in changed:
            moving = self._moving.get(flow_id)
            if moving is not None:
                self._use(2 * len(moving.legs))
                self._halt(moving)
                self._begin(moving)

    def _reroute(self, plan: PathPlan) -> None:
        self._resources.follow(plan)
        routes = sum(len(moving.keys) for moving in self._moving.values())
        self._use(routes + sum(len(exchange.keys) for exchange in self._exchanges.values()))
        for moving in self._moving.values():
            for key, (source, target, beside) in zip(moving.keys, moving.legs, strict=True):
                route = (*self._resources.between(source, target, moving.flow.traffic), *beside)
                self._set(key, route)
        for exchange in self._exchanges.values():
            for key, (source, target) in zip(exchange.keys, exchange.pairs, strict=True):
                self._set(key, self._resources.between(source, target, "mpi"))

    def _set(self, key: int, route: tuple[int, ...]) -> None:
        if route:  # a pair that is cut off meanwhile keeps its way: the forecast ends with a figure
            self._clock.set_routes(np.array([key], dtype=np.uint32), *keyed(route))

    # -- the answer --------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """What each job has done by now, in seconds that it would have needed alone, over the time it took."""
        now = max(self._clock.now, 1e-9)
        for moving in self._moving.values():
            self._halt(moving)
        took: dict[str, float] = {}
        done: dict[str, float] = {}
        for owner, work in self._work.items():
            left = [moving for moving in self._moving.values() if moving.owner == owner]
            ends = [self._future.ends_s.get(flow_id, now) for flow_id in work.flows]
            took[owner] = max(ends, default=now)
            share = 1 - sum(sum(moving.left) for moving in left) / work.bytes if work.bytes > 0 else 1.0
            done[owner] = min(1.0, max(0.0, share)) * work.alone_s
            rate = max(share, 1e-9) / now
            for moving in left:
                self._future.ends_s[moving.flow.flow_id] = now + max(0.0, 1 - share) / rate
        for job_id, exchange in self._exchanges.items():
            took[job_id] = now
            done[job_id] = (
                done.get(job_id, 0.0) + (exchange.laps + self._part_of_lap(exchange)) * exchange.lap_s
            )
        for name, seconds in took.items():
            if seconds > 0:
                self._future.slowdown[name] = max(1.0, seconds / max(done.get(name, 0.0), seconds * 1e-6))

    def _part_of_lap(self, exchange: _Exchange) -> float:
        if exchange.run < 0 or self._clock.times(exchange.run)[0] >= self._clock.now:
            return 0.0
        left = self._clock.bytes_left(exchange.run) / (exchange.size * len(exchange.keys))
        return max(0.0, 1.0 - left) if left > 0 else 0.0

    def _add_work(self, moving: _Moving) -> None:
        """Count a flow towards its owner: alone, what crosses each resource takes its bytes over its capacity."""
        work = self._work.setdefault(moving.owner, _Work())
        work.flows.append(moving.flow.flow_id)
        for left, key in zip(moving.left, moving.keys, strict=True):
            work.bytes += left
            for resource in self._clock.route(key).tolist():
                work.crossing[resource] = work.crossing.get(resource, 0.0) + left
                work.alone_s = max(work.alone_s, work.crossing[resource] / self._resources.best_of(resource))


def own_copy(state: State) -> State:
    """A state that may be changed; what is never changed in place is shared."""

    def job(info: JobInfo) -> JobInfo:
        return msgspec.structs.replace(
            info,
            staging=dict(info.staging),
            staging_ns=dict(info.staging_ns),
            staging_user=dict(info.staging_user),
            demand_bps=dict(info.demand_bps),
        )

    changed: dict[str, Any] = {
        name: dict(value)
        for name in state.__struct_fields__
        if isinstance(value := getattr(state, name), dict) and name not in ("jobs", "flows")
    }
    changed["jobs"] = {name: job(info) for name, info in state.jobs.items()}
    changed["flows"] = {name: msgspec.structs.replace(flow) for name, flow in state.flows.items()}
    return msgspec.structs.replace(state, **changed)


def _undescribed(state: State) -> Iterator[FlowInfo]:
    """Stagings of which no flow is reported, as one from a storage host to each of the job's nodes or back."""
    topology = state.topology
    described = {flow.job_id for flow in state.flows.values()}
    storage = topology.storage_hosts if topology is not None else ()
    for job in state.jobs.values():
        if job.job_id in described or not job.staging or not job.nodes or not storage:
            continue
        for direction, size in job.staging.items():
            for number, node in enumerate(job.nodes if size else ()):
                ends = (FlowEndpoint(host=storage[number % len(storage)]), FlowEndpoint(host=node))
                source, destination = ends if direction == "in" else ends[::-1]
                yield FlowInfo(
                    flow_id=f"{job.job_id} {direction} {number}",
                    traffic="staging",
                    engine="",
                    job_id=job.job_id,
                    source=source,
                    destination=destination,
                    bytes=max(1, size // len(job.nodes)),
                )


def _pairs(nodes: Sequence[str]) -> list[tuple[str, str]]:
    """Ordered pairs of ranks, a rank a node: all, or as many shifts as `MOST_PAIRS` allows, evenly apart."""
    count = len(nodes)
    if count < 2:
        return []
    number = min(count - 1, max(1, MOST_PAIRS // count))
    shifts = sorted({1 + at * (count - 1) // number for at in range(number)})
    return [(node, nodes[(at + shift) % count]) for shift in shifts for at, node in enumerate(nodes)]
