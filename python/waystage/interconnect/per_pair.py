"""Style `per-pair`: an entry a host pair on every switch of its path, as in the paper.

Arrives: the full topology, the same without what is down, true MAC addresses, a plan with its paths.
Leaves: what each switch shall hold; the path of a pair.
Must not know: what the switches hold, OpenFlow, policies.

It follows Endo et al. 2020 section IV.C.5: `base_pairs` (the paper's OFF entries) are always there, and `pairs` (its ON
entries) lie above them by priority. It is kept as the baseline; its rules grow with pairs and jobs.
"""

from __future__ import annotations

import functools
import itertools

import msgspec

from waystage.events import PairPath, PathPlan, TrafficClass
from waystage.interconnect import labels, pipeline
from waystage.interconnect.cookies import stamped
from waystage.interconnect.labelled import control_rules, mark_rules
from waystage.interconnect.marks import Mark
from waystage.interconnect.rules import Field, Goto, Output, Rule, SetEthDst, SwitchRules
from waystage.topology import Topology


class PlanError(ValueError):
    """A plan with a path that the topology does not have; the message names it."""


class PairEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A path with the priority and class match its entries get; `only` None matches every class."""

    path: tuple[str, ...]
    priority: int
    only: TrafficClass | None
    counted: TrafficClass


def desired(
    topology: Topology, live: Topology, macs: dict[str, int], plan: PathPlan, marks: tuple[Mark, ...]
) -> dict[str, SwitchRules]:
    """What every switch shall hold. Raises PlanError where a path is none of the topology."""
    found: dict[str, list[Rule]] = {switch: [] for switch in topology.switch_by_name}
    for switch, rules in found.items():
        rules += control_rules()
        rules += _port_rules(topology, switch)
        rules += mark_rules(pipeline.MARKS, pipeline.PAIRS, marks)
        unmarked = (pipeline.write_class(pipeline.UNMARKED), Goto(pipeline.PAIRS))
        rules.append(stamped(pipeline.MARKS, pipeline.PRIORITY_DEFAULT, (), unmarked))
    ports = _ports(live)
    host_labels = {host.name: labels.label_of(topology, host.name) for host in topology.hosts}
    for entry in entries(topology, live, plan):
        src, dst = entry.path[0], entry.path[-1]
        if src not in macs or dst not in macs:
            continue
        match: tuple[Field, ...] = (Field("eth_dst", host_labels[dst]), Field("eth_src", macs[src]))
        if entry.only is not None:
            match = (*match, pipeline.class_is(pipeline.class_code(entry.only)))
        last = len(entry.path) - 2
        for place in range(1, last + 1):
            switch, port = entry.path[place], ports[entry.path[place], entry.path[place + 1]]
            delivery = (SetEthDst(macs[dst]),) if place == last else ()
            found[switch].append(
                stamped(
                    pipeline.PAIRS,
                    entry.priority,
                    match,
                    (*delivery, Output(port)),
                    kind="tx",
                    traffic=entry.counted,
                    port=port,
                    rank=last - place,
                )
            )
    return {switch: SwitchRules.of(rules, []) for switch, rules in found.items()}


def entries(topology: Topology, live: Topology, plan: PathPlan) -> list[PairEntry]:
    """Every entry of the plan, each pair, priority and class once: the first named wins.

    A base path over what is down is replaced by a shortest one that is up, so that no pair waits for a new
    plan; an ON path over what is down is left out, and its pair falls back to the base path.
    Raises PlanError where a path is none of the topology.
    """
    up, all_ports = _ports(live), _ports(topology)
    seen: set[tuple[str, str, int, TrafficClass | None]] = set()
    found: list[PairEntry] = []
    for base, listed in ((False, plan.pairs), (True, plan.base_pairs)):
        for pair in listed:
            _check(topology, all_ports, pair)
            path = pair.path
            if not all(hop in up for hop in itertools.pairwise(path)):
                path = (live.dijkstra(path[0], path[-1]) or ()) if base else ()
            if not path:
                continue
            entry = _entry(topology, path, pair.traffic, base)
            identity = (path[0], path[-1], entry.priority, entry.only)
            if identity not in seen:
                seen.add(identity)
                found.append(entry)
    return found


def path_index(
    topology: Topology, live: Topology, plan: PathPlan
) -> dict[tuple[str, str], tuple[PairEntry, ...]]:
    """(source, destination) -> its entries, highest priority first."""
    found: dict[tuple[str, str], list[PairEntry]] = {}
    for entry in entries(topology, live, plan):
        found.setdefault((entry.path[0], entry.path[-1]), []).append(entry)
    return {pair: tuple(sorted(es, key=lambda e: -e.priority)) for pair, es in found.items()}


def path_of(
    index: dict[tuple[str, str], tuple[PairEntry, ...]], src: str, dst: str, traffic: TrafficClass
) -> tuple[str, ...]:
    """Nodes from `src` to `dst`, or an empty tuple where the plan has no way.

    `traffic` is the class the packet is of by its mark or, where it has none, by its ends.
    """
    for entry in index.get((src, dst), ()):
        if entry.only is None or entry.only == traffic:
            return entry.path
    return ()


def natural_class(topology: Topology, src: str, dst: str) -> TrafficClass:
    """The class of unmarked traffic between the two: staging where one is a storage host."""
    hosts = topology.host_by_name
    return "staging" if "storage" in (hosts[src].role, hosts[dst].role) else "mpi"


def _entry(topology: Topology, path: tuple[str, ...], traffic: TrafficClass | None, base: bool) -> PairEntry:
    natural = natural_class(topology, path[0], path[-1])
    only = None if traffic in (None, natural) else traffic
    if base:
        priority = pipeline.PRIORITY_BASE_PAIR if only is None else pipeline.PRIORITY_CLASS_BASE_PAIR
    else:
        priority = pipeline.PRIORITY_PAIR if only is None else pipeline.PRIORITY_CLASS_PAIR
    return PairEntry(path=path, priority=priority, only=only, counted=traffic or natural)


def _check(topology: Topology, ports: dict[tuple[str, str], int], pair: PairPath) -> None:
    path = pair.path
    hosts = topology.host_by_name
    if len(path) < 3 or path[0] not in hosts or path[-1] not in hosts or path[0] == path[-1]:
        raise PlanError(
            f"path {' '.join(path) or '(empty)'}: a path goes from one host over switches to another"
        )
    for hop in itertools.pairwise(path):
        if hop not in ports:
            raise PlanError(f"path {' '.join(path)}: there is no link from {hop[0]} to {hop[1]}")
    if len(set(path)) != len(path) or any(node in hosts for node in path[1:-1]):
        raise PlanError(f"path {' '.join(path)}: it passes a host, or a node twice")


@functools.lru_cache(maxsize=16)
def _ports(topology: Topology) -> dict[tuple[str, str], int]:
    """(node, neighbour) -> the node's first port towards it."""
    found: dict[tuple[str, str], int] = {}
    for node, links in topology.adjacency.items():
        for link in links:
            found.setdefault((node, link.other(node)), link.port_at(node))
    return found


def _port_rules(topology: Topology, switch: str) -> list[Rule]:
    rules: list[Rule] = []
    for link in topology.adjacency[switch]:
        trunk = link.other(switch) in topology.switch_by_name
        priority = pipeline.PRIORITY_TRUNK if trunk else pipeline.PRIORITY_HOST_PORT
        match = (Field("in_port", link.port_at(switch)), pipeline.UNTAGGED)
        rules.append(stamped(pipeline.PORTS, priority, match, (Goto(pipeline.MARKS),)))
    return rules
