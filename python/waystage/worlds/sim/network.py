"""The links of a topology with flows on them, in simulated time.

Arrives: programs of transfers between hosts, flows with an identity, plans, settings of flows.
Leaves: which program or flow ended when; what left every port, by class; progress of flows.
Must not know: jobs, policies, how shares are computed.

A transfer is two flows: the data, and beside it the acknowledgements, which take the path of the other direction. Both
are of one class, and each goes the way that the rule planner gives its class and hosts under the plan in force. When
the plan changes, flows in progress continue over their new links with their remaining bytes.

Fair shares know no queues. Of these one thing is kept, because it costs programs much that send a message, wait for
it and send the next: a message that begins on a link that others fill waits behind what they have put into the
switch's buffer. Such a step begins later by `queue_s`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from waystage._native import FlowClock, FlowProgram
from waystage.events import CLASSES, FlowSettings, FlowUse, PathPlan, PortUse, TrafficClass, UsePart
from waystage.interconnect.planner import Router
from waystage.topology import Topology
from waystage.worlds.sim.flows import UNLIMITED, Flows
from waystage.worlds.sim.programs import Loop, Program, Step
from waystage.worlds.sim.resources import Flow, Leg
from waystage.worlds.sim.wire import Wire

Key = tuple[TrafficClass, str, str, str]
"""The class, the hosts and the tags' primitive of a route."""

_Lead = tuple[Key | None, tuple[int, ...]]
"""What a route leads between, and the resources beside links that it crosses."""

Capacity = float | list[tuple[float, float]]
"""Bytes a second, or points (flows, bytes a second)."""

FULL = 0.999
"""From this share of its capacity on a link is full: sums of rates are exact to 1e-9."""


class PortCounts(msgspec.Struct, frozen=True):
    """Bytes that left ports since the reading before, which was `interval_ns` ago.

    `ports` are numbers among `Network.ports`, of those that anything left; `by_class`, shape (classes, ports), has the
    classes in the order of CLASSES.
    """

    interval_ns: int
    ports: NDArray[np.int64]
    by_class: NDArray[np.int64]


class _Flows(msgspec.Struct):
    """A step's flows as the clock takes them, and the links they begin on, as of a state of the routes."""

    keys: NDArray[np.uint32]
    amounts: NDArray[np.float64]
    links: NDArray[np.uint32]
    full_at: NDArray[np.float64]
    """The rates from which on these links are full."""
    routed: int = -1
    alone: dict[float, FlowProgram] = {}
    """The step as a program by itself, by the pause before it."""


class _Progress(msgspec.Struct):
    """What a program has left: loops, the first of them from pass `passed` and step `at` on."""

    loops: list[Loop]
    passed: int = 0
    at: int = 0
    flows: dict[int, _Flows] = {}


