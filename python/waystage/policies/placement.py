"""Places the path indexes of each class on core switches to minimise the load of the busiest link.

Arrives: the state, the core switches of each class, the placement in force.
Leaves: a placement, per class and edge switch. Must not know: rules, how core switches were divided, worlds.

A hash ignores load: with nine flows over four uplinks, one uplink often carries four. The jobs' nodes are known, and
with them the load of every bundle (the pairs of one class, one edge switch and one path index) up to a factor: a node
divides its link among its receivers. Bundles, the heaviest first, move to the core switch that reduces the sum of
(load / capacity)^4 over all links between edge and core switches most, a smooth approximation of the busiest link.
The local search starts from the placement in force, so that few bundles move, and none moves unless the load of the
busiest link falls by a sixth. The number of path indexes and groups is constant: only the targets of groups change.

Requires a link from every edge switch to every core switch in use; otherwise, and without known traffic, the placement
is that of `spread`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from waystage import spread
from waystage.events import CLASSES, PathPlan, Placement, Spread, TrafficClass
from waystage.policies.demand import Group, active_jobs, nodes_of
from waystage.policies.path_search import Cores
from waystage.state import State
from waystage.topology import Topology

GAIN = 1.2
"""What limits must be this many times worse than in the new plan, here and in the division: moving flows reorders
packets."""

POWER = 4
PASSES = 3

MOST_BUNDLES = 256
"""Bundles of a class that are placed one by one, which bounds the time a decision takes; the others are dealt."""

MOST_CELLS = 1 << 18
"""Edge switches x path indexes x edge switches. Above, the loads of a job would take too long to work out."""

KEPT_GROUPS = 1024
KEPT_PLACEMENTS = 256

Loads = NDArray[np.float64]


def place(
    state: State, cores: Cores, usable: tuple[str, ...], *, spread_by: Spread, seed: int, now: PathPlan | None
) -> Placement:
    """For plans of style `labelled`. `cores` names the core switches of divided classes, `usable` those of all
    others."""
    topology, live = state.topology, state.live_topology
    if topology is None or live is None or len(usable) < 2:
        return {}
    capacity = _capacities(topology, live, usable)
    paths = spread.path_count(len(topology.core_switches))
    edges = topology.edge_switches
    if capacity is None or len(edges) ** 2 * paths > MOST_CELLS:
        return {}
    transfers = {traffic: tuple(_transfers(state, topology, traffic)) for traffic in CLASSES}
    placed = now.placed if now is not None else {}
    return _placed(
        topology,
        live,
        usable,
        tuple(
            Part(
                traffic,
                tuple(cores.get(traffic) or usable),
                of,
                tuple(sorted(placed.get(traffic, {}).items())),
            )
            for traffic, of in transfers.items()
            if of
        ),
        spread_by,
        seed,
    )


class Part(NamedTuple):
    """What a class sends, between which hosts and over which core switches, and where its path indexes are now."""

    traffic: TrafficClass
    cores: tuple[str, ...]
    transfers: tuple[Group, ...]
    now: tuple[tuple[str, tuple[str, ...]], ...]


@functools.lru_cache(maxsize=KEPT_PLACEMENTS)
def _placed(
    topology: Topology,
    live: Topology,
    usable: tuple[str, ...],
    parts: tuple[Part, ...],
    spread_by: Spread,
    seed: int,
) -> Placement:
    """The placement; callers must not change it. It is kept, for a forecast asks for the same one many times."""
    capacity = _capacities(topology, live, usable)
    edges = topology.edge_switches
    sent = {part.traffic: _sent(topology, part.transfers, spread_by, seed) for part in parts}
    active = [part for part in parts if sent[part.traffic].any()]
    if capacity is None or not active:
        return {}
    sent = {part.traffic: sent[part.traffic] for part in active}
    allowed = {part.traffic: part.cores for part in active}
    dealt = {traffic: _dealt(topology, usable, cores) for traffic, cores in allowed.items()}
    held = {part.traffic: _held(topology, usable, part, dealt[part.traffic]) for part in active}
    moved = _search(sent, held, allowed, usable, capacity)
    if _busiest(sent, held, capacity) <= GAIN * _busiest(sent, moved, capacity):
        moved = held
    found: Placement = {}
    for traffic in allowed:
        rows = {
            edge: tuple(usable[core] for core in moved[traffic][index])
            for index, edge in enumerate(edges)
            if (moved[traffic][index] != dealt[traffic][index]).any()
        }
        if rows:
            found[traffic] = rows
    return found


# -- what is sent --------------------------------------------------------------------------------------


def _sent(topology: Topology, transfers: Iterable[Group], spread_by: Spread, seed: int) -> Loads:
    """[edge switch, path index, edge switch] -> bit/s that the class's transfers would send, were no link shared."""
    size = len(topology.edge_switches)
    total = np.zeros((size, spread.path_count(len(topology.core_switches)), size))
    for sources, targets in transfers:
        total += _sent_by(topology, sources, targets, spread_by, seed)
    return total


