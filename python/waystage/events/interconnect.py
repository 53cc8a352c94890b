"""Events of the interconnect and of the controller itself.

Arrives: facts from switches, counters and the policy engine.
Leaves: typed structs.
Must not know: OpenFlow, policies.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from waystage.events.actions import PathPlan
from waystage.events.base import Event, TrafficClass
from waystage.topology import Topology


class TopologyChanged(Event, frozen=True, kw_only=True):
    """The topology in force, as given by the operator or as discovered."""

    topology: Topology


class HostSeen(Event, frozen=True, kw_only=True):
    """A host announced itself by LLDP on a switch port."""

    host: str
    switch: str
    port: int
    mac: str
    ip: str | None = None


class LinkUp(Event, frozen=True, kw_only=True):
    link: str


class LinkDown(Event, frozen=True, kw_only=True):
    link: str


class SwitchUp(Event, frozen=True, kw_only=True):
    switch: str


class SwitchDown(Event, frozen=True, kw_only=True):
    switch: str


class SwitchRefused(Event, frozen=True, kw_only=True):
    """A connection claimed to be `switch` and was rejected, `times` times since the last such event.

    `certificate` holds the names in its certificate, if switches use TLS.
    """

    switch: str
    address: str
    certificate: str = ""
    reason: str
    times: int = 1


class CablingError(Event, frozen=True, kw_only=True):
    """LLDP contradicts the topology on a port; `found` is empty if no neighbour announced itself."""

    switch: str
    port: int
    expected: str
    found: str


class PortUse(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Traffic out of `port` of `node` in the interval: totals, and by class where counted."""

    node: str
    port: int
    bytes: int
    packets: int = 0
    drops: int = 0
    by_class: dict[TrafficClass, int] = {}


class UsePart(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Utilization over one of the intervals that make up a `LinkUse`."""

    interval_ns: int
    ports: tuple[PortUse, ...]


class LinkUse(Event, frozen=True, kw_only=True):
    """Utilization of every port over `interval_ns`, up to the time of the envelope.

    `parts` are the same bytes in consecutive shorter intervals, the oldest first: what a recorded run draws. Without
    them, counters are read once an interval.
    """

    telemetry: ClassVar[bool] = True

    interval_ns: int
    ports: tuple[PortUse, ...]
    parts: tuple[UsePart, ...] = ()


class PathsChanged(Event, frozen=True, kw_only=True):
    """A path plan is in force on every switch: the last barrier was answered.

    Times in ns: `processor_ns` from receipt to decision, `planner_ns` for rules and difference,
    `install_ns` from first message to last barrier (the parts of Endo et al. 2020 Fig. 14).
    """

    plan: PathPlan
    cause_id: str
    processor_ns: int = 0
    planner_ns: int = 0
    install_ns: int = 0
    messages: int = 0
    switches: int = 0


class PathsRefused(Event, frozen=True, kw_only=True):
    """A switch refused a rule or is disconnected; its previous rules stay in force.

    `copies`: it refused groups of type `all`, which multicast trees need; the plan without its trees follows.
    """

    cause_id: str
    switch: str
    reason: str
    copies: bool = False


class Decided(Event, frozen=True, kw_only=True):
    """A policy answered `cause_id` with these actions: the record that makes decisions part of the state.

    `reason` is the policy's own account of them, empty where it gives none.
    """

    policy: str
    cause_id: str
    actions: tuple[msgspec.Raw, ...]
    reason: str = ""


class PolicyFailed(Event, frozen=True, kw_only=True):
    """A policy raised an exception on an event of type `event`. Reported once for each type and error."""

    policy: str
    cause_id: str
    event: str
    error: str


class UnknownEvent(Event, frozen=True, kw_only=True):
    """An event of an unknown type, or of a newer schema `version` of a known one, kept unparsed."""

    type: str
    body: dict[str, Any]
    version: int = 1
