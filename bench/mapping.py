"""How much less the busiest link carries under our mappings and routers.

NAS CG on 128 ranks and PFSim's topology, hosts selected linearly as in the paper. `best_ratio` is the largest load of the
best mapping and router relative to block mapping under D-mod-K. `routing_gap_pct` is how far joint routing is above
the bound that even splitting every pair over all its paths cannot beat, the largest over mappings where one
path a pair allows to come within 0.1 % of it at all. Where it does not, the bound of undivided pairs is compared:
the most even division, onto an edge switch's two uplinks, of what its hosts send or receive.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from pfsim_oracle import inputs, linear, load, on_hosts

from waystage.bench import BenchOptions
from waystage.simulate.algorithms import build
from waystage.simulate.cluster import Cluster
from waystage.simulate.traffic import Pairs

INPUTS = ("trace", "topology")

MAPPERS = ("block", "cyclic", "random", "application-aware")
ROUTERS = ("d-mod-k", "s-mod-k", "random", "ecmp", "greedy-sum", "greedy-max", "joint")

ALLOWED = 1.001
"""One path a pair allows to reach the bound where the most even division is this near."""

MOST_SUMS = 2_000_000
"""Sums of subsets that are looked at; where there are more, the undivided bound is left out."""


def run(options: BenchOptions) -> dict[str, Any]:
    cluster, _, traffic = load(*inputs(options))
    selections = {
        "linear": linear(traffic.ranks, cluster),
        "topology-aware": build("host_selector", "topology-aware", {}, 0).select(
            traffic.ranks, cluster.compute, cluster
        ),
    }
    maxima: dict[str, dict[str, float]] = {}
    gaps: dict[str, dict[str, float]] = {}
    cases = [(selection, mapper) for selection in selections for mapper in MAPPERS]
    for done, (selection, mapper) in enumerate(cases):
        options.progress(f"{selection}, {mapper}", done / len(cases))
        made = build("process_mapper", mapper, {}, 0)
        pairs = on_hosts(traffic, made.map(traffic, selections[selection], cluster))
        maxima[f"{selection}, {mapper}"] = route(cluster, pairs)
        gaps[f"{selection}, {mapper}"] = gap(cluster, pairs, maxima[f"{selection}, {mapper}"]["joint"])
    base = maxima["linear, block"]["d-mod-k"]
    ratios = {case: {router: most / base for router, most in row.items()} for case, row in maxima.items()}
    in_reach = [g["to_splittable_pct"] for g in gaps.values() if g["undivided_by_splittable"] <= ALLOWED]
    selected = {case: row for case, row in ratios.items() if case.startswith("linear")}
    return {
        "figures": {
            "best_ratio": min(min(row.values()) for row in selected.values()),
            "routing_gap_pct": max(in_reach),
        },
        "peers": {
            "block + dynamic (PFSim's greedy-max)": ratios["linear, block"]["greedy-max"],
            "block + d-mod-k": 1.0,
        },
        "details": {
            "best_ratio_any_selection": min(min(row.values()) for row in ratios.values()),
            "largest_gap_to_undivided_pct": max(g["to_undivided_pct"] for g in gaps.values()),
            "ratios": ratios,
            "gaps": gaps,
        },
    }


def route(cluster: Cluster, pairs: Pairs) -> dict[str, float]:
    """The largest load by router."""
    found = {}
    for router in ROUTERS:
        kernel = build("router", router, {}, 0).kernel
        routes = cluster.network.route_loads(kernel, pairs.src, pairs.dst, pairs.amount)
        found[router] = cluster.network.max_load(routes.loads)
    return found


def gap(cluster: Cluster, pairs: Pairs, reached: float) -> dict[str, float]:
    """How far the joint routing's maximum is from both bounds."""
    splittable, _, _ = cluster.network.splittable_bound(pairs.src, pairs.dst, pairs.amount)
    undivided = max(splittable, undivided_bound(cluster, pairs))
    return {
        "to_splittable_pct": 100 * (reached / splittable - 1) if splittable else 0.0,
        "to_undivided_pct": 100 * (reached / undivided - 1) if undivided else 0.0,
        "undivided_by_splittable": undivided / splittable if splittable else 1.0,
    }


def undivided_bound(cluster: Cluster, pairs: Pairs) -> float:
    """What one of two uplinks carries at least when no pair is split; 0 where switches have other numbers of uplinks."""
    sent: dict[tuple[int, int], float] = {}
    for src, dst, amount in zip(pairs.src.tolist(), pairs.dst.tolist(), pairs.amount.tolist(), strict=True):
        sent[src, dst] = sent.get((src, dst), 0.0) + amount
    ends = np.array(list(sent), dtype=np.int64).reshape(-1, 2)
    amounts = np.array(list(sent.values()), dtype=np.int64)
    edge = np.asarray(cluster.edge_of)
    between = cluster.between_switches
    uplinks = np.bincount(cluster.links_from[between], minlength=len(cluster.names))
    bound = 0.0
    for switch in sorted(set(edge.tolist())):
        if uplinks[switch] != 2:
            continue
        outside = (edge[ends[:, 0]] == switch) != (edge[ends[:, 1]] == switch)
        for side in (0, 1):
            bound = max(bound, most_even_half(amounts[outside & (edge[ends[:, side]] == switch)]))
    return bound


def most_even_half(amounts: np.ndarray[Any, np.dtype[np.int64]]) -> float:
    """The larger half of the most even division in two, by listing all sums of subsets; 0 where they are too many."""
    sums = np.zeros(1, dtype=np.int64)
    for amount in amounts:
        sums = np.unique(np.concatenate((sums, sums + amount)))
        if sums.size > MOST_SUMS:
            return 0.0
    return float(np.maximum(sums, amounts.sum() - sums).min())
