"""`storage-shares`: the loaders of each storage target divided among jobs, as many in all as the target serves best.

Arrives: events and the state. Leaves: `SetLoaders`. Must not know: loaders, layouts, worlds.

A program that chooses its loaders alone takes as many as read most from a target, where x / g(x) is largest (Kim et
al., "SwiftLoad", algorithm 1). Several such programs crowd the target together, and all become slower. This policy
divides that best number among the jobs of a target, max-min fair and by `weights`:

* Every flow has one number of loaders, used at each of its targets. The target with the smallest share settles its
  flows first, and what they leave elsewhere goes to the others (progressive filling, Bertsekas and Gallager, section
  6.5.2). A job's share is divided among its flows on a target.
* A share is rounded down and is at least 1: no job starves, also where a target has more jobs than loaders.
* A paused flow has no loaders, and gets its share when it goes on. A flow that obeys no `SetLoaders`, such as a copy, is
  left its share of its targets, and asked for nothing. Flows whose targets are unknown do not count. A flow alone on
  its targets gets the best number. Numbers change when a flow begins or ends, and at no other time: the answer has no
  effect on itself.
* With more than 512 flows the shares are worked out once a second, when their progress is reported.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence

from waystage.events import Action, Event, FileSystemDeclared, FlowFinished, FlowProgress, FlowStarted
from waystage.forecast.curves import Slowdown, best_loaders
from waystage.policies.flow_rules import set_loaders
from waystage.state import FlowInfo, State

AT_ONCE = 512
"""Flows up to which a start or an end changes the shares at once."""

RELEVANT = (FlowStarted, FlowFinished, FileSystemDeclared)


class StorageShares:
    """`slowdown`: g as points (loaders, slowdown), for file systems that declared none. `weights`: by user or job."""

    name = "storage-shares"
    acts_on = frozenset({"loaders"})
    reads_rates = False

    def __init__(
        self,
        slowdown: Sequence[Sequence[float]] = (),
        weights: Mapping[str, float] | None = None,
        most: int = 1024,
    ) -> None:
        if any(len(point) != 2 for point in slowdown):
            raise ValueError("slowdown lists points of two numbers, (loaders, slowdown)")
        points = tuple((float(x), float(g)) for x, g in slowdown)
        if any(g < 1 or x < 1 for x, g in points) or any(a[0] >= b[0] for a, b in itertools.pairwise(points)):
            raise ValueError("slowdown needs rising loaders of at least 1, and slowdowns of at least 1")
        if any(not 0 < weight < 1e6 for weight in (weights or {}).values()):
            raise ValueError("weights must be above 0 and below 1,000,000")
        if not 1 <= most <= 4096:
            raise ValueError(f"most of {most}: give 1 to 4096 loaders for a target")
        self._slowdown: Slowdown = points
        self._weights = dict(weights or {})
        self._most = most

    def __call__(self, event: Event, state: State) -> Sequence[Action]:
        # Thousands of flows that begin together would each have all shares worked out: once a second then.
        if not isinstance(event, RELEVANT if len(state.flows) <= AT_ONCE else FlowProgress):
            return ()
        flows = {
            flow.flow_id: targets
            for flow in state.flows.values()
            if not flow.settings.paused and (targets := self._targets(flow, state))
        }
        actions: list[Action] = []
        for flow_id, share in self._shares(flows, state).items():
            actions += set_loaders(state.flows[flow_id], share)
        return actions

    def _targets(self, flow: FlowInfo, state: State) -> tuple[str, ...]:
        """The flow's targets whose curve is known, each once."""
        ends = dict.fromkeys((*flow.source.targets, *flow.destination.targets))
        return tuple(target for target in ends if self._curve(target, state))

    def _curve(self, target: str, state: State) -> Slowdown:
        system = state.file_systems.get(target.rpartition(":")[0])
        return (system.slowdown if system is not None else ()) or self._slowdown

    def _shares(self, flows: Mapping[str, tuple[str, ...]], state: State) -> dict[str, int]:
        """Loaders of each flow, by progressive filling."""
        weights = self._flow_weights(flows, state)
        users: dict[str, dict[str, None]] = defaultdict(dict)
        for flow_id, targets in flows.items():
            for target in targets:
                users[target][flow_id] = None
        left = {target: float(best_loaders(self._curve(target, state), self._most)) for target in users}
        weight = {target: sum(weights[f] for f in on) for target, on in users.items()}
        shares: dict[str, int] = {}
        while users:
            tightest = min(users, key=lambda target: (left[target] / weight[target], target))
            level = left[tightest] / weight[tightest]
            for flow_id in users[tightest]:
                shares[flow_id] = max(1, int(weights[flow_id] * level + 1e-9))
            for flow_id in list(users[tightest]):
                for target in flows[flow_id]:
                    left[target] = max(0.0, left[target] - shares[flow_id])
                    weight[target] -= weights[flow_id]
                    del users[target][flow_id]
                    if not users[target]:
                        del users[target]
        return shares

    def _flow_weights(self, flows: Mapping[str, tuple[str, ...]], state: State) -> dict[str, float]:
        """A job's weight is divided among its flows; a flow without a job counts as one."""
        owners = {flow_id: state.flows[flow_id].job_id or flow_id for flow_id in flows}
        counts: dict[str, int] = defaultdict(int)
        for owner in owners.values():
            counts[owner] += 1
        return {f: self._weight(state.flows[f]) / counts[owner] for f, owner in owners.items()}

    def _weight(self, flow: FlowInfo) -> float:
        return self._weights.get(flow.job_id or "", self._weights.get(flow.user, 1.0))
