"""Which tree a class's path indexes take from each edge switch.

Arrives: the full topology, the same without what is down, a plan.
Leaves: by edge switch and path index, the uplink, its backup and the exceptions.
Must not know: rules, groups, the addresses of hosts.
"""

from __future__ import annotations

import functools
from collections import Counter

from waystage import spread
from waystage.events import PathPlan, TrafficClass
from waystage.interconnect.steering import Choices, PathChoice, Uplink
from waystage.interconnect.trees import Forest, forest
from waystage.topology import Topology


def usable_cores(
    topology: Topology, live: Topology, plan: PathPlan, traffic: TrafficClass
) -> tuple[str, ...]:
    """The core switches of the class that have a tree; all that have one if none of the class does."""
    rooted = forest(topology, live).trees
    wanted = set(plan.cores.get(traffic, ()))
    mine = tuple(core for core in topology.core_switches if core in rooted and core in wanted)
    return mine or tuple(core for core in topology.core_switches if core in rooted)


def choices_of(
    topology: Topology, live: Topology, plan: PathPlan, traffic: TrafficClass
) -> dict[str, dict[int, PathChoice]]:
    """edge switch -> path index -> choice, for a class under a plan."""
    return path_choices(topology, live, *wanted_of(topology, live, plan, traffic))


def wanted_of(
    topology: Topology, live: Topology, plan: PathPlan, traffic: TrafficClass
) -> tuple[tuple[str, ...], tuple[tuple[str, tuple[str, ...]], ...]]:
    """All of a plan that a class's choices depend on: its usable core switches, and its placed path indexes."""
    return usable_cores(topology, live, plan, traffic), tuple(sorted(plan.placed.get(traffic, {}).items()))


def primitive_choices(topology: Topology, live: Topology, plan: PathPlan) -> dict[str, Choices]:
    """primitive -> edge switch -> path index -> choice, for those that have a core switch with a tree."""
    rooted = forest(topology, live).trees
    found: dict[str, Choices] = {}
    for primitive, wanted in sorted(plan.primitives.items()):
        usable = tuple(core for core in topology.core_switches if core in rooted and core in wanted)
        if usable:
            found[primitive] = path_choices(topology, live, usable)
    return found


@functools.lru_cache(maxsize=128)
def path_choices(
    topology: Topology,
    live: Topology,
    usable: tuple[str, ...],
    placed: tuple[tuple[str, tuple[str, ...]], ...] = (),
) -> dict[str, dict[int, PathChoice]]:
    """The same for a class that may use the core switches `usable`, with path indexes placed by edge switch."""
    woods = forest(topology, live)
    dealt = spread.cores_of_paths(topology.core_switches, usable)
    rows = dict(placed)
    found: dict[str, dict[int, PathChoice]] = {}
    for edge in topology.edge_switches:
        found[edge] = {}
        if woods.fewest.get(edge):
            wanted = rows.get(edge, ())
            for path_index, home in enumerate(dealt):
                asked = (
                    wanted[path_index] if path_index < len(wanted) and wanted[path_index] in usable else home
                )
                found[edge][path_index] = _choose(topology, woods, edge, path_index, asked, usable)
    return found


def _choose(
    topology: Topology, woods: Forest, edge: str, path_index: int, home: str, usable: tuple[str, ...]
) -> PathChoice:
    """The path index's own tree if it is shortest; else another of the class, else any shortest tree."""
    tree = woods.trees.get(home)
    if tree is not None and edge in tree.up and not tree.down[edge] and not woods.detours(home, edge):
        default = Uplink(home, tree.up[edge][1])
        return PathChoice(default, _backup(topology, woods, edge, path_index, default))
    order = [root for root in (home, *_rotated(usable, path_index)) if root in woods.trees]
    order += _rotated(tuple(woods.trees), path_index)
    chosen: dict[str, Uplink] = {}
    for dst, fewest in woods.fewest[edge].items():
        root = next(r for r in order if woods.trees[r].hops.get(edge, {}).get(dst) == fewest)
        chosen[dst] = Uplink(root, woods.trees[root].port(edge, dst))
    counted = Counter(chosen.values())
    default = max(
        counted, key=lambda uplink: (counted[uplink], uplink.root == home, uplink.root, uplink.port)
    )
    exceptions = {dst: uplink for dst, uplink in chosen.items() if uplink != default}
    return PathChoice(default, _backup(topology, woods, edge, path_index, default), exceptions)


def _backup(topology: Topology, woods: Forest, edge: str, path_index: int, default: Uplink) -> Uplink | None:
    """A tree through another port, of any class, for the time between the failure of the port and the next plan."""
    for root in _rotated(topology.core_switches, path_index + 1):
        tree = woods.trees.get(root)
        if tree is not None and edge in tree.up and tree.up[edge][1] != default.port:
            return Uplink(root, tree.up[edge][1])
    return None


def _rotated(items: tuple[str, ...], by: int) -> tuple[str, ...]:
    cut = by % max(1, len(items))
    return (*items[cut:], *items[:cut])
