"""Paths for the pairs of hosts that MPI collectives are about to use, and how long the collectives take over them.

Arrives: the state, a path plan.
Leaves: core switches for pairs of hosts; predicted seconds of a call.
Must not know: policies, ranks' addresses, events.

A step of a collective lasts as long as its busiest link: what its messages put on the link, over what others leave of
its rate, and a latency, which is most of what a short message takes. Ranks do not keep step (`call_loads`). The steps
of a call follow each other, so the time of a call is their sum. A pair of hosts has one path, and several steps and
collectives may use it: the heaviest are placed first.

`joint` compares three ways to place all pairs: flowsim's joint routing, step by step; pairs one by one where they meet
least, from the paths in force on; and a core switch for each position at an edge switch, which keeps hosts apart
in all steps. `dijkstra` is Algorithm 3 of the dissertation (chapter 3, section 3.3.3): pair by pair, the lightest path
where a link weighs the number of flows over it.
"""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from waystage import _native
from waystage.events import CollectiveDeclared, PathPlan
from waystage.forecast.call_loads import CallLoads, Floats, Indexes, Pair
from waystage.interconnect.planner import path_of
from waystage.interconnect.trees import forest
from waystage.mpi_state import MpiProgram
from waystage.mpi_steps import Receivers, Step, corrected, steps_of
from waystage.native_options.routes import RouteOptions
from waystage.state import State
from waystage.topology import Link, Topology

Method = Literal["joint", "dijkstra"]
Hop = tuple[str, str]
HostStep = dict[Pair, float]
"""Bytes of each pair of hosts in one step."""

MOST_BUSY = 0.8
"""Of a link's rate that other flows take: they are elastic, and give way to a collective."""

DUTY = 0.5
"""Part of the time that another program is taken to be in its collectives."""

MOST_PAIRS = 4096
"""Pairs of hosts of one program that are placed; the others keep their hash."""

LATENCY_S = 100e-6
"""Of a message between processes over TCP, waking up included: one that takes less time on the wire gains nothing."""

EFFORT = 0.05
"""Of flowsim's joint routing: ranks wait for the answer."""

MOST_ONE_BY_ONE = 600
"""Pairs of all steps times core switches up to which pairs are placed one by one."""

ROUNDS = 2

EPSILON = 1e-3
"""Weight of a hop beside that of a flow: of equally used paths the shortest."""


class Placed(NamedTuple):
    """`cores` for pairs of hosts; seconds of one call of each collective, over these paths and over those of before."""

    cores: dict[Pair, str]
    seconds: float
    before_s: float


def hosts_of(state: State, program: MpiProgram) -> dict[int, str]:
    """rank -> host of the topology, by its name or else by its address."""
    topology = state.topology
    if topology is None:
        return {}
    by_address = {host.ip: host.name for host in topology.hosts if host.ip}
    by_address |= {seen.ip: name for name, seen in state.hosts.items() if seen.ip}
    found: dict[int, str] = {}
    for name, host in program.hosts.items():
        known = name if name in topology.host_by_name else by_address.get(host.address, "")
        if known in topology.host_by_name:
            found.update(dict.fromkeys(host.ranks, known))
    return found


def calls(state: State, program: MpiProgram) -> list[tuple[HostStep, ...]]:
    """The program's collectives between hosts, the one with the most bytes first.

    Of those with the same messages the longest: what is best for it is best for the others.
    """
    hosts = tuple(sorted(hosts_of(state, program).items()))
    longest: dict[object, CollectiveDeclared] = {}
    for key, one in program.collectives.items():
        sent = program.sent(key)
        receivers = tuple((sender, tuple(receiver for receiver, _ in to)) for sender, to in sent)
        shape = one.steps or (one.primitive, one.algorithm, one.root, one.ranks, receivers)
        if shape not in longest or longest[shape].bytes < one.bytes:
            longest[shape] = one
    found = [_between_hosts(one, program.sent(one.key), hosts) for one in longest.values()]
    return sorted((c for c in found if c), key=lambda steps: -sum(sum(s.values()) for s in steps))


