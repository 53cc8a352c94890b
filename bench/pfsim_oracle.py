"""Do our routers give PFSim's loads, digit by digit?

Two answers are compared with ours. The published one: the largest loads of NAS CG on 128 ranks under block and cyclic
mapping, D-mod-K and dynamic routing, from PFSim's own trace and topology, to nine digits. And a replay that works as
PFSim does, in plain Python: all shortest paths of every pair of hosts are listed and compared one by one. Other
traces and topologies of the same formats are given with --trace and --topology; then the replay alone is compared.

`max_rel_error` is the largest relative error against either. `details` has the largest load between two switches
for every mapping and router, in bytes, and relative to the first.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from waystage.bench import BenchError, BenchOptions
from waystage.experiment.problems import Problem
from waystage.experiment.schema import TopologyChoice
from waystage.interconnect.graphml import read_topology
from waystage.patterns import PatternError
from waystage.simulate.algorithms import build
from waystage.simulate.cluster import Cluster
from waystage.simulate.topologies import build as build_topology
from waystage.simulate.traffic import Pairs, Traffic, read_trace
from waystage.topology import Topology, TopologyError

INPUTS = ("trace", "topology")

DATA = Path(os.environ.get("WAYSTAGE_PFSIM_DATA", Path(__file__).parents[2] / "shared" / "data" / "pfsim"))
"""Where PFSim's own example is, milk.graphml and cg-c-128.tar.gz, unless others are named."""

MAPPERS = ("block", "cyclic")
ROUTERS = ("d-mod-k", "greedy-sum", "greedy-max")

PUBLISHED_BYTES = 5_928_262_656.0
"""The busiest link under block mapping and D-mod-K."""

PUBLISHED = {
    ("block", "d-mod-k"): 1.0,
    ("block", "greedy-max"): 0.500022154,
    ("cyclic", "d-mod-k"): 1.975045414,
    ("cyclic", "greedy-max"): 1.750011088,
}
"""Relative to the first: Takahashi, dissertation, Fig. 2.11, and PFSim's example run."""
TAKES_S = 60, 20


def run(options: BenchOptions) -> dict[str, Any]:
    trace, topology = inputs(options)
    cluster, graph, traffic = load(trace, topology)
    maxima: dict[tuple[str, str], float] = {}
    errors: dict[str, float] = {}
    combinations = [(mapper, router) for mapper in MAPPERS for router in ROUTERS]
    for done, (mapper, router) in enumerate(combinations):
        options.progress(f"{mapper} + {router}", done / len(combinations))
        pairs = placed(traffic, cluster, mapper)
        routes = cluster.network.route_loads(router, pairs.src, pairs.dst, pairs.amount)
        maxima[mapper, router] = cluster.network.max_load(routes.loads)
        again = replay(pairs, cluster, graph, router)
        errors[f"{mapper} + {router}, replayed"] = error(maxima[mapper, router], again)
    if not options.inputs:
        for key, ratio in PUBLISHED.items():
            published = ratio * PUBLISHED_BYTES
            errors[f"{' + '.join(key)}, published"] = error(maxima[key], published)
    first = next(iter(maxima.values()))
    shown = {f"{m} + {r}": value for (m, r), value in maxima.items()}
    return {
        "figures": {"max_rel_error": max(errors.values())},
        "peers": {f"published, {m} + {r}": ratio for (m, r), ratio in PUBLISHED.items()}
        if not options.inputs
        else {},
        "details": {
            **{f"{name}, bytes": int(value) for name, value in shown.items()},
            **{f"{name}, relative": f"{value / first:.9f}" for name, value in shown.items() if first},
            "errors": errors,
            "trace": trace.name,
            "topology": topology.name,
        },
    }


def inputs(options: BenchOptions) -> tuple[Path, Path]:
    """The trace and the topology. Raises BenchError where they are not there."""
    trace = options.inputs.get("trace", DATA / "cg-c-128.tar.gz")
    topology = options.inputs.get("topology", DATA / "milk.graphml")
    for path in (trace, topology):
        if not path.exists():
            raise BenchError(f"{path} is not there: set WAYSTAGE_PFSIM_DATA, or give --trace and --topology")
    return trace, topology


