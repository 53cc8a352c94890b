"""The rule planner: what every switch shall hold, and how to get there.

Arrives: the full topology, the same without what is down, true MAC addresses, a path plan; what the switches hold.
Leaves: rules and groups by switch, phases of changes, the path of any packet.
Must not know: sockets, clocks, OpenFlow libraries, policies.

`topology` always is the full one, so that labels and indexes stay as they are when something fails. Everything is
a pure function of the arguments: a controller that was killed and starts again computes the same rules.
"""

from __future__ import annotations

from collections import deque

from waystage.events import PathPlan, TrafficClass
from waystage.interconnect import labelled, per_pair
from waystage.interconnect.changes import count_messages, difference, groups_touched
from waystage.interconnect.marks import DEFAULT_MARKS, Mark
from waystage.interconnect.per_pair import PlanError, natural_class
from waystage.interconnect.rules import SwitchRules
from waystage.topology import Topology

__all__ = [
    "PlanError",
    "Router",
    "count_messages",
    "desired",
    "difference",
    "groups_touched",
    "natural_class",
    "path_of",
    "rule_counts",
]


def desired(
    topology: Topology,
    live: Topology,
    macs: dict[str, int],
    plan: PathPlan,
    *,
    marks: tuple[Mark, ...] = DEFAULT_MARKS,
    failover: bool = True,
) -> dict[str, SwitchRules]:
    """What every switch shall hold under `plan`; hosts absent from `macs` are not delivered to yet.

    With `failover` an edge switch turns to another tree by itself in the moment an uplink loses its
    carrier. Raises PlanError where a listed path is none of the topology.
    """
    if plan.style == "per-pair":
        return per_pair.desired(topology, live, macs, plan, marks)
    return labelled.desired(topology, live, macs, plan, marks, failover)


def rule_counts(held: dict[str, SwitchRules]) -> dict[str, int]:
    """switch -> flow entries and groups it holds."""
    return {switch: len(rules.rules) + len(rules.groups) for switch, rules in held.items()}


class Router:
    """The paths of one plan, prepared for many questions."""

    def __init__(self, topology: Topology, live: Topology, plan: PathPlan) -> None:
        self.topology, self.live, self.plan = topology, live, plan
        self._pairs = per_pair.path_index(topology, live, plan) if plan.style == "per-pair" else {}
        self._labelled = labelled.Paths(topology, live, plan) if plan.style != "per-pair" else None

    def path(
        self, src: str, dst: str, traffic: TrafficClass | None = None, primitive: str = ""
    ) -> tuple[str, ...]:
        """Nodes from `src` to `dst`; empty where there is no way.

        `traffic` is the class of the packet's mark; None takes the class of unmarked packets between the two.
        `primitive` is that of the packet's tag, if it has one.
        """
        traffic = traffic or natural_class(self.topology, src, dst)
        if self._labelled is None:
            return per_pair.path_of(self._pairs, src, dst, traffic)
        return self._labelled.path(src, dst, traffic, primitive)


_recent: deque[Router] = deque(maxlen=8)


def path_of(
    topology: Topology,
    live: Topology,
    plan: PathPlan,
    src: str,
    dst: str,
    traffic: TrafficClass | None = None,
) -> tuple[str, ...]:
    """The path a packet takes under `plan`; see `Router`, which this keeps for the last few plans."""
    for router in _recent:
        if router.topology is topology and router.live is live and router.plan is plan:
            return router.path(src, dst, traffic)
    router = Router(topology, live, plan)
    _recent.append(router)
    return router.path(src, dst, traffic)
