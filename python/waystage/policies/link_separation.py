"""`link-separation`: staging and inter-node communication on core switches of their own while any staging runs.

Arrives: events and the state. Leaves: path plans. Must not know: rules, switches, worlds.

Follows Endo et al. 2020 section IV.C: the four requests of the notification processor (Fig. 8), the three steps of the
path searcher (core switch allocation, subnetwork formation, path search) and Algorithm 1. In style `per-pair` the paths
of running jobs are searched and listed as there. In style `labelled` the first two steps suffice: a plan
names each class's core switches and needs no path of any job.

Beyond the paper: a third class, I/O of computing jobs, has core switches of its own where there are three or
more, and otherwise shares those of staging. ON status holds while there is staging or I/O. A class of which there is
none is not restricted: that would cost messages and gain nothing.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Sequence

from waystage import spread
from waystage.events import (
    Action,
    AssignPaths,
    Event,
    IoFinished,
    IoStarted,
    JobFinished,
    JobStarted,
    PairPath,
    PathPlan,
    RuleStyle,
    StagingFinished,
    StagingStarted,
    TrafficClass,
)
from waystage.policies.ecmp import check_style
from waystage.policies.off_status import is_settled, live_cores, off_plan
from waystage.state import JobInfo, State
from waystage.topology import Link, Topology

Cores = dict[TrafficClass, tuple[str, ...]]


class Request(enum.Enum):
    """What Fig. 8 answers a notification with; `REPAIR` is ours, for a topology that changed."""

    ON_STATUS = enum.auto()
    OFF_STATUS = enum.auto()
    PATH_SEARCH = enum.auto()
    PATH_DELETION = enum.auto()
    REPAIR = enum.auto()


def request_of(event: Event, state: State, *, settled: bool) -> Request | None:
    """Fig. 8's flowchart. The event is in the state already; what was asked for last tells the status before it.

    `settled` is whether that request was made for the topology, style and seed of now.
    """
    on = bool(state.staging_jobs or state.io_jobs)
    was_on = state.requested is not None and state.requested.separated
    if on and not was_on:
        return Request.ON_STATUS
    if was_on and not on:
        return Request.OFF_STATUS
    if not settled:
        return Request.REPAIR
    if on and isinstance(event, JobStarted | StagingStarted | IoStarted):
        return Request.PATH_SEARCH
    if on and isinstance(event, JobFinished | StagingFinished | IoFinished):
        return Request.PATH_DELETION
    return None


class LinkSeparation:
    """`style` is how rules are written, `seed` selects the hash of OFF status."""

    name = "link-separation"

    def __init__(self, style: RuleStyle = "labelled", seed: int = 0) -> None:
        check_style(style)
        self.style: RuleStyle = style
        self.seed = seed

    def __call__(self, event: Event, state: State) -> Sequence[Action]:
        settled = is_settled(event, state, style=self.style, spread_by="pair", seed=self.seed)
        request = request_of(event, state, settled=settled)
        if request is None:
            return ()
        if request is Request.OFF_STATUS:
            plan = self._off(state)
        elif request is Request.ON_STATUS:
            plan = self._on(state, kept={})
        else:
            # Path search, path deletion and repair keep the allocation made when status turned ON.
            was_on = state.requested is not None and state.requested.separated
            kept = state.requested.cores if state.requested is not None else {}
            plan = self._on(state, kept=kept) if was_on else self._off(state)
        return () if plan is None or plan == state.requested else (AssignPaths(plan=plan),)

    def _off(self, state: State) -> PathPlan | None:
        return off_plan(state, style=self.style, spread_by="pair", seed=self.seed)

    def _on(self, state: State, kept: Cores) -> PathPlan | None:
        """The three steps. One core switch cannot be divided: then the plan of OFF status stays."""
        off = self._off(state)
        topology, live = state.topology, state.live_topology
        if off is None or topology is None or live is None:
            return None
        usable = live_cores(live, topology)
        if len(usable) < 2:
            return off
        cores = allocate(state, off, usable, kept)
        pairs: tuple[PairPath, ...] = ()
        if self.style == "per-pair":
            pairs = path_search(state, topology, live, cores, self.seed)
        return PathPlan(
            style=self.style,
            seed=self.seed,
            separated=True,
            cores=cores,
            base_pairs=off.base_pairs,
            pairs=pairs,
        )


# -- step 1: core switch allocation -------------------------------------------------------------------


def allocate(state: State, off: PathPlan, usable: tuple[str, ...], kept: Cores) -> Cores:
    """The busier half to inter-node communication, so that the switch-over moves as few of its paths as may be.

    `kept` is the allocation in force; inter-node communication keeps its core switches while they are up.
    """
    io_apart = bool(state.io_jobs and state.staging_jobs) and len(usable) >= 3
    others = max(2, len(usable) // 2) if io_apart else len(usable) // 2
    held = paths_held(state, off)
    mine = set(kept.get("mpi", ()))
    busiest = sorted(usable, key=lambda core: (core not in mine, -held[core], usable.index(core)))
    mpi = in_order(usable, busiest[: len(usable) - others])
    bulk = in_order(usable, busiest[len(usable) - others :])
    if io_apart:
        half = -(-len(bulk) // 2)
        return {"mpi": mpi, "staging": bulk[:half], "io": bulk[half:]}
    if state.io_jobs:
        return {"mpi": mpi, "staging": bulk, "io": bulk}
    return {"mpi": mpi, "staging": bulk}


def paths_held(state: State, off: PathPlan) -> Counter[str]:
    """core switch -> paths of OFF status over it: its flow entries in style `per-pair`, those
    of running jobs' node pairs in style `labelled`, whose rules do not tell."""
    topology = state.topology
    if topology is None:
        return Counter()
    cores = set(topology.core_switches)
    if off.style == "per-pair":
        return Counter(node for pair in off.base_pairs for node in pair.path if node in cores)
    live = state.live_topology or topology
    homes = spread.cores_of_slots(topology.core_switches, live_cores(live, topology))
    return Counter(
        homes[spread.slot(topology, src, dst, spread=off.spread, seed=off.seed)]
        for job in state.jobs.values()
        if job.running
        for src, dst in node_pairs(topology, job.nodes)
        if topology.attachment[src][0] != topology.attachment[dst][0]
    )


def in_order(ordered: Sequence[str], chosen: Iterable[str]) -> tuple[str, ...]:
    """`chosen` in the order of `ordered`."""
    wanted = set(chosen)
    return tuple(item for item in ordered if item in wanted)


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

    Of paths equally short Dijkstra takes the one over the core switch that the pair's slot has, so that a class
    with several core switches uses them all.
    """

    def __init__(self, topology: Topology, live: Topology, cores: tuple[str, ...], seed: int) -> None:
        self._topology, self._live, self._seed = topology, live, seed
        self._hosts = frozenset(topology.host_by_name)
        self._avoid = self._hosts | frozenset(topology.core_switches) - set(cores)
        self._homes = spread.cores_of_slots(topology.core_switches, cores)
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
        home = self._homes[spread.slot(self._topology, src, dst, spread="pair", seed=self._seed)]
        key = (*ends, home)
        if key not in self._found:
            others = set(self._topology.core_switches) - {home}

            def weight(link: Link, at: str) -> float:
                return 1.001 if link.other(at) in others else 1.0

            way = live.dijkstra(*ends, avoid=self._avoid - set(ends), weight=weight)
            self._found[key] = way or live.dijkstra(*ends, avoid=self._hosts) or ()
        way = self._found[key]
        return (src, *way, dst) if way else ()