def messages(
    collective: CollectiveDeclared, sent: tuple[tuple[int, Receivers], ...] = ()
) -> tuple[dict[tuple[int, int], float], ...]:
    """Bytes of each pair of ranks of its communicator, by step: of the algorithm, but of ranks in `sent` these."""
    steps = steps_of(
        collective.primitive,
        collective.algorithm,
        len(collective.ranks),
        collective.bytes,
        collective.root,
    )
    return corrected(steps, sent)


@functools.lru_cache(maxsize=1024)
def _between_hosts(
    collective: CollectiveDeclared,
    sent: tuple[tuple[int, Receivers], ...],
    hosts: tuple[tuple[int, str], ...],
) -> tuple[HostStep, ...]:
    host_of = dict(hosts)
    if collective.steps:
        given = tuple(Step(float(collective.bytes), pairs) for pairs in collective.steps)
        steps, at = corrected(given, ()), host_of
    else:
        steps = messages(collective, sent)
        at = {index: host_of[rank] for index, rank in enumerate(collective.ranks) if rank in host_of}
    found: list[HostStep] = []
    for step in steps:
        summed: HostStep = defaultdict(float)
        for (a, b), size in step.items():
            src, dst = at.get(a), at.get(b)
            if src is not None and dst is not None and src != dst:
                summed[src, dst] += size
        if summed:
            found.append(dict(summed))
    return tuple(found)


