"""The demand of each class of traffic, in core switches.

Arrives: the state. Leaves: the demand of each active class, in core switches. Must not know: plans, rules, worlds.

Only traffic across the core counts. A class's transfers are groups of sources S and destinations D: stage-in is from
storage hosts to the jobs' nodes, MPI among a job's nodes, and so on. The rate of a group out of edge switch e, and into
it, is at most

    out(e) = min(links of S at e, links of D elsewhere)      in(e) = min(links of D at e, links of S elsewhere)

and a core switch carries u(e) = (uplinks of e) / (core switches) of it. The class is unrestricted on

    full = max over e of max(sum of out(e), sum of in(e)) / u(e)

core switches, where each sum is over the class's groups and limited by the hosts' links at e. Its total rate is then
`total`, the smaller of all out and all in. The demand follows from, in order of preference:

* declared rate r (every job of the class declared one):  demand = full * min(1, r / total)
* measured rate m (not for staging, which is elastic): used = full * m / total. If the class fills half of its core
  switches or more, they may limit it: demand = full. Else demand = 2 * used.
* neither:  demand = full
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable

import msgspec

from waystage.events import CLASSES, TrafficClass
from waystage.state import JobInfo, State
from waystage.topology import Topology

BUSY = 0.5
"""From this share of its core switches on, a class may be limited by them.

A bulk-synchronous program computes and communicates in turn. If the limit were near 1, one that fills two thirds of
its core switches would lose one, take longer to communicate, show a lower rate, and lose the next. At one half the
share it fills rises with every core switch it loses, and it gets them back before it starves.
"""

SETTLE_NS = 3_000_000_000
"""A measurement counts when the class and the plan are this old: three of the one-second intervals of `LinkUse`."""

KEPT_GROUPS = 4096
"""Jobs whose part is worked out once, and not at every event while they run."""

SMALLEST = 0.01
"""The least demand of an active class, in core switches, so that ratios stay finite."""


class Reach(msgspec.Struct, frozen=True):
    """`full` in core switches and `total` in bit/s, as above."""

    full: float
    total: float


def demands(
    state: State, topology: Topology, usable: tuple[str, ...], cores: dict[TrafficClass, tuple[str, ...]]
) -> dict[TrafficClass, float]:
    """Demand of every active class in core switches; `cores` is the division in force, empty where there is none."""
    found: dict[TrafficClass, float] = {}
    for traffic in CLASSES:
        jobs = active_jobs(state, traffic)
        declared = declared_bps(jobs, traffic)
        reach = _reach(topology, usable, _groups(topology, jobs, traffic))
        if reach is None and not declared:
            continue
        if reach is None:  # where it goes is not known: spread over every edge switch
            found[traffic] = max(SMALLEST, declared / _core_bps(topology, usable))
            continue
        given = float(len(cores.get(traffic, ())) or len(usable))
        found[traffic] = max(SMALLEST, _demand(state, traffic, jobs, reach, declared, given))
    return found


def active_jobs(state: State, traffic: TrafficClass) -> list[JobInfo]:
    """Jobs that have traffic of the class now. A job that stages does not compute."""
    jobs = state.jobs.values()
    if traffic == "staging":
        return [job for job in jobs if job.staging]
    if traffic == "io":
        return [job for job in jobs if job.io]
    if traffic == "mpi":
        return [job for job in jobs if job.running and not job.staging]
    return [job for job in jobs if job.demand_bps.get(traffic)]


def declared_bps(jobs: list[JobInfo], traffic: TrafficClass) -> int:
    """The sum of what the jobs declared, or 0 where one of them declared nothing."""
    rates = [job.demand_bps.get(traffic, 0) for job in jobs]
    return sum(rates) if all(rates) else 0


def _demand(
    state: State, traffic: TrafficClass, jobs: list[JobInfo], reach: Reach, declared: int, given: float
) -> float:
    if declared:
        return reach.full * min(1.0, declared / reach.total)
    if traffic == "staging" or not _is_settled(state, jobs):
        return reach.full
    used = reach.full * state.class_rate_bps.get(traffic, 0.0) / reach.total
    if used >= BUSY * min(given, reach.full):
        return reach.full
    return min(reach.full, used / BUSY)


def _is_settled(state: State, jobs: list[JobInfo]) -> bool:
    """Whether the last measurement is of these jobs under this plan."""
    newest = max([state.requested_ns, *(job.started_ns for job in jobs)])
    return bool(state.class_rate_bps) and state.time_ns - newest >= SETTLE_NS


# -- the topology's part -------------------------------------------------------------------------------

Group = tuple[frozenset[str], frozenset[str]]
"""Source hosts and destination hosts."""


def _groups(topology: Topology, jobs: list[JobInfo], traffic: TrafficClass) -> list[Group]:
    storage = frozenset(topology.storage_hosts)
    if traffic == "mpi":
        return [(nodes, nodes) for nodes in (nodes_of(topology, job.nodes) for job in jobs)]
    if traffic == "wan" or not jobs:
        return []
    if traffic == "io":
        nodes = _nodes(topology, jobs)
        return [(storage, nodes), (nodes, storage)]
    arriving = [job for job in jobs if "in" in job.staging]
    leaving = [job for job in jobs if "out" in job.staging]
    return [(storage, _nodes(topology, arriving)), (_nodes(topology, leaving), storage)]


def _nodes(topology: Topology, jobs: Iterable[JobInfo]) -> frozenset[str]:
    """The jobs' nodes; every computing host where a job's are not known."""
    return frozenset().union(*(nodes_of(topology, job.nodes) for job in jobs))


@functools.lru_cache(maxsize=KEPT_GROUPS)
def nodes_of(topology: Topology, nodes: tuple[str, ...]) -> frozenset[str]:
    """A job's nodes that the topology has; every computing host where it has none of them."""
    return frozenset(node for node in nodes if node in topology.host_by_name) or frozenset(
        topology.compute_hosts
    )


