"""`aggregators-by-paths`: number and place of aggregators from the interconnect's state and the targets' curve.

Arrives: events and the state. Leaves: `SetServerMap`. Must not know: file domains, MPI, worlds.

ROMIO takes one aggregator a node, in the order of ranks, or what a hint says, and knows neither links nor targets.
CLARISSE takes one of sixteen processes, those near the bridges to the storage first (section V.A). Here the rate of a
collective write is worked out for a choice of nodes: what each node sends and receives, what leaves and enters each edge
switch, and what the targets take from that many writers by their contention curve (Kim et al., "SwiftLoad"); the
slowest of these is the rate. Links count less what flows of others move over them, as measured.

Aggregators are added one by one where the rate is then highest, and the smallest number is taken that comes within 3 %
of the best. Nodes with the same edge switch and the same free rates are alike: there are few kinds, however many nodes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from waystage.events import (
    Action,
    AggregatorLost,
    AggregatorStarted,
    Event,
    FileSystemDeclared,
    IoCompleted,
    IoRequested,
    LinkDown,
    LinkUp,
    TopologyChanged,
)
from waystage.forecast.curves import total_at
from waystage.io_state import IoApplication
from waystage.policies.io_rules import set_servers
from waystage.state import State
from waystage.topology import Topology

CHANGED = (AggregatorLost, AggregatorStarted, FileSystemDeclared, LinkDown, LinkUp, TopologyChanged)
"""After these the map is chosen anew. `IoCompleted` and `IoRequested` only ask whether another one is far better."""

ENOUGH = 0.97
MOST = 512
"""Aggregators of one application: more writers than any curve was measured with."""

CLIENTS_PER_AGGREGATOR = 16
"""Section V.A: the default ratio of the MPI-IO driver for GPFS."""

BITS = 10**8
"""Free rates are rounded to it, so that measured noise makes no separate kinds."""


class _Kind(msgspec.Struct, frozen=True):
    """Nodes that are alike: their edge switch, and what is free of their link, bytes a second."""

    edge: str
    out_bps: float
    in_bps: float


class AggregatorsByPaths:
    """`rule`: `paths`; `romio`: one a node; `clarisse`: one of 16 ranks, the nearest to storage first. `gain`: how many
    times faster another map must be to replace one in use."""

    name = "aggregators-by-paths"
    acts_on = frozenset({"aggregators"})

    def __init__(self, rule: str = "paths", gain: float = 1.15) -> None:
        if rule not in ("paths", "romio", "clarisse"):
            raise ValueError(f"rule {rule!r}: use paths, romio or clarisse")
        if gain < 1:
            raise ValueError(f"gain of {gain}: give at least 1")
        self._rule, self._gain = rule, gain

    def __call__(self, event: Event, state: State) -> Sequence[Action]:
        if isinstance(event, AggregatorLost | AggregatorStarted | IoCompleted | IoRequested):
            app = state.io.applications.get(event.app)
            apps = [app] if app is not None else []
        elif isinstance(event, CHANGED):
            apps = list(state.io.applications.values())
        else:
            return ()
        actions: list[Action] = []
        for app in apps:
            wanted = self._chosen(app, state, in_use=not isinstance(event, CHANGED))
            actions += set_servers(app, wanted)
        return actions

    def _chosen(self, app: IoApplication, state: State, *, in_use: bool) -> Sequence[str]:
        """None: leave it as it is."""
        topology = state.live_topology
        nodes = [host for host in app.hosts if topology is not None and host in topology.attachment]
        by_node: dict[str, str] = {}
        for name in app.offered:
            if app.servers[name].host in nodes:
                by_node.setdefault(app.servers[name].host, name)
        if topology is None or not by_node or len(nodes) < len(app.hosts):
            return ()  # nodes that the interconnect does not know: nothing can be said of their paths
        if self._rule == "romio":
            return list(by_node.values())
        if self._rule == "clarisse":
            return self._nearest(app, by_node, topology)
        model = _Model(app, state, topology, nodes)
        kinds = {node: model.kind_of[node] for node in by_node}
        best = model.best(Counter(kinds.values()))
        serving = {app.servers[name].host for name in app.serving}
        now = Counter(model.kind_of[node] for node in by_node if node in serving)
        if in_use and now and model.rate(best) < self._gain * model.rate(now):
            return ()
        chosen: list[str] = []
        for node, name in sorted(by_node.items(), key=lambda entry: entry[0] not in serving):
            if best[kinds[node]] > 0:  # those that serve now stay, where there are several alike
                best[kinds[node]] -= 1
                chosen.append(name)
        return [name for name in by_node.values() if name in set(chosen)]

    def _nearest(self, app: IoApplication, by_node: Mapping[str, str], topology: Topology) -> list[str]:
        count = min(len(by_node), max(1, app.ranks // CLIENTS_PER_AGGREGATOR))
        edges = {topology.attachment[host][0] for host in topology.storage_hosts}
        order = sorted(by_node, key=lambda node: topology.attachment[node][0] not in edges)
        return [by_node[node] for node in order[:count]]


class _Model:
    """The rate of a collective write of one application, for numbers of aggregators of each kind of node."""

    def __init__(self, app: IoApplication, state: State, topology: Topology, nodes: Sequence[str]) -> None:
        used_out: dict[str, int] = defaultdict(int)
        used_in: dict[str, int] = defaultdict(int)
        for flow in state.flows.values():
            if not (flow.traffic == "io" and flow.job_id is not None and flow.job_id == app.job_id):
                used_out[flow.source.host] += flow.rate_bps
                used_in[flow.destination.host] += flow.rate_bps
        self.kind_of: dict[str, _Kind] = {}
        for node in nodes:
            edge, capacity = topology.attachment[node][0], _link_bps(topology, node)
            self.kind_of[node] = _Kind(edge, _free(capacity, used_out[node]), _free(capacity, used_in[node]))
        self._of_kind = Counter(self.kind_of.values())
        self._nodes = len(nodes)
        self._of_edge: dict[str, int] = defaultdict(int)
        for kind, count in self._of_kind.items():
            self._of_edge[kind.edge] += count
        hosts = topology.host_by_name
        self._core_bps = {
            edge: sum(link.capacity_bps for link in topology.adjacency[edge] if link.other(edge) not in hosts)
            for edge in self._of_edge
        }
        storage = [
            topology.attachment[host][0] for host in topology.storage_hosts if host in topology.attachment
        ]
        self._storage_here = {
            edge: storage.count(edge) / len(storage) if storage else 0.0 for edge in self._of_edge
        }
        system = state.file_systems.get(app.storage)
        self._targets = system.targets if system is not None else 0
        known = system is not None and system.slowdown and system.target_bps
        self._slowdown = system.slowdown if system is not None and known else ()
        self._target_bps = system.target_bps if system is not None else 0

    def best(self, offered: Counter[_Kind]) -> Counter[_Kind]:
        """Aggregators of each kind."""
        chosen: Counter[_Kind] = Counter()
        found: list[tuple[float, Counter[_Kind]]] = []
        while len(found) < min(MOST, offered.total()):
            options = [kind for kind, count in offered.items() if chosen[kind] < count]
            kind = max(options, key=lambda k: (self.rate(chosen + Counter({k: 1})), k.out_bps, k.edge))
            chosen = chosen + Counter({kind: 1})
            found.append((self.rate(chosen), chosen))
        most = max(rate for rate, _ in found)
        return Counter(next(c for rate, c in found if rate >= ENOUGH * most))

    def rate(self, chosen: Counter[_Kind]) -> float:
        """Bit/s of the whole operation."""
        count, nodes = chosen.total(), self._nodes
        seconds = [0.0]  # for one bit of the operation, at each resource
        in_edge: dict[str, int] = defaultdict(int)
        for kind, number in self._of_kind.items():
            serving = chosen[kind]
            in_edge[kind.edge] += serving
            if serving < number:
                seconds.append(_over(1 / nodes, kind.out_bps))
            if serving:
                sent = (count - 1) / (nodes * count) + 1 / count
                seconds.append(_over(sent, kind.out_bps))
                seconds.append(_over((nodes - 1) / (nodes * count), kind.in_bps))
        for edge, capacity in self._core_bps.items():
            here, share = in_edge[edge] / count, self._of_edge[edge] / nodes
            out = here * (1 - self._storage_here[edge]) + share * (1 - here)
            seconds.append(_over(out, capacity))
            seconds.append(_over(here * (1 - share), capacity))
        if self._slowdown:
            seconds.append(_over(1.0, self._targets * self._target_bps * total_at(self._slowdown, count)))
        worst = max(seconds)
        return 1 / worst if worst > 0 else float("inf")


def _over(share: float, bps: float) -> float:
    return share / bps if bps > 0 else (float("inf") if share > 0 else 0.0)


def _free(capacity: int, used: int) -> float:
    """What is left of a link, at least a tenth: others give way to one more flow."""
    return float(
        max(capacity // 10, (capacity - used) // BITS * BITS if capacity > BITS else capacity - used)
    )


def _link_bps(topology: Topology, host: str) -> int:
    return max((link.capacity_bps for link in topology.adjacency[host]), default=0)
