"""The paths of running jobs by core switch, and Algorithm 1, which lists them.

Arrives: the state, the core switches of each class. Leaves: counts of paths by core switch, listed paths.
Must not know: events, statuses, how core switches are divided.

Follows Endo et al. 2020 section IV.C.3: step 2, subnetwork formation, and step 3, path search.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence

from waystage import spread
from waystage.events import PairPath, PathPlan, Spread, TrafficClass
from waystage.policies.off_status import live_cores
from waystage.state import JobInfo, State
from waystage.topology import Link, Topology

Cores = dict[TrafficClass, tuple[str, ...]]

KEPT_JOBS, KEPT_MIXES = 4096, 4
"""Jobs, and sets of running jobs, whose paths are counted once: the next switch-over looks them up."""

# -- counting ------------------------------------------------------------------------------------------


def paths_held(state: State, off: PathPlan) -> Counter[str]:
    """core switch -> paths of OFF status over it: its flow entries in style `per-pair`, those
    of running jobs' node pairs in style `labelled`, whose rules do not tell."""
    topology = state.topology
    if topology is None:
        return Counter()
    if off.style == "per-pair":
        cores = set(topology.core_switches)
        return Counter(node for pair in off.base_pairs for node in pair.path if node in cores)
    live = state.live_topology or topology
    homes = spread.cores_of_paths(topology.core_switches, live_cores(live, topology))
    running = tuple([job.nodes for job in state.jobs.values() if job.running])
    held: Counter[str] = Counter()
    for path_index, count in pairs_by_path(topology, running, off.spread, off.seed).items():
        held[homes[path_index]] += count
    return held


@functools.lru_cache(maxsize=KEPT_MIXES)
def pairs_by_path(
    topology: Topology, jobs: tuple[tuple[str, ...], ...], spread_by: Spread, seed: int
) -> Counter[int]:
    """path index -> ordered pairs of nodes of one job, on different edge switches, over all `jobs`."""
    total: Counter[int] = Counter()
    for nodes in jobs:
        for path_index, count in _pairs_of_job(topology, nodes, spread_by, seed):
            total[path_index] += count
    return total


@functools.lru_cache(maxsize=KEPT_JOBS)
def _pairs_of_job(
    topology: Topology, nodes: tuple[str, ...], spread_by: Spread, seed: int
) -> tuple[tuple[int, int], ...]:
    """Counted by host keys, of which there are few, and not by pairs, of which a large job has millions."""
    everywhere: Counter[int] = Counter()
    by_edge: dict[str, Counter[int]] = {}
    for node in dict.fromkeys(nodes):
        if node in topology.host_by_name:
            host_key = spread.host_key(topology, node)
            everywhere[host_key] += 1
            by_edge.setdefault(topology.attachment[node][0], Counter())[host_key] += 1
    cores = len(topology.core_switches)
    found: Counter[int] = Counter()
    for host_keys, sign in ((everywhere, 1), *((host_keys, -1) for host_keys in by_edge.values())):
        for src, sources in host_keys.items():
            for dst, targets in host_keys.items():
                path_index = spread.path_index_of_keys(cores, src, dst, spread=spread_by, seed=seed)
                found[path_index] += sign * sources * targets
    return tuple(found.items())


# -- steps 2 and 3: subnetwork formation, path search --------------------------------------------------


def path_search(
    state: State, topology: Topology, live: Topology, cores: Cores, seed: int
) -> tuple[PairPath, ...]:
    """Algorithm 1 over every job that runs, stages or does I/O on known nodes; each path once."""
    io_cores = cores.get("io", cores["staging"])
    st_subnetwork = _Subnetwork(topology, live, cores["staging"], seed)
    io_subnetwork = _Subnetwork(topology, live, io_cores, seed)
    in_subnetwork = _Subnetwork(topology, live, cores["mpi"], seed)
    storage_nodes = topology.storage_hosts
    path_list: dict[PairPath, None] = {}
    for job in state.jobs.values():
        alloc_com_nodes = known_nodes(topology, job)
        for src in storage_nodes:  # lines 3 to 10
            for dst in alloc_com_nodes:
                st_subnetwork.add(path_list, src, dst, "staging")
                st_subnetwork.add(path_list, dst, src, "staging")
                if io_cores != cores["staging"]:
                    io_subnetwork.add(path_list, src, dst, "io")
                    io_subnetwork.add(path_list, dst, src, "io")
        for src, dst in node_pairs(topology, alloc_com_nodes):  # lines 12 to 20
            in_subnetwork.add(path_list, src, dst, "mpi")
    return tuple(path_list)


def known_nodes(topology: Topology, job: JobInfo) -> tuple[str, ...]:
    """The job's nodes that the topology has; storage hosts are no computing nodes."""
    computing = topology.host_by_name
    return tuple(node for node in job.nodes if node in computing and computing[node].role == "compute")


def node_pairs(topology: Topology, nodes: Sequence[str]) -> list[tuple[str, str]]:
    """Ordered pairs of different nodes that the topology has."""
    there = [node for node in dict.fromkeys(nodes) if node in topology.host_by_name]
    return [(src, dst) for src in there for dst in there if src != dst]


class _Subnetwork:
    """Step 2: the live topology without the core switches of other classes; `find` is Dijkstra in it.

    Of paths equally short Dijkstra takes the one over the core switch that the pair's path index has, so that a class
    with several core switches uses them all.
    """

    def __init__(self, topology: Topology, live: Topology, cores: tuple[str, ...], seed: int) -> None:
        self._topology, self._live, self._seed = topology, live, seed
        self._hosts = frozenset(topology.host_by_name)
        self._avoid = self._hosts | frozenset(topology.core_switches) - set(cores)
        self._homes = spread.cores_of_paths(topology.core_switches, cores)
        self._found: dict[tuple[str, str, str], tuple[str, ...]] = {}

    def add(self, path_list: dict[PairPath, None], src: str, dst: str, traffic: TrafficClass) -> None:
        path = self.find(src, dst)
        if path:
            path_list[PairPath(path=path, traffic=traffic)] = None

    def find(self, src: str, dst: str) -> tuple[str, ...]:
        """The path, outside the subnetwork where it has none; empty where there is none at all."""
        live = self._live
        if src not in live.attachment or dst not in live.attachment:
            return ()
        ends = live.attachment[src][0], live.attachment[dst][0]
        home = self._homes[spread.path_index(self._topology, src, dst, spread="pair", seed=self._seed)]
        key = (*ends, home)
        if key not in self._found:
            others = set(self._topology.core_switches) - {home}

            def weight(link: Link, at: str) -> float:
                return 1.001 if link.other(at) in others else 1.0

            way = live.dijkstra(*ends, avoid=self._avoid - set(ends), weight=weight)
            self._found[key] = way or live.dijkstra(*ends, avoid=self._hosts) or ()
        way = self._found[key]
        return (src, *way, dst) if way else ()
