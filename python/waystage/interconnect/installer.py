"""Brings a plan into force, switch by switch.

Arrives: switches that come, with what they hold, and go; a view of the topology and a plan.
Leaves: changes, through a given function; a `Result` for each plan.
Must not know: OpenFlow, discovery, events, threads; it is not thread-safe.

A switch without its control channel keeps forwarding by its rules, and nothing may depend on a change it cannot
receive. If it is not an edge switch and would need one, the plan avoids it. If it is an edge switch, its hosts keep
their old paths, and all switches keep the old rules until it returns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from waystage.events import PathPlan
from waystage.interconnect import planner
from waystage.interconnect.discovery import View
from waystage.interconnect.labels import label_of, parse_mac
from waystage.interconnect.marks import DEFAULT_MARKS, Mark
from waystage.interconnect.outcome import Outcome
from waystage.interconnect.rules import Change, Group, Phase, Rule, SetEthDst, SwitchRules
from waystage.topology import Topology

DRAIN_S = 0.1
"""Delay between moving traffic and removing its old rules: longer than the queueing delay of the fabric."""

Changes = Mapping[str, Sequence[Change]]


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """`lasting`: the switch would refuse again; else it was disconnected or silent, and a retry may succeed. `copies`:
    groups of type `all` were among what it refused."""

    switch: str
    reason: str
    lasting: bool
    copies: bool = False


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a plan. It is in force on all switches if `refused` is empty.

    `unclean`: unused old rules remain, which `clean` must remove.
    """

    planner_ns: int = 0
    install_ns: int = 0
    messages: int = 0
    switches: int = 0
    refused: tuple[Refused, ...] = ()
    unclean: bool = False