def _transfers(state: State, topology: Topology, traffic: TrafficClass) -> Iterable[Group]:
    """Senders and receivers, job by job; where traffic of the class comes from is not known for `wan`."""
    storage = frozenset(topology.storage_hosts)
    for job in active_jobs(state, traffic):
        nodes = nodes_of(topology, job.nodes)
        if traffic == "mpi":
            yield nodes, nodes
        elif traffic == "io":
            yield storage, nodes
            yield nodes, storage
        elif traffic == "staging":
            if "in" in job.staging:
                yield storage, nodes
            if "out" in job.staging:
                yield nodes, storage


@functools.lru_cache(maxsize=KEPT_GROUPS)
def _sent_by(
    topology: Topology, sources: frozenset[str], targets: frozenset[str], spread_by: Spread, seed: int
) -> Loads:
    """Counted by host keys, of which there are few, and not by pairs, of which a large job has millions."""
    cores = len(topology.core_switches)
    paths, host_keys = spread.path_count(cores), spread.host_key_count(cores)
    leaving = _by_edge_and_key(topology, sources, host_keys, len(targets - sources) or len(targets) - 1)
    arriving = _by_edge_and_key(topology, targets, host_keys, len(sources - targets) or len(sources) - 1)
    table = np.array(
        [
            [
                spread.path_index_of_keys(cores, src, dst, spread=spread_by, seed=seed)
                for dst in range(host_keys)
            ]
            for src in range(host_keys)
        ]
    )
    size = len(topology.edge_switches)
    sent = np.zeros((size, paths, size))
    for path_index in range(paths):
        pairs = (table == path_index).astype(float)
        out = leaving[0] @ pairs @ arriving[1].T
        into = leaving[1] @ pairs @ arriving[0].T
        sent[:, path_index, :] = np.minimum(out, into)
    for edge in range(size):
        sent[edge, :, edge] = 0.0
    return sent


def _by_edge_and_key(
    topology: Topology, hosts: frozenset[str], host_keys: int, peers: int
) -> tuple[Loads, Loads]:
    """[edge switch, host key] -> bit/s of the hosts' links for each of their peers; number of hosts."""
    index = {edge: number for number, edge in enumerate(topology.edge_switches)}
    rate, count = np.zeros((len(index), host_keys)), np.zeros((len(index), host_keys))
    for host in hosts:
        if host in topology.attachment:
            cell = index[topology.attachment[host][0]], spread.host_key(topology, host)
            rate[cell] += topology.adjacency[host][0].capacity_bps / max(1, peers)
            count[cell] += 1
    return rate, count


# -- where it goes -------------------------------------------------------------------------------------

Homes = NDArray[np.intp]
"""[edge switch, path index] -> index of a core switch in `usable`."""


@functools.lru_cache(maxsize=16)
def _capacities(topology: Topology, live: Topology, usable: tuple[str, ...]) -> Loads | None:
    """[edge switch, core switch] -> bit/s between the two; None where two are not neighbours."""
    found = np.zeros((len(topology.edge_switches), len(usable)))
    for row, edge in enumerate(topology.edge_switches):
        for link in live.adjacency[edge]:
            if link.other(edge) in usable:
                found[row, usable.index(link.other(edge))] += link.capacity_bps
    return found if found.all() else None