class Placement:
    """Places programs one by one. `plan` is the plan without steered pairs; `kept` has core switches of pairs that stay."""

    def __init__(self, state: State, plan: PathPlan, kept: Mapping[Pair, str]) -> None:
        topology, live = state.topology, state.live_topology
        assert topology is not None and live is not None
        self._topology, self._live, self._plan = topology, live, plan
        self._state = state
        self._woods = forest(topology, live)
        wanted = set(plan.cores.get("mpi", ())) or set(topology.core_switches)
        self._usable = tuple(core for core in topology.core_switches if core in self._woods.trees)
        self._usable = tuple(core for core in self._usable if core in wanted) or self._usable
        self._capacity = _capacity(live)
        self._links = {
            hop: n
            for n, hop in enumerate(
                hop for hop in self._capacity if not {*hop} & topology.host_by_name.keys()
            )
        }
        self._paths: dict[tuple[str, str, str], tuple[Hop, ...]] = {}
        self.cores = dict(kept)
        self._busy: dict[Hop, float] = defaultdict(float)
        self._host_seconds: dict[int, Floats] = {}
        for flow in state.flows.values():
            src, dst = flow.source.host, flow.destination.host
            if flow.rate_bps and src in live.attachment and dst in live.attachment and src != dst:
                for hop in _hops(path_of(topology, live, plan, src, dst, flow.traffic)):
                    self._busy[hop] += flow.rate_bps / 8
        self._rates = self._left()

    def beside(self, program: MpiProgram) -> None:
        """Take the program's collectives as load that another one meets."""
        for steps in calls(self._state, program):
            seconds = self.seconds([steps], self.cores)
            for step in steps:
                for hop, size in self._loads(step, self.cores).items():
                    if seconds > 0:
                        self._busy[hop] += DUTY * size / seconds
        self._rates, self._host_seconds = self._left(), {}

    def place(self, program: MpiProgram, fixed: Iterable[Pair], method: Method, gain: float) -> Placed:
        """Core switches for the program's pairs but the `fixed` ones.

        Those of before are kept unless a call is `gain` times as fast, also where these are the hash's.
        """
        mine = calls(self._state, program)
        others = set(fixed)
        hashed = {pair: core for pair, core in self.cores.items() if pair in others}
        before = {**self.cores}
        if method == "dijkstra":
            self.cores = found = self._by_flows(mine, hashed)
            return Placed(found, self.seconds(mine, found), self.seconds(mine, before))
        held, alone = self.seconds(mine, before), self.seconds(mine, hashed)
        best, cores = min(((held, before), (alone, hashed)), key=lambda way: way[0])
        least = self._least(mine)
        new, found = best, cores
        for way in self._ways(mine, hashed, cores):
            if new < least * gain or best < least * gain:
                break  # nothing is faster by enough
            seconds = self.seconds(mine, way)
            if seconds < new:
                new, found = seconds, way
        if new * gain <= best:
            best, cores = new, found
        elif best == alone and held <= alone * gain:
            best, cores = held, before
        self.cores = cores
        return Placed(cores, best, alone)

    def seconds(self, mine: Iterable[tuple[HostStep, ...]], cores: Mapping[Pair, str]) -> float:
        """One call of each collective."""
        return sum(self._call(steps, cores) for steps in mine)

    def steered(self) -> dict[str, dict[str, str]]:
        """The pairs whose core switch is another than their hash's, as a plan has them."""
        found: dict[str, dict[str, str]] = {}
        for (src, dst), core in sorted(self.cores.items()):
            if self._over(src, dst, core) != self._over(src, dst, ""):
                found.setdefault(src, {})[dst] = core
        return found

    # -- inside ----------------------------------------------------------------------------------------

    def _call(self, steps: tuple[HostStep, ...], cores: Mapping[Pair, str]) -> float:
        loads = CallLoads(steps, len(self._links))
        ways = self._between_switches(loads.pairs, cores)
        loads.fill(ways)
        inner = (loads.met(ways) / self._rates[ways]).max(axis=(1, 2), initial=0.0)
        return float(np.maximum(inner, self._at_hosts(steps)).sum()) + LATENCY_S * len(steps)

    def _least(self, mine: list[tuple[HostStep, ...]]) -> float:
        """Seconds below which no paths come: the links of hosts, and all uplinks of an edge switch together."""
        total = 0.0
        for steps in mine:
            uplinks = [self._longest_at_edges(step) for step in steps]
            total += float(np.maximum(uplinks, self._at_hosts(steps)).sum()) + LATENCY_S * len(steps)
        return total

    def _longest_at_edges(self, step: HostStep) -> float:
        at = self._live.attachment
        out: dict[str, float] = defaultdict(float)
        into: dict[str, float] = defaultdict(float)
        for pair, size in step.items():
            if self._crosses(pair):
                out[at[pair[0]][0]] += size
                into[at[pair[1]][0]] += size
        return max(
            [
                size / sum(self._free(hop) for hop in self._links if hop[0] == edge)
                for edge, size in out.items()
            ]
            + [
                size / sum(self._free(hop) for hop in self._links if hop[1] == edge)
                for edge, size in into.items()
            ],
            default=0.0,
        )

    def _at_hosts(self, steps: tuple[HostStep, ...]) -> Floats:
        """Seconds of each step on the links of hosts, which do not depend on paths; shape (steps,)."""
        found = self._host_seconds.get(id(steps))
        if found is None:
            found = self._host_seconds[id(steps)] = np.zeros(len(steps))
            at = self._live.attachment
            for number, step in enumerate(steps):
                loads: dict[Hop, float] = defaultdict(float)
                for (src, dst), size in step.items():
                    if src in at and dst in at:
                        loads[src, at[src][0]] += size
                        loads[at[dst][0], dst] += size
                found[number] = self._longest(loads)
        return found

    def _between_switches(self, pairs: Sequence[Pair], cores: Mapping[Pair, str]) -> Indexes:
        """The links between switches of each pair, shape (pairs, hops)."""
        return self._padded([self._inner(*pair, cores.get(pair, "")) for pair in pairs])

    def _inner(self, src: str, dst: str, core: str) -> tuple[int, ...]:
        return tuple(self._links[hop] for hop in self._over(src, dst, core)[1:-1])

    def _left(self) -> Floats:
        """bytes/s that others leave of each link between switches; 1 for none."""
        return np.array([*(self._free(hop) for hop in self._links), 1.0])

    def _padded(self, rows: Sequence[tuple[int, ...]]) -> Indexes:
        hops, none = max(map(len, rows), default=0) or 1, len(self._links)
        return np.array([(*row, *(none,) * (hops - len(row))) for row in rows], dtype=np.intp)

    def _ways(
        self, mine: list[tuple[HostStep, ...]], fixed: dict[Pair, str], now: dict[Pair, str]
    ) -> Iterator[dict[Pair, str]]:
        """Placements to compare, the cheapest to find first."""
        pairs = {pair for steps in mine for step in steps for pair in step if self._crosses(pair)}
        pairs -= fixed.keys()
        if len(pairs) <= MOST_PAIRS and self._usable:
            for end in (1, 0):
                yield fixed | {pair: self._plane(pair[end]) for pair in pairs}
        yield self._jointly(mine, fixed)
        if sum(len(step) for steps in mine for step in steps) * len(self._usable) <= MOST_ONE_BY_ONE:
            yield self._one_by_one(mine, fixed, now)

    def _plane(self, host: str) -> str:
        edge = self._topology.attachment[host][0]
        return self._usable[self._topology.hosts_at[edge].index(host) % len(self._usable)]

    def _one_by_one(
        self, mine: list[tuple[HostStep, ...]], fixed: Mapping[Pair, str], now: Mapping[Pair, str]
    ) -> dict[Pair, str]:
        """Each pair where it meets least, heaviest steps first, as often as ROUNDS; of equal ways the one of `now`."""
        found, rates = {**now, **fixed}, self._rates
        for steps in mine:
            loads = CallLoads(steps, len(self._links))
            loads.fill(self._between_switches(loads.pairs, found))
            free = [n for n, pair in enumerate(loads.pairs) if pair not in fixed and self._crosses(pair)]
            free.sort(key=lambda n: -loads.bytes[:, n].max())
            for _ in range(ROUNDS):
                moved = False
                for n in free:
                    pair = loads.pairs[n]
                    held = found.get(pair, "")
                    choices = (held, *self._usable)
                    ways = self._padded([self._inner(*pair, core) for core in choices])
                    loads.move(n, ways[0], -1.0)
                    seconds = loads.would_meet(n, ways) / rates[ways]
                    worst, total = seconds.max(axis=(0, 2)), seconds.sum(axis=(0, 2))
                    best = min(range(len(choices)), key=lambda at: (round(worst[at], 9), round(total[at], 9)))
                    loads.move(n, ways[best], 1.0)
                    moved = moved or best != 0
                    found[pair] = choices[best]
                if not moved:
                    break
        return {pair: core for pair, core in found.items() if core}

    def _jointly(self, mine: list[tuple[HostStep, ...]], cores: dict[Pair, str]) -> dict[Pair, str]:
        found = dict(cores)
        for steps in mine:
            for step in sorted(steps, key=lambda step: -max(step.values())):
                new = [pair for pair in step if pair not in found and self._crosses(pair)]
                if new and len(found) + len(new) <= MOST_PAIRS:
                    self._place_step(step, new, found)
        return found

    def _place_step(self, step: HostStep, new: list[Pair], found: dict[Pair, str]) -> None:
        topology = self._topology
        unusable = tuple(core for core in topology.core_switches if core not in self._usable)
        network, index, links = _network(topology, self._live.without(switches=unusable))
        placed = {pair: size for pair, size in step.items() if pair not in set(new)}
        loads = self._loads(placed, found)
        lasts = self._longest(self._loads(step, found))
        initial = np.zeros(len(links))
        for at, hop in enumerate(links):
            initial[at] = loads.get(hop, 0.0) + self._busy.get(hop, 0.0) * lasts
        routes = network.route_loads(
            "joint",
            np.array([index[src] for src, _ in new], dtype=np.uint32),
            np.array([index[dst] for _, dst in new], dtype=np.uint32),
            np.array([step[pair] for pair in new], dtype=np.float64),
            RouteOptions(
                seed=self._plan.seed, initial=initial, by_capacity=True, keep_paths=True, effort=EFFORT
            ),
        )
        names = {number: name for name, number in index.items()}
        usable = set(self._usable)
        for at in range(len(routes.src)):
            over = [links[i] for i in routes.links[int(routes.offsets[at]) : int(routes.offsets[at + 1])]]
            core = next((b for _, b in over if b in usable), None)
            pair = names[int(routes.src[at])], names[int(routes.dst[at])]
            if core is not None:
                found[pair] = core

    def _by_flows(self, mine: list[tuple[HostStep, ...]], cores: dict[Pair, str]) -> dict[Pair, str]:
        """Algorithm 3: every pair once, in the order of the collective's steps; a link weighs the flows over it."""
        found, weight = dict(cores), dict.fromkeys(self._capacity, 0)
        avoid = frozenset(core for core in self._topology.core_switches if core not in self._usable)
        for src, dst in dict.fromkeys(pair for steps in mine for step in steps for pair in step):
            if (src, dst) in found or len(found) >= MOST_PAIRS:
                continue

            def flows(link: Link, at: str) -> float:
                return weight[at, link.other(at)] + EPSILON

            route = self._live.dijkstra(src, dst, avoid=avoid, weight=flows)
            if route is None:
                continue
            for hop in _hops(route):
                weight[hop] += 1
            core = next((node for node in route if node in self._usable), None)
            if core is not None and self._crosses((src, dst)):
                found[src, dst] = core
        return found

    def _crosses(self, pair: Pair) -> bool:
        at = self._live.attachment
        return pair[0] in at and pair[1] in at and at[pair[0]][0] != at[pair[1]][0]

    def _loads(self, step: HostStep, cores: Mapping[Pair, str]) -> dict[Hop, float]:
        loads: dict[Hop, float] = defaultdict(float)
        for pair, size in step.items():
            for hop in self._over(*pair, cores.get(pair, "")):
                loads[hop] += size
        return loads

    def _longest(self, loads: Mapping[Hop, float]) -> float:
        return max((size / self._free(hop) for hop, size in loads.items()), default=0.0)

    def _free(self, hop: Hop) -> float:
        """bytes/s that others leave."""
        capacity = self._capacity[hop]
        return capacity - min(self._busy.get(hop, 0.0), MOST_BUSY * capacity)

    def _over(self, src: str, dst: str, core: str) -> tuple[Hop, ...]:
        """The hops over a core switch; over that of the hash without one, or where there is no such way."""
        key = (src, dst, core)
        if key not in self._paths:
            path = (
                self._tree_path(src, dst, core)
                if core
                else path_of(self._topology, self._live, self._plan, src, dst, "mpi")
            )
            self._paths[key] = _hops(path) if path else self._over(src, dst, "") if core else ()
        return self._paths[key]

    def _tree_path(self, src: str, dst: str, core: str) -> tuple[str, ...]:
        tree = self._woods.trees.get(core)
        if tree is None or not self._crosses((src, dst)):
            return ()
        ingress, egress = self._live.attachment[src][0], self._live.attachment[dst][0]
        way = tree.path(ingress, egress)
        return (src, *way, dst) if way and len(way) - 1 == self._woods.ways(ingress, egress) else ()