def load(trace: Path, topology: Path) -> tuple[Cluster, Topology, Traffic]:
    """Raises BenchError on files that cannot be read or do not fit each other."""
    try:
        graph = read_topology(topology)
        choice = TopologyChoice(kind="file", params={"path": str(topology.resolve())})
        cluster = build_topology(choice, Path())
        traffic = read_trace(trace)
    except (TopologyError, PatternError, Problem) as error:
        raise BenchError(str(error)) from error
    if traffic.ranks > cluster.total_slots:
        raise BenchError(f"{trace} has {traffic.ranks} ranks, {topology} runs {cluster.total_slots} at once")
    return cluster, graph, traffic


def placed(traffic: Traffic, cluster: Cluster, mapper: str) -> Pairs:
    """What each pair of ranks sends, by hosts, under linear selection: the first hosts that the ranks fill."""
    made = build("process_mapper", mapper, {}, 0)
    return on_hosts(traffic, made.map(traffic, linear(traffic.ranks, cluster), cluster))


def on_hosts(traffic: Traffic, mapping: Sequence[int]) -> Pairs:
    host_of = np.asarray(mapping, dtype=np.uint32)
    return Pairs(host_of[traffic.total.src], host_of[traffic.total.dst], traffic.total.amount)


def linear(ranks: int, cluster: Cluster) -> list[int]:
    hosts: list[int] = []
    for host in cluster.compute:
        if ranks <= 0:
            break
        hosts.append(host)
        ranks -= cluster.slots[host]
    return hosts


def error(ours: float, other: float) -> float:
    return abs(ours - other) / other if other else abs(ours)


# -- the replay: PFSim's way, path by path ---------------------------------------------------------------


def replay(pairs: Pairs, cluster: Cluster, graph: Topology, router: str) -> float:
    """The largest load between two switches. Nothing here is shared with the routers that are measured."""
    loads: dict[tuple[str, str], float] = {}
    sent: dict[tuple[int, int], float] = {}
    for src, dst, amount in zip(pairs.src.tolist(), pairs.dst.tolist(), pairs.amount.tolist(), strict=True):
        if src != dst:
            sent[src, dst] = sent.get((src, dst), 0.0) + amount
    for (src, dst), amount in sorted(sent.items(), key=lambda item: item[1], reverse=True):
        paths = graph.shortest_paths(cluster.hosts[src], cluster.hosts[dst])
        path = CHOICES[router](paths, dst, loads)
        for link in between_switches(path):
            loads[link] = loads.get(link, 0.0) + amount
    return max(loads.values(), default=0.0)


def between_switches(path: tuple[str, ...]) -> list[tuple[str, str]]:
    return list(itertools.pairwise(path[1:-1]))


Loads = dict[tuple[str, str], float]


def d_mod_k(paths: list[tuple[str, ...]], dst: int, loads: Loads) -> tuple[str, ...]:
    for hop in range(len(paths[0])):
        names = sorted({path[hop] for path in paths})
        paths = [path for path in paths if path[hop] == names[dst % len(names)]]
    return paths[0]


def least_sum(paths: list[tuple[str, ...]], dst: int, loads: Loads) -> tuple[str, ...]:
    return min(paths, key=lambda path: sum(loads.get(link, 0.0) for link in between_switches(path)))


def least_max(paths: list[tuple[str, ...]], dst: int, loads: Loads) -> tuple[str, ...]:
    return min(
        paths, key=lambda path: max((loads.get(link, 0.0) for link in between_switches(path)), default=0.0)
    )


CHOICES: dict[str, Callable[[list[tuple[str, ...]], int, Loads], tuple[str, ...]]] = {
    "d-mod-k": d_mod_k,
    "greedy-sum": least_sum,
    "greedy-max": least_max,
}
