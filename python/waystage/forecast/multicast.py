"""How loaded the links of a multicast tree would be.

Arrives: the state; the hosts of a tree, the existing trees.
Leaves: the core switch whose tree has the least loaded busiest link.
Must not know: policies, programs, rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from waystage.events import MulticastTree
from waystage.interconnect.multicast import branches
from waystage.interconnect.trees import forest
from waystage.state import State

SHARE = 0.5
"""Of a link's rate that another tree is taken to use."""


class Choice:
    """The state's topology must be known."""

    def __init__(self, state: State) -> None:
        topology, live = state.topology, state.live_topology
        assert topology is not None and live is not None
        self._topology = topology
        self._trees = forest(topology, live).trees
        self._rates = state.port_rate_bps
        self._no_copies = state.mpi.no_copies
        self._capacity = {(link.a, link.a_port): link.capacity_bps for link in live.links}
        self._capacity |= {(link.b, link.b_port): link.capacity_bps for link in live.links}

    def reaches(self, core: str, hosts: Iterable[str]) -> bool:
        """Whether the tree of this core switch reaches them all now, over switches that can copy."""
        tree = self._trees.get(core)
        if tree is None or not self._edges(hosts) <= tree.edges:
            return False
        return not (self._no_copies and self._no_copies & set(branches(tree, self._edges(hosts))))

    def least_loaded(self, hosts: Iterable[str], others: Iterable[MulticastTree]) -> str | None:
        """None where no tree reaches all hosts. Of equal ones the tree with the fewest links, then the first one."""
        hosts = tuple(hosts)
        taken = Counter(
            port
            for other in others
            if self.reaches(other.core, other.hosts)
            for port in self._ports(other.core, other.hosts)
        )

        def load(core: str) -> tuple[float, int]:
            ports = self._ports(core, hosts)
            return round(
                max((self._load(port) + SHARE * taken[port] for port in ports), default=0.0), 2
            ), len(ports)

        return min((core for core in self._trees if self.reaches(core, hosts)), key=load, default=None)

    def _edges(self, hosts: Iterable[str]) -> set[str]:
        at = self._topology.attachment
        return {at[host][0] for host in hosts if host in at}

    def _ports(self, core: str, hosts: Iterable[str]) -> list[tuple[str, int]]:
        found = branches(self._trees[core], self._edges(hosts))
        return [(switch, port) for switch, ports in found.items() for port in ports]

    def _load(self, port: tuple[str, int]) -> float:
        return self._rates.get(port[0], {}).get(port[1], 0.0) / max(1, self._capacity.get(port, 1))