class Network:
    """Call `route` before the first `start`. Times are seconds since the network was made.

    `resources` are those beside links; `flows`, how many flows with an identity there are at once at most.
    """

    def __init__(
        self,
        topology: Topology,
        queue_s: float = 0.0,
        *,
        mtu: int = 9000,
        resources: Mapping[str, Capacity] | None = None,
        flows: int = 0,
    ) -> None:
        self.problems: list[str] = []
        self._queue_s = queue_s
        self._topology = topology
        self.ports: list[tuple[str, int]] = []
        self._hop: dict[tuple[str, str], int] = {}
        capacities: list[float] = []
        for link in topology.links:
            self.ports += [(link.a, link.a_port), (link.b, link.b_port)]
            capacities += [link.capacity_bps / 8] * 2
        numbers = {end: number for number, end in enumerate(self.ports)}
        for node, links in topology.adjacency.items():  # in port order: of several cables the first is taken
            for link in links:
                self._hop.setdefault((node, link.other(node)), numbers[node, link.port_at(node)])
        self._nowhere = len(capacities)
        capacities.append(0.0)
        beside = dict(resources or {})
        named = self._named = {name: len(capacities) + at for at, name in enumerate(beside)}
        capacities += [UNLIMITED] * (len(beside) + flows)
        self._full_at = FULL * np.array(capacities)
        self._full_at[self._nowhere :] = np.inf
        self._clock = FlowClock(np.array(capacities))
        for name, capacity in beside.items():
            if isinstance(capacity, list):
                self._clock.set_curve(named[name], capacity)
            else:
                self._clock.set_capacity(named[name], capacity)
        limiters = range(len(capacities) - flows, len(capacities))
        self._movers = Flows(self._clock, self, Wire(mtu), named, limiters)
        self._keys: dict[Key, int] = {}
        self._routes: list[tuple[int, ...]] = []
        self._leads: list[_Lead] = []
        self._free_keys: list[int] = []
        self._router: Router | None = None
        self._ways: dict[Key, tuple[int, ...]] = {}
        """Under this router; each flow asks for its own when it begins and when it is routed."""
        self._routed = 0
        self._progress: dict[int, _Progress] = {}
        self._outer: dict[int, int] = {}
        self._inner: dict[int, int] = {}
        self._numbers = itertools.count()
        self._counted = np.zeros((len(CLASSES), len(self.ports)), dtype=np.int64)
        self._counted_at_s = 0.0

    @property
    def now(self) -> float:
        return float(self._clock.now)

    def route(self, plan: PathPlan) -> None:
        """Put `plan` in force. Raises PlanError where it lists a path that the topology does not have."""
        self._router = Router(self._topology, self._topology, plan)
        self._ways.clear()
        self._routed += 1
        moved = []
        for number, (key, extra) in enumerate(self._leads):
            way = (*self._way(key), *extra)
            if way != self._routes[number]:
                moved.append(number)
                self._routes[number] = way
        if moved:
            self._clock.set_routes(
                np.array(moved, dtype=np.uint32), *_table([self._routes[n] for n in moved])
            )

    def start(self, program: Program | Flow) -> int:
        """Start it now; the number is what `run_until` says at its end."""
        number = next(self._numbers)
        if isinstance(program, Flow):
            self._movers.start(number, program, self._queue_of)
            return number
        self._progress[number] = _Progress(list(program))
        if not self._next(number):
            self._begin(
                number, FlowProgram()
            )  # nothing to do: it ends at once, and its end is reported as any other
        return number

    def adjust(self, flow_id: str, settings: FlowSettings) -> None:
        """Let a flow keep to `settings` from now on; nothing happens where it has ended."""
        self._movers.adjust(flow_id, settings)

    def reweigh(self, flow_id: str, weight: float) -> None:
        """Let a flow's streams have another weight from now on; nothing happens where it has ended."""
        self._movers.reweigh(flow_id, weight)

    def moved(self, flow_id: str) -> list[float]:
        """The share of its bytes that each leg of a flow has moved; empty where it has ended."""
        return self._movers.moved(flow_id)

    def set_resource(self, name: str, bytes_per_s: float) -> None:
        """Give a resource beside links another capacity from now on."""
        self._clock.set_capacity(self._named[name], bytes_per_s)

    def stop(self, number: int) -> float:
        """End it now, with its flows; of a `Flow` the payload that it has moved."""
        if number not in self._progress:
            return self._movers.stop(number)
        del self._progress[number]
        inner = self._inner.pop(number)
        del self._outer[inner]
        self._clock.cancel(inner)
        return 0.0

    def progress(self) -> tuple[FlowUse, ...]:
        """Of every flow with an identity."""
        return self._movers.progress()

    def run_until(self, limit_s: float) -> list[tuple[float, int]]:
        """Go on to the first end of a program, or to the limit where none ends before; what ended, in order."""
        while True:
            ended = []
            for at_s, inner in self._clock.run_until(limit_s):
                owner = self._movers.owner(inner)
                if owner is not None:
                    if self._movers.ended(inner, self._queue_of):
                        ended.append((float(at_s), owner))
                    continue
                number = self._outer.pop(inner)
                del self._inner[number]
                if not self._next(number):
                    del self._progress[number]
                    ended.append((float(at_s), number))
            # Not before: to share is to stop runs, of which some may end in this moment too.
            self._movers.share_memory()
            if ended or self.now >= limit_s:
                return ended

    def use(self) -> UsePart | None:
        """As `counts`, as events tell it."""
        found = self.counts()
        if found is None:
            return None
        ports = []
        for index, counts in zip(found.ports.tolist(), found.by_class.T.tolist(), strict=True):
            node, port = self.ports[index]
            by_class = {c: n for c, n in zip(CLASSES, counts, strict=True) if n}
            ports.append(PortUse(node=node, port=port, bytes=sum(counts), by_class=by_class))
        return UsePart(interval_ns=found.interval_ns, ports=tuple(ports))

    def counts(self) -> PortCounts | None:
        """What left each port that anything left since the last call; None where no time has passed."""
        passed_s = self.now - self._counted_at_s
        if passed_s <= 0:
            return None
        totals = np.stack([self._clock.totals(code)[: len(self.ports)] for code in range(len(CLASSES))])
        counted = np.rint(totals).astype(np.int64)
        grown, self._counted, self._counted_at_s = counted - self._counted, counted, self.now
        active = np.flatnonzero(grown.any(axis=0))
        return PortCounts(round(passed_s * 1e9), active, grown[:, active])

    # -- programs as the clock takes them ------------------------------------------------------------

    def _next(self, number: int) -> bool:
        """Begin what comes next of a program; False where nothing does."""
        progress = self._progress[number]
        while progress.loops and not progress.loops[0].steps:
            progress.loops.pop(0)
        if not progress.loops:
            return False
        loop = progress.loops[0]
        if self._queue_s and any(step.transfers is not None for step in loop.steps):
            # Step by step: only when it begins is known whether it must wait.
            program = self._alone(loop.steps[progress.at], progress, progress.at)
            progress.at += 1
            if progress.at == len(loop.steps):
                progress.at, progress.passed = 0, progress.passed + 1
            left = progress.passed < loop.repeat
        else:
            program = FlowProgram(loop.repeat)
            for at, step in enumerate(loop.steps):
                self._add(program, step, progress, at)
            left = False
        if not left:
            progress.loops.pop(0)
            progress.passed, progress.flows = 0, {}
        self._begin(number, program)
        return True

    def _begin(self, number: int, program: FlowProgram) -> None:
        inner = self._clock.start(program)
        self._inner[number], self._outer[inner] = inner, number

    def _add(self, program: FlowProgram, step: Step, progress: _Progress, at: int) -> None:
        program.step(step.pause_s)
        if step.transfers is not None:
            self._add_flows(program, step, self._flows_at(step, progress, at))

    def _alone(self, step: Step, progress: _Progress, at: int) -> FlowProgram:
        """A step as a program, which waits where it finds queues."""
        if step.transfers is None:
            program = FlowProgram()
            program.step(step.pause_s)
            return program
        flows = self._flows_at(step, progress, at)
        pause_s = step.pause_s + (self._queue_s if self._is_filled(flows) else 0.0)
        known = flows.alone.get(pause_s)
        if known is None:
            known = flows.alone[pause_s] = FlowProgram()
            known.step(pause_s)
            self._add_flows(known, step, flows)
        return known

    def _add_flows(self, program: FlowProgram, step: Step, flows: _Flows) -> None:
        assert step.transfers is not None
        program.flows(flows.keys, flows.amounts, flow_class=CLASSES.index(step.transfers.traffic))

    def _flows_at(self, step: Step, progress: _Progress, at: int) -> _Flows:
        flows = progress.flows.get(at)
        if flows is None:
            flows = progress.flows[at] = self._flows(step)
        return flows

    def _is_filled(self, flows: _Flows) -> bool:
        """Whether others fill a link that these flows are about to use."""
        if flows.routed != self._routed:
            ways = [self._routes[key] for key in flows.keys.tolist()]
            flows.links = np.array(list(set().union(*ways)), dtype=np.uint32)
            flows.full_at = self._full_at[flows.links]
            flows.routed = self._routed
        return self._clock.any_carries(flows.links, flows.full_at)

    def _flows(self, step: Step) -> _Flows:
        """Data, then acknowledgements."""
        transfers = step.transfers
        assert transfers is not None
        ends = list(zip(transfers.sources, transfers.targets, strict=True))
        keys: list[Key] = [(transfers.traffic, src, dst, transfers.primitive) for src, dst in ends]
        keys += [(transfers.traffic, dst, src, "") for src, dst in ends]
        new: list[Key] = list(dict.fromkeys(key for key in keys if key not in self._keys))
        self._keys |= zip(new, self._new_routes([(key, ()) for key in new]), strict=True)
        numbers = np.array([self._keys[key] for key in keys], dtype=np.uint32)
        amounts = np.concatenate((transfers.data, transfers.acknowledgements))
        return _Flows(numbers, amounts, np.zeros(0, dtype=np.uint32), np.zeros(0))

    def _new_routes(self, leads: list[_Lead]) -> list[int]:
        """Their numbers, those of routes used no more first."""
        ways = [(*self._way(key), *extra) for key, extra in leads]
        again = [self._free_keys.pop() for _ in range(min(len(leads), len(self._free_keys)))]
        if again:
            self._clock.set_routes(np.array(again, dtype=np.uint32), *_table(ways[: len(again)]))
            for number, way, lead in zip(again, ways, leads, strict=False):
                self._routes[number], self._leads[number] = way, lead
        first = len(self._routes)
        if ways[len(again) :]:
            self._clock.add_routes(*_table(ways[len(again) :]))
            self._routes += ways[len(again) :]
            self._leads += leads[len(again) :]
        return again + list(range(first, len(self._routes)))

    # -- routes of flows with an identity ------------------------------------------------------------

    def acquire(self, leg: Leg, flow: Flow, extra: Sequence[int], *, back: bool) -> int:
        """A separate route for a leg, or for its acknowledgements."""
        ends = (leg.target, leg.source) if back else (leg.source, leg.target)
        key: Key | None = (flow.traffic, *ends, "") if leg.source != leg.target else None
        return self._new_routes([(key, tuple(extra))])[0]

    def release(self, key: int) -> None:
        """The route is used no more."""
        self._leads[key] = (None, ())
        self._free_keys.append(key)

    def _queue_of(self, flow: Flow) -> float:
        """How long a flow that begins now waits behind the queues of links that others fill."""
        if not self._queue_s:
            return 0.0
        keys = [
            (flow.traffic, *ends, "") for leg in flow.legs for ends in _both(leg) if leg.source != leg.target
        ]
        links = np.array(list(set().union(*map(self._way, keys))), dtype=np.uint32)
        return self._queue_s if self._clock.any_carries(links, self._full_at[links]) else 0.0

    def _way(self, key: Key | None) -> tuple[int, ...]:
        if key is None:
            return ()
        way = self._ways.get(key)
        if way is None:
            way = self._ways[key] = self._found_way(key)
        return way

    def _found_way(self, key: Key) -> tuple[int, ...]:
        traffic, src, dst, primitive = key
        assert self._router is not None
        path = self._router.path(src, dst, traffic, primitive)
        if not path:
            self.problems.append(
                f"no path from {src} to {dst} in class {traffic}: what is sent there waits for one"
            )
            return (self._nowhere,)
        return tuple(self._hop[hop] for hop in itertools.pairwise(path))


def _both(leg: Leg) -> tuple[tuple[str, str], tuple[str, str]]:
    return (leg.source, leg.target), (leg.target, leg.source)


def _table(ways: list[tuple[int, ...]]) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
    """Offsets and resources, as the clock takes routes."""
    offsets = np.array([0, *itertools.accumulate(map(len, ways))], dtype=np.uint64)
    return offsets, np.array(list(itertools.chain.from_iterable(ways)), dtype=np.uint32)