def _reach(topology: Topology, usable: tuple[str, ...], groups: list[Group]) -> Reach | None:
    """None where nothing of it crosses the core."""
    leaving: dict[str, float] = defaultdict(float)
    arriving: dict[str, float] = defaultdict(float)
    total = 0.0
    for sources, targets in groups:
        out, into, rate = _crossing(topology, sources, targets)
        total += rate
        for edge, here in out.items():
            leaving[edge] += here
        for edge, here in into.items():
            arriving[edge] += here
    if total <= 0:
        return None
    everyone = _links_by_edge(topology, frozenset().union(*(s | t for s, t in groups)))
    full = max(
        min(rate, everyone[edge]) / per_core
        for rates in (leaving, arriving)
        for edge, rate in rates.items()
        if (per_core := uplink_bps(topology, edge) / len(usable)) > 0
    )
    return Reach(full, total)


@functools.lru_cache(maxsize=KEPT_GROUPS)
def _crossing(
    topology: Topology, sources: frozenset[str], targets: frozenset[str]
) -> tuple[dict[str, int], dict[str, int], int]:
    """edge switch -> out(e) and in(e) of one group, and its rate; callers must not change it."""
    out_links, in_links = _links_by_edge(topology, sources), _links_by_edge(topology, targets)
    all_out, all_in = sum(out_links.values()), sum(in_links.values())
    out = {e: min(here, all_in - in_links.get(e, 0)) for e, here in out_links.items()}
    into = {e: min(here, all_out - out_links.get(e, 0)) for e, here in in_links.items()}
    return out, into, min(sum(out.values()), sum(into.values()))


def _links_by_edge(topology: Topology, hosts: frozenset[str]) -> dict[str, int]:
    """edge switch -> the summed capacity of the links of `hosts` there."""
    found: dict[str, int] = defaultdict(int)
    for host in hosts:
        if host in topology.attachment:
            found[topology.attachment[host][0]] += topology.adjacency[host][0].capacity_bps
    return found


def uplink_bps(topology: Topology, edge: str) -> int:
    """The summed capacity of an edge switch's links to other switches."""
    switches = topology.switch_by_name
    return sum(link.capacity_bps for link in topology.adjacency[edge] if link.other(edge) in switches)


def _core_bps(topology: Topology, usable: tuple[str, ...]) -> float:
    """What one core switch carries from all edge switches together."""
    return sum(uplink_bps(topology, edge) for edge in topology.edge_switches) / len(usable)