def _dealt(topology: Topology, usable: tuple[str, ...], allowed: tuple[str, ...]) -> Homes:
    """As `spread` deals the path indexes, at every edge switch alike."""
    homes = spread.cores_of_paths(topology.core_switches, allowed)
    row = [usable.index(core) for core in homes]
    return np.array([row] * len(topology.edge_switches), dtype=np.intp)


def _held(topology: Topology, usable: tuple[str, ...], part: Part, dealt: Homes) -> Homes:
    """As the plan in force has them, where its choice is one of the class's core switches still."""
    homes, rows = dealt.copy(), dict(part.now)
    for index, edge in enumerate(topology.edge_switches):
        for path_index, core in enumerate(rows.get(edge, ())[: homes.shape[1]]):
            if core in part.cores:
                homes[index, path_index] = usable.index(core)
    return homes


def _search(
    sent: dict[TrafficClass, Loads],
    held: dict[TrafficClass, Homes],
    allowed: Cores,
    usable: tuple[str, ...],
    capacity: Loads,
) -> dict[TrafficClass, Homes]:
    """Bundles to where the sum of (load / capacity)^4 falls most, until none moves."""
    homes = {traffic: found.copy() for traffic, found in held.items()}
    up, down = _loads(sent, homes, capacity)
    bundles = _heaviest(sent, homes)
    choices = {
        traffic: np.array([usable.index(core) for core in allowed[traffic]], dtype=np.intp)
        for traffic in homes
    }
    sizes = [
        (
            sent[traffic][edge, path_index].sum() / capacity[edge],
            sent[traffic][edge, path_index][:, None] / capacity,
        )
        for traffic, edge, path_index in bundles
    ]
    for _ in range(PASSES):
        before = {traffic: found.copy() for traffic, found in homes.items()}
        for (traffic, edge, path_index), (out, into) in zip(bundles, sizes, strict=True):
            choice = choices[traffic]
            here = homes[traffic][edge, path_index]
            up[edge, here] -= out[here]
            down[:, here] -= into[:, here]
            grown = (up[edge, choice] + out[choice]) ** POWER - up[edge, choice] ** POWER
            grown += ((down[:, choice] + into[:, choice]) ** POWER - down[:, choice] ** POWER).sum(axis=0)
            # Rounding must move nothing: the core switch of now stays unless another is really better.
            grown[choice == here] *= 1 - 1e-9
            there = choice[int(np.argmin(grown))]
            up[edge, there] += out[there]
            down[:, there] += into[:, there]
            homes[traffic][edge, path_index] = there
        if all((before[traffic] == homes[traffic]).all() for traffic in homes):
            break
    return homes


def _heaviest(
    sent: dict[TrafficClass, Loads], homes: dict[TrafficClass, Homes]
) -> list[tuple[TrafficClass, int, int]]:
    """(class, edge switch, path index) of the bundles to place, the heaviest first."""
    found: list[tuple[float, TrafficClass, int, int]] = []
    for traffic in homes:
        weights = sent[traffic].sum(axis=2)
        order = np.argsort(-weights, axis=None, kind="stable")[:MOST_BUNDLES]
        for edge, path_index in zip(*np.unravel_index(order, weights.shape), strict=True):
            if weights[edge, path_index] > 0:
                found.append((float(weights[edge, path_index]), traffic, int(edge), int(path_index)))
    found.sort(key=lambda bundle: -bundle[0])
    return [(traffic, edge, path_index) for _, traffic, edge, path_index in found]


def _loads(
    sent: dict[TrafficClass, Loads], homes: dict[TrafficClass, Homes], capacity: Loads
) -> tuple[Loads, Loads]:
    """[edge switch, core switch] -> load / capacity, up and down."""
    up, down = np.zeros_like(capacity), np.zeros_like(capacity)
    for traffic, found in homes.items():
        leaving = sent[traffic].sum(axis=2)
        for core in range(capacity.shape[1]):
            here = found == core
            up[:, core] += (leaving * here).sum(axis=1)
            down[:, core] += (sent[traffic] * here[:, :, None]).sum(axis=(0, 1))
    return up / capacity, down / capacity


def _busiest(sent: dict[TrafficClass, Loads], homes: dict[TrafficClass, Homes], capacity: Loads) -> float:
    up, down = _loads(sent, homes, capacity)
    return max(float(up.max(initial=0.0)), float(down.max(initial=0.0)))