class Installer:
    """`send` applies changes and returns the outcome; `read` returns the rules of a switch."""

    def __init__(
        self,
        send: Callable[[Changes], Mapping[str, Outcome]],
        read: Callable[[str], SwitchRules | None],
        *,
        marks: tuple[Mark, ...] = DEFAULT_MARKS,
        failover: bool = True,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.held: dict[str, SwitchRules] = {}
        self.lost: dict[str, SwitchRules] = {}
        self._send = send
        self._read = read
        self._marks = marks
        self._failover = failover
        self._sleep = sleep
        self._macs_by_label: dict[int, int] = {}
        self._wanted: dict[str, SwitchRules] = {}

    def connected(self, switch: str, held: SwitchRules) -> None:
        """The switch is connected with these rules, from which its hosts' addresses are learnt."""
        self.lost.pop(switch, None)
        self.held[switch] = held
        for rule in held.rules.values():
            for step in rule.steps:
                if isinstance(step, SetEthDst):
                    label = next((f.value for f in rule.match if f.name == "eth_dst"), None)
                    if label is not None:
                        self._macs_by_label[label] = step.mac

    def disconnected(self, switch: str) -> None:
        if switch in self.held:
            self.lost[switch] = self.held.pop(switch)

    def apply(self, view: View, plan: PathPlan, dead: frozenset[str] = frozenset()) -> Result:
        """Bring `plan` into force. `dead` switches do not forward and are not waited for.

        Raises planner.PlanError if the plan does not fit this topology.
        """
        started = time.perf_counter_ns()
        wanted, withheld = self._plan(view, plan, dead)
        phases = planner.difference(self.held, wanted)
        planned = time.perf_counter_ns()
        trailing = bool(phases) and phases[-1].name == "clean"
        body = phases[:-1] if trailing else phases
        refused = self._install(body, wanted)
        if not refused:
            self._wanted = wanted
        return Result(
            planner_ns=planned - started,
            install_ns=time.perf_counter_ns() - planned if body else 0,
            messages=sum(phase.messages for phase in body),
            switches=len({switch for phase in body for switch in phase.changes}),
            refused=(*refused, *withheld),
            unclean=trailing and not refused,
        )

    def clean(self) -> Result:
        """Remove what the last plan no longer needs; call DRAIN_S or more after it came into force.

        Not while a switch is disconnected: it may still use these rules.
        """
        if self.lost:
            return Result(unclean=True)
        started = time.perf_counter_ns()
        phases = [p for p in planner.difference(self.held, self._wanted) if p.name == "clean"]
        refused = self._install(phases, self._wanted)
        return Result(
            install_ns=time.perf_counter_ns() - started,
            messages=sum(phase.messages for phase in phases),
            switches=len({switch for phase in phases for switch in phase.changes}),
            refused=tuple(refused),
        )

    def macs(self, view: View) -> dict[str, int]:
        """True addresses: the discovered ones, else those in the switches' rules."""
        macs = {name: parse_mac(mac) for name, mac in view.macs.items()}
        for host in view.topology.hosts:
            if host.name not in macs:
                found = self._macs_by_label.get(label_of(view.topology, host.name))
                if found is not None:
                    macs[host.name] = found
        return macs

    # -- planning -----------------------------------------------------------------------------

    def _plan(
        self, view: View, plan: PathPlan, dead: frozenset[str]
    ) -> tuple[dict[str, SwitchRules], list[Refused]]:
        topology = view.topology
        absent = {s.name for s in topology.switches if s.name not in self.held} - dead
        never_seen = absent - self.lost.keys()
        around = {switch for switch in never_seen if switch not in topology.edge_switches}
        wanted = self._desired(view, plan, around)
        behind = self._behind(wanted, absent)
        if inner := {switch for switch in behind if switch not in topology.edge_switches}:
            around |= inner
            wanted = self._desired(view, plan, around)
            behind = self._behind(wanted, absent)
        reason = "its control channel is lost: it keeps its rules until it returns"
        return wanted, [
            Refused(switch=switch, reason=reason, lasting=False)
            for switch in sorted(behind)
            if switch in topology.edge_switches
        ]

    def _desired(self, view: View, plan: PathPlan, around: set[str]) -> dict[str, SwitchRules]:
        live = view.live
        if around:
            without = live.without(switches=around)
            # A switch that may not answer is better than unreachable hosts.
            if _reach(without) >= _reach(live):
                live = without
        return planner.desired(
            view.topology, live, self.macs(view), plan, marks=self._marks, failover=self._failover
        )

    def _behind(self, wanted: dict[str, SwitchRules], absent: set[str]) -> set[str]:
        """Disconnected switches that would need a change before traffic could move."""
        held = {switch: self.lost.get(switch, SwitchRules()) for switch in absent}
        phases = planner.difference(held, {switch: wanted[switch] for switch in absent if switch in wanted})
        return {switch for phase in phases if phase.name != "clean" for switch in phase.changes}

    # -- installing ---------------------------------------------------------------------------

    def _install(self, phases: Sequence[Phase], wanted: dict[str, SwitchRules]) -> list[Refused]:
        """Apply the phases in order; at the first refusal, roll back the moved traffic."""
        before = dict(self.held)
        moved = False
        for phase in phases:
            if phase.name == "clean" and moved:
                self._sleep(DRAIN_S)
            outcomes = self._send(phase.changes)
            moved = moved or (phase.name == "switch" and any(o.error is None for o in outcomes.values()))
            refused = self._record(phase.changes, outcomes)
            if refused:
                if moved:
                    self._fall_back(before)
                return refused
        for switch in self.held:
            # The planner compares by identity first: keep its own values, which are shared and cached.
            if switch in wanted and _same(self.held[switch], wanted[switch]):
                self.held[switch] = wanted[switch]
        return []

    def _record(self, changes: Changes, outcomes: Mapping[str, Outcome]) -> list[Refused]:
        refused: list[Refused] = []
        for switch, outcome in outcomes.items():
            if outcome.error is None:
                self.held[switch] = changed(self.held[switch], changes[switch])
                continue
            if outcome.unknown:
                self._read_again(switch)
            if outcome.own:
                groups = [c.item for c in changes[switch] if isinstance(c.item, Group) and c.op != "delete"]
                copies = outcome.lasting and any(group.kind == "all" for group in groups)
                refused.append(
                    Refused(switch=switch, reason=outcome.error, lasting=outcome.lasting, copies=copies)
                )
        return refused

    def _read_again(self, switch: str) -> None:
        held = self._read(switch)
        if held is None:
            self.disconnected(switch)
        else:
            self.held[switch] = held

    def _fall_back(self, before: dict[str, SwitchRules]) -> None:
        """Roll back on the reachable switches; the next plan repairs what they refuse."""
        for phase in planner.difference(self.held, before):
            if phase.name != "clean":
                self._record(phase.changes, self._send(phase.changes))


def changed(held: SwitchRules, changes: Sequence[Change]) -> SwitchRules:
    """What a switch holds after `changes`."""
    rules, groups = held.rules, dict(held.groups)
    if any(isinstance(change.item, Rule) for change in changes):
        rules = dict(rules)  # else the planner knows by identity that none has changed
    for change in changes:
        item = change.item
        if isinstance(item, Rule):
            if change.op == "delete":
                rules.pop(item.key, None)
            else:
                rules[item.key] = item
        elif change.op == "delete":
            groups.pop(item.group_id, None)
        else:
            groups[item.group_id] = item
    return SwitchRules(rules=rules, groups=groups)


def _same(have: SwitchRules, want: SwitchRules) -> bool:
    same_rules = have.rules is want.rules or have.rules == want.rules
    return same_rules and have.groups == want.groups


def _reach(live: Topology) -> int:
    """Number of ordered host pairs with a path."""
    left = {host.name for host in live.hosts}
    pairs = 0
    while left:
        part = live.distances(next(iter(sorted(left)))).keys() & left
        pairs += len(part) * (len(part) - 1)
        left -= part
    return pairs
