"""The plan without separation, on which every shipped policy builds.

Arrives: the state, a rule style, how pairs are spread.
Leaves: a path plan in which every class may use every core switch.
Must not know: rules, switches, worlds.

In style `per-pair` it lists a path for every ordered pair of hosts, by the same path indexes as in style `labelled`, so
that the two styles differ in cost and not in paths.
"""

from __future__ import annotations

import functools
import zlib

from waystage import spread
from waystage.events import (
    Event,
    LinkDown,
    LinkUp,
    PairPath,
    PathPlan,
    RuleStyle,
    Spread,
    SwitchDown,
    SwitchUp,
    TopologyChanged,
)
from waystage.state import State
from waystage.topology import Topology

TOPOLOGY_EVENTS: tuple[type[Event], ...] = (TopologyChanged, LinkDown, LinkUp, SwitchDown, SwitchUp)


def off_plan(state: State, *, style: RuleStyle, spread_by: Spread, seed: int) -> PathPlan | None:
    """The plan of OFF status, or None before a topology is known."""
    live = state.live_topology
    if state.topology is None or live is None:
        return None
    base = base_pairs(state.topology, live, spread_by, seed) if style == "per-pair" else ()
    return PathPlan(style=style, spread=spread_by, seed=seed, base_pairs=base)


def is_settled(event: Event, state: State, *, style: RuleStyle, spread_by: Spread, seed: int) -> bool:
    """Whether the plan asked for last has this base already, so that its paths need not be compared."""
    plan = state.requested
    return (
        plan is not None
        and (plan.style, plan.spread, plan.seed) == (style, spread_by, seed)
        and not isinstance(event, TOPOLOGY_EVENTS)
    )


@functools.lru_cache(maxsize=4)
def base_pairs(topology: Topology, live: Topology, spread_by: Spread, seed: int) -> tuple[PairPath, ...]:
    """One shortest live path for every ordered pair of hosts that has any: over its path index's core switch where one
    crosses it, else the one its hash picks (RFC 2991 section 3, hash-threshold)."""
    choices: dict[tuple[str, str], list[tuple[str, ...]]] = {}
    found: list[PairPath] = []
    cores = spread.cores_of_paths(topology.core_switches, live_cores(live, topology))
    for source in topology.hosts:
        for target in topology.hosts:
            src, dst = source.name, target.name
            if src == dst or src not in live.attachment or dst not in live.attachment:
                continue
            ends = live.attachment[src][0], live.attachment[dst][0]
            if ends not in choices:
                choices[ends] = live.shortest_paths(*ends)
            core = cores[spread.path_index(topology, src, dst, spread=spread_by, seed=seed)]
            ways = [way for way in choices[ends] if core in way] or choices[ends]
            if ways:
                way = ways[zlib.crc32(f"{seed} {src} {dst}".encode()) % len(ways)]
                found.append(PairPath(path=(src, *way, dst)))
    return tuple(found)


def live_cores(live: Topology, topology: Topology) -> tuple[str, ...]:
    """Core switches that have a cable up, in order."""
    return tuple(core for core in topology.core_switches if live.adjacency[core])
