"""Links, storage targets and wide-area paths of a state, numbered for the flow clock.

Arrives: the state, and a plan after which routes go. Leaves: capacities, curves, routes as resource numbers.
Must not know: what moves over them, policies, worlds.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from waystage._native import FlowClock
from waystage.events import PathPlan, TrafficClass
from waystage.forecast.curves import UNKNOWN, best_loaders, table
from waystage.interconnect.planner import PlanError, Router
from waystage.state import FlowInfo, State
from waystage.topology import Topology

UNMEASURED = 1e15
"""Bytes a second of a storage target of which no rate was declared: it limits nothing."""


OWN_MOST = 64
"""Loaders for a target that an engine chooses by itself at most."""


class Followed(NamedTuple):
    """A plan, and the link numbers from host to host, by class, that were worked out under it."""

    plan: PathPlan
    router: Router
    routes: dict[tuple[str, str, TrafficClass], tuple[int, ...]]


Kept = list[Followed]


class Resources:
    """Of one state; the plan may change. `clock` makes an empty flow clock over them.

    `kept` are routes of plans that other forecasts of the same state have worked out, and takes new ones.
    """

    def __init__(self, state: State, topology: Topology, kept: Kept | None = None) -> None:
        self._state, self._topology = state, topology
        self._hops: dict[tuple[str, str], int] = {}
        self._capacities: list[float] = []
        for node, links in topology.adjacency.items():
            for link in links:
                hop = (node, link.other(node))
                if hop not in self._hops:
                    self._hops[hop] = self._new(link.capacity_bps / 8)
        self._named: dict[str, int] = {}
        self._curves: dict[int, list[tuple[float, float]]] = {}
        for path in state.wide_paths.values():
            for way in ("in", "out"):
                self._named[f"{path.peer} {way}"] = self._new(path.rate_bps / 8)
        self._followed: Followed | None = None
        self._kept: Kept = kept if kept is not None else []

    def _new(self, capacity: float) -> int:
        self._capacities.append(max(0.0, min(capacity, UNMEASURED)))
        return len(self._capacities) - 1

    def target(self, name: str) -> int:
        """A storage target; call it for all before `clock`."""
        if name not in self._named:
            system = self._state.file_systems.get(name.rpartition(":")[0])
            known = system is not None and system.target_bps > 0
            self._named[name] = self._new(UNMEASURED)
            if system is not None and known:
                curve = table(system.slowdown or UNKNOWN, system.target_bps / 8)
                self._curves[self._named[name]] = curve
        return self._named[name]

    def own_loaders(self, flow: FlowInfo) -> int:
        """For each target, of an engine that did not say: as many as read most alone, which ours chooses; 1 without."""
        for name in flow.source.targets or flow.destination.targets:
            system = self._state.file_systems.get(name.rpartition(":")[0])
            if system is not None and system.slowdown:
                return best_loaders(system.slowdown, OWN_MOST)
        return 1

    def best_of(self, resource: int) -> float:
        """The most that a resource gives, bytes a second; never 0."""
        points = self._curves.get(resource)
        most = max(total for _, total in points) if points else self._capacities[resource]
        return max(most, 1e-9)

    def clock(self) -> FlowClock:
        clock = FlowClock(np.array(self._capacities), precision=1e-4)
        for number, points in self._curves.items():
            clock.set_curve(number, points)
        return clock

    def follow(self, plan: PathPlan) -> None:
        """Routes go by `plan` from now on; one that the planner refuses changes nothing."""
        known = next((entry for entry in self._kept if entry.plan is plan or entry.plan == plan), None)
        if known is None:
            try:
                router = Router(self._state.topology or self._topology, self._topology, plan)
            except PlanError:
                return
            known = Followed(plan, router, {})
            self._kept.append(known)
        self._followed = known

    def between(self, source: str, target: str, traffic: TrafficClass) -> tuple[int, ...]:
        """The links from host to host; none where they are one host, or one of them is unknown or cut off."""
        if self._followed is None:
            return ()
        key, routes = (source, target, traffic), self._followed.routes
        if key not in routes:
            known = self._topology.attachment
            path: tuple[str, ...] = ()
            if source != target and source in known and target in known:
                path = self._followed.router.path(source, target, traffic)
            routes[key] = tuple(self._hops[hop] for hop in itertools.pairwise(path))
        return routes[key]

    def legs(self, flow: FlowInfo) -> list[tuple[str, str, tuple[int, ...]]]:
        """Source host, target host and resources beside links of each part of a flow: one for each storage target."""
        beside: tuple[int, ...] = ()
        for end, way in ((flow.source, "in"), (flow.destination, "out")):
            if f"{end.peer} {way}" in self._named:
                beside = (*beside, self._named[f"{end.peer} {way}"])
        source, target = (
            self._host(flow.source.host, flow.source.peer),
            self._host(flow.destination.host, flow.destination.peer),
        )
        read, written = flow.source.targets, flow.destination.targets
        if not read and not written:
            return [(source, target, beside)]
        found = []
        for name in read or written:
            server = self._server(name)
            ends = (server or source, target) if read else (source, server or target)
            found.append((*ends, (*beside, self.target(name))))
        return found

    def _host(self, host: str, peer: str) -> str:
        path = self._state.wide_paths.get(peer)
        return host or (path.host if path is not None else "")

    def _server(self, target: str) -> str:
        """The host that serves a target; empty where none was declared."""
        name, _, number = target.rpartition(":")
        system = self._state.file_systems.get(name)
        if system is None or not system.hosts or not number.isdigit():
            return ""
        return system.hosts[int(number) % len(system.hosts)]


def keyed(route: tuple[int, ...]) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
    """One route as the clock takes it."""
    return np.array([0, len(route)], dtype=np.uint64), np.array(route, dtype=np.uint32)