def _hops(path: tuple[str, ...]) -> tuple[Hop, ...]:
    return tuple(itertools.pairwise(path))


@functools.lru_cache(maxsize=8)
def _capacity(live: Topology) -> dict[Hop, float]:
    """bytes/s of each direction between two nodes."""
    found: dict[Hop, float] = defaultdict(float)
    for link in live.links:
        found[link.a, link.b] += link.capacity_bps / 8
        found[link.b, link.a] += link.capacity_bps / 8
    return dict(found)


@functools.lru_cache(maxsize=8)
def _network(topology: Topology, live: Topology) -> tuple[_native.Network, dict[str, int], tuple[Hop, ...]]:
    """flowsim's network, the number of each node, and the hop of each link."""
    names = [*(host.name for host in topology.hosts), *(switch.name for switch in topology.switches)]
    index = {name: number for number, name in enumerate(names)}
    capacity = _capacity(live)
    links = tuple(hop for hop in capacity if hop[0] in index and hop[1] in index)
    network = _native.Network(
        len(topology.hosts),
        len(topology.switches),
        np.array([index[a] for a, _ in links], dtype=np.uint32),
        np.array([index[b] for _, b in links], dtype=np.uint32),
        np.array([capacity[hop] for hop in links]),
        names,
    )
    return network, index, links
