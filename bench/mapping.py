"""How much less the busiest link carries under our mappings and routers.

NAS CG on 128 ranks and PFSim's topology, hosts selected linearly as in the paper. `best_ratio` is the largest load of
the best mapping and router relative to block mapping under D-mod-K. `routing_gap_pct` is how far joint routing is
above the bound that even splitting every pair over all its paths cannot beat, the largest over mappings where one
path a pair allows to come within 0.1 % of it at all. Where it does not, the bound of undivided pairs is compared: the
most even division, onto an edge switch's two uplinks, of what its hosts send or receive.
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
"""The most sums of subsets; where there are more, the undivided bound is left out."""

MOST_WORK = 20_000_000
"""Sums that are sorted for one mapping, a second or two, shared out among the switches: a trace in which all ranks
speak with all has thousands of amounts, and sorting two million sums for each of them took hours.
"""

EVEN = 1e-5
"""A division this near to even is as good as an even one: the figures have four digits."""
TAKES_S = 30, 10


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
        step = f"{selection}, {mapper}"
        options.progress(f"{step}: mapping", done / len(cases))
        made = build("process_mapper", mapper, {}, 0)
        pairs = on_hosts(traffic, made.map(traffic, selections[selection], cluster))
        options.progress(f"{step}: routing", (done + 0.5) / len(cases))
        maxima[step] = route(cluster, pairs)
        options.progress(f"{step}: bounds", (done + 0.8) / len(cases))
        gaps[step] = gap(cluster, pairs, maxima[step]["joint"])
    base = maxima["linear, block"]["d-mod-k"]
    ratios = {case: {router: most / base for router, most in row.items()} for case, row in maxima.items()}
    in_reach = [g["to_splittable_pct"] for g in gaps.values() if g["undivided_by_splittable"] <= ALLOWED]
    selected = {case: row for case, row in ratios.items() if case.startswith("linear")}
    return {
        "figures": {
            "best_ratio": min(min(row.values()) for row in selected.values()),
            # A trace may have no mapping under which one path a pair allows to reach the bound.
            "routing_gap_pct": max(in_reach, default=max(g["to_undivided_pct"] for g in gaps.values())),
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
    """The least that one of two uplinks carries when no pair is split; 0 where switches do not have two uplinks."""
    sent: dict[tuple[int, int], float] = {}
    for src, dst, amount in zip(pairs.src.tolist(), pairs.dst.tolist(), pairs.amount.tolist(), strict=True):
        sent[src, dst] = sent.get((src, dst), 0.0) + amount
    ends = np.array(list(sent), dtype=np.int64).reshape(-1, 2)
    amounts = np.array(list(sent.values()), dtype=np.int64)
    edge = np.asarray(cluster.edge_of)
    between = cluster.between_switches
    uplinks = np.bincount(cluster.links_from[between], minlength=len(cluster.names))
    bound = 0.0
    switches = [switch for switch in sorted(set(edge.tolist())) if uplinks[switch] == 2]
    for switch in switches:
        outside = (edge[ends[:, 0]] == switch) != (edge[ends[:, 1]] == switch)
        for side in (0, 1):
            divided = amounts[outside & (edge[ends[:, side]] == switch)]
            bound = max(bound, most_even_half(divided, MOST_WORK // (2 * len(switches))))
    return bound


def most_even_half(amounts: np.ndarray[Any, np.dtype[np.int64]], most_work: int = MOST_WORK) -> float:
    """What the larger half has at least in the most even division in two.

    The answer itself by listing sums of subsets; half of all, which no division beats, where these are too many, or
    where a division is found that is as good as even.
    """
    total = int(amounts.sum())
    halves = [0, 0]
    for amount in sorted(amounts.tolist(), reverse=True):  # the next largest to the smaller half
        halves[halves[1] < halves[0]] += amount
    if max(halves) <= total / 2 * (1 + EVEN):
        return total / 2
    sums, work = np.zeros(1, dtype=np.int64), 0
    for amount in amounts:
        work += 2 * sums.size
        if work > most_work:
            return total / 2
        sums = np.unique(np.concatenate((sums, sums + amount)))
        # Of a subset and the rest one is at most half of all.
        sums = sums[sums <= total // 2]
        if sums.size > MOST_SUMS:
            return total / 2
    return float(total - sums.max())
