"""Spanning trees: one rooted at each core switch, and one for each part that failures cut off from all of them.

Arrives: the full topology, and the same without what is down.
Leaves: trees with their VLAN ids, and the way from one edge switch to another in each.
Must not know: rules, plans, classes.

A packet is bound to one tree where it enters, so it cannot loop, and it never sees two plans. A tree's id
follows from its content alone: an unchanged tree keeps its id across changes elsewhere and across
restarts, a changed one gets a new id, and every controller computes the same.
"""

from __future__ import annotations

import functools
import hashlib

import msgspec

from waystage.topology import Topology, natural_key

FIRST_VID, LAST_VID = 2, 4094
"""VLAN 1 is many switches' default and 4095 is reserved (IEEE 802.1Q table 9-2), so neither is used."""


class Tree(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A shortest-path tree from `root`, cut back to the edge switches it reaches.

    `up` gives each switch but the root its parent and the port to it, `down` each switch the port
    towards every edge switch below it, `depth` its hops from the root.
    """

    root: str
    up: dict[str, tuple[str, int]]
    down: dict[str, dict[str, int]]
    depth: dict[str, int]
    root_is_edge: bool = False
    vid: int = 0

    @functools.cached_property
    def edges(self) -> frozenset[str]:
        """The edge switches it reaches."""
        below = set(self.down[self.root])
        return frozenset(below | {self.root}) if self.root_is_edge else frozenset(below)

    def path(self, src: str, dst: str) -> tuple[str, ...]:
        """Switches from edge switch `src` to edge switch `dst`, both included; empty where it does not reach both."""
        if src not in self.edges or dst not in self.edges:
            return ()
        rising, falling = [src], [dst]
        while rising[-1] != falling[-1]:
            longer = rising if self.depth[rising[-1]] >= self.depth[falling[-1]] else falling
            longer.append(self.up[longer[-1]][0])
        return (*rising, *reversed(falling[:-1]))

    def port(self, switch: str, dst: str) -> int:
        """The port out of which `switch` sends towards edge switch `dst`."""
        below = self.down[switch].get(dst)
        return below if below is not None else self.up[switch][1]

    @functools.cached_property
    def hops(self) -> dict[str, dict[str, int]]:
        """`hops[a][b]`: cables between edge switches a and b. Computed from the trees' branches, not path by path."""
        found: dict[str, dict[str, int]] = {edge: {} for edge in self.edges}
        for switch, ports in self.down.items():
            here = self.depth[switch]
            branches: dict[int, list[str]] = {}
            for edge, port in ports.items():
                branches.setdefault(port, []).append(edge)
            if switch in self.edges:
                branches[0] = [switch]
            for port, ours in branches.items():
                for other, theirs in branches.items():
                    if port == other:
                        continue
                    for edge in ours:
                        up = self.depth[edge] - here
                        row = found[edge]
                        for far in theirs:
                            row[far] = up + self.depth[far] - here
        return found


class Forest(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Every tree of a live topology, by root; core switches that reach no edge switch have none.

    Edge switches that reach one another but no core switch get a separate tree, rooted at a switch of the highest
    level among them.
    """

    trees: dict[str, Tree]

    def ways(self, src: str, dst: str) -> int | None:
        """The fewest cables from edge `src` to edge `dst` over any tree, or None where none reaches both."""
        return self.fewest.get(src, {}).get(dst)

    @functools.cached_property
    def fewest(self) -> dict[str, dict[str, int]]:
        best: dict[str, dict[str, int]] = {}
        for tree in self.trees.values():
            for src, row in tree.hops.items():
                known = best.setdefault(src, {})
                for dst, hops in row.items():
                    if hops < known.get(dst, 1 << 30):
                        known[dst] = hops
        return best

    def detours(self, root: str, src: str) -> tuple[str, ...]:
        """Edge switches that the tree of `root` does not reach from `src` in the fewest hops."""
        row = self.trees[root].hops.get(src, {})
        best = self.fewest.get(src, {})
        if row == best:
            return ()
        return tuple(sorted(dst for dst, hops in best.items() if row.get(dst) != hops))


@functools.lru_cache(maxsize=32)
def forest(
    topology: Topology, live: Topology, first_vid: int = FIRST_VID, last_vid: int = LAST_VID
) -> Forest:
    """The trees over `live`; `topology` gives the core switches and the indexes that labels carry.

    Raises ValueError where there are more trees than ids.
    """
    grown = [tree for tree in (_grow(topology, live, root) for root in topology.core_switches) if tree.edges]
    served = frozenset[str]().union(*(tree.edges for tree in grown))
    for edge in topology.edge_switches:
        if edge not in served:
            reached = [s for s in live.distances(edge) if s in live.switch_by_name]
            root = min(reached, key=lambda name: (-topology.level[name], natural_key(name)))
            grown.append(_grow(topology, live, root))
            served |= grown[-1].edges
    space = last_vid - first_vid + 1
    if len(grown) > space:
        raise ValueError(f"{len(grown)} trees need as many VLAN ids; there are {space}")
    index = {edge: i for i, edge in enumerate(topology.edge_switches)}
    digests = sorted((_digest(tree, index), tree.root) for tree in grown)
    taken: dict[int, str] = {}
    for digest, root in digests:
        vid = first_vid + digest % space
        while vid in taken:
            vid = first_vid + (vid + 1 - first_vid) % space
        taken[vid] = root
    vids = {root: vid for vid, root in taken.items()}
    return Forest(trees={tree.root: msgspec.structs.replace(tree, vid=vids[tree.root]) for tree in grown})


def _grow(topology: Topology, live: Topology, root: str) -> Tree:
    edges = set(topology.edge_switches)
    depth = {root: 0}
    up: dict[str, tuple[str, int]] = {}
    level = [root]
    while level:
        offers: dict[str, list[str]] = {}
        for switch in level:
            for neighbour in live.neighbour_switches(switch):
                if neighbour not in depth:
                    offers.setdefault(neighbour, []).append(switch)
        for child, parents in offers.items():
            parent = max(parents, key=lambda name: _preference(root, child, name))
            up[child] = (parent, live.link_between(child, parent).port_at(child))
            depth[child] = depth[parent] + 1
        level = list(offers)
    down: dict[str, dict[str, int]] = {root: {}}
    for edge in sorted(edges & set(depth), key=topology.edge_switches.index):
        at = edge
        down.setdefault(edge, {})
        while at != root:
            parent = up[at][0]
            port = live.link_between(at, parent).port_at(parent)
            down.setdefault(parent, {})[edge] = port
            at = parent
    return Tree(
        root=root,
        up={switch: up[switch] for switch in sorted(down) if switch != root},
        down={switch: down[switch] for switch in sorted(down)},
        depth={switch: depth[switch] for switch in sorted(down)},
        root_is_edge=root in edges,
    )


def _preference(root: str, child: str, parent: str) -> bytes:
    """Ties between parents go to the highest hash, so that different trees use different parents, and one
    that fails or returns changes nothing for the others (rendezvous hashing)."""
    return hashlib.blake2b(f"{root}\0{child}\0{parent}".encode(), digest_size=8).digest()


def _digest(tree: Tree, edge_index: dict[str, int]) -> int:
    """64 bits of everything the tree's rules are made of."""
    content = [
        (switch, tree.up.get(switch, ("", 0))[1], sorted((edge_index[e], p) for e, p in ports.items()))
        for switch, ports in sorted(tree.down.items())
    ]
    data = msgspec.json.encode((tree.root, content))
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")
