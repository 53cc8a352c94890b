"""The machine that is simulated: hosts with slots, switches, directed links.

Arrives: a validated topology, or the columns of a generated one.
Leaves: `Cluster`, which algorithms look at, with its compiled network.
Must not know: jobs, traffic, where a topology came from.

Nodes are numbered hosts first, then switches. Each cable is two directed links: 2i as the topology lists it, 2i + 1
back. Hosts are in the order of their file, because D-mod-K and "next to one another" depend on it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from waystage import _native
from waystage.topology import Topology

U32 = NDArray[np.uint32]
F64 = NDArray[np.float64]

BITS_PER_BYTE = 8


@dataclass(frozen=True, eq=False)
class Cluster:
    """`slots[h]` processes run on host h at once. `capacity` is in bytes a second, for each directed link."""

    name: str
    hosts: tuple[str, ...]
    switches: tuple[str, ...]
    slots: tuple[int, ...]
    storage: tuple[int, ...]
    links_from: U32
    links_to: U32
    capacity: F64
    _distances: dict[int, NDArray[np.int32]] = field(default_factory=dict, repr=False)

    @cached_property
    def compute(self) -> tuple[int, ...]:
        """Hosts that run jobs."""
        storage = set(self.storage)
        return tuple(h for h in range(len(self.hosts)) if h not in storage)

    @cached_property
    def total_slots(self) -> int:
        return sum(self.slots[h] for h in self.compute)

    @cached_property
    def slots_array(self) -> NDArray[np.int64]:
        """`slots` to reckon with."""
        return np.array(self.slots, dtype=np.int64)

    @cached_property
    def edge_of(self) -> tuple[int, ...]:
        """The switch of each host, as a node number."""
        edge = [0] * len(self.hosts)
        for a, b in zip(self.links_from[::2].tolist(), self.links_to[::2].tolist(), strict=True):
            if a < len(self.hosts):
                edge[a] = b
            if b < len(self.hosts):
                edge[b] = a
        return tuple(edge)

    @cached_property
    def between_switches(self) -> NDArray[np.bool_]:
        """Which links join two switches: PFSim counts only these."""
        hosts = len(self.hosts)
        joins: NDArray[np.bool_] = (self.links_from >= hosts) & (self.links_to >= hosts)
        return joins

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Of every node."""
        return self.hosts + self.switches

    @cached_property
    def link_names(self) -> tuple[str, ...]:
        """`from->to` of every directed link."""
        names = self.names
        ends = zip(self.links_from.tolist(), self.links_to.tolist(), strict=True)
        return tuple(f"{names[a]}->{names[b]}" for a, b in ends)

    @cached_property
    def digest(self) -> str:
        """The same for the same cluster under any file name."""
        digest = hashlib.sha256(repr((self.hosts, self.switches, self.slots, self.storage)).encode())
        for column in (self.links_from, self.links_to, self.capacity):
            digest.update(column.tobytes())
        return digest.hexdigest()

    @cached_property
    def network(self) -> _native.Network:
        return _native.Network(
            len(self.hosts),
            len(self.switches),
            self.links_from,
            self.links_to,
            self.capacity,
            list(self.names),
        )

    def switch_distances(self, switch: int) -> NDArray[np.int32]:
        """Hops from `switch` to every node by way of switches; -1 where there is no way."""
        if switch not in self._distances:
            self._distances[switch] = self._search(switch)
        return self._distances[switch]

    def _search(self, start: int) -> NDArray[np.int32]:
        found = np.full(len(self.names), -1, dtype=np.int32)
        found[start] = 0
        front, hops = np.array([start], dtype=np.int64), 0
        offsets, neighbours = self._neighbours
        while front.size:
            hops += 1
            lists = [neighbours[offsets[n] : offsets[n + 1]] for n in front.tolist()]
            reached = np.unique(np.concatenate(lists))
            reached = reached[found[reached] < 0]
            found[reached] = hops
            front = reached[reached >= len(self.hosts)]
        return found

    @cached_property
    def _neighbours(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        order = np.argsort(self.links_from, kind="stable")
        counts = np.bincount(self.links_from, minlength=len(self.names))
        return np.concatenate(([0], np.cumsum(counts))), self.links_to[order].astype(np.int64)


def from_topology(topology: Topology, order: Sequence[str] = ()) -> Cluster:
    """The cluster of a validated topology; hosts come in `order` as far as it names them."""
    place = {name: i for i, name in enumerate(order)}
    last = len(place)
    hosts = sorted(topology.hosts, key=lambda host: place.get(host.name, last))
    switches = sorted(topology.switches, key=lambda switch: place.get(switch.name, last))
    names = [*(host.name for host in hosts), *(switch.name for switch in switches)]
    index = {name: i for i, name in enumerate(names)}
    ends = np.array([(index[link.a], index[link.b]) for link in topology.links], dtype=np.uint32)
    rates = np.array([link.capacity_bps / BITS_PER_BYTE for link in topology.links])
    return Cluster(
        name=topology.name,
        hosts=tuple(host.name for host in hosts),
        switches=tuple(switch.name for switch in switches),
        slots=tuple(host.slots for host in hosts),
        storage=tuple(i for i, host in enumerate(hosts) if host.role == "storage"),
        links_from=np.ascontiguousarray(ends.ravel()),
        links_to=np.ascontiguousarray(ends[:, ::-1].ravel()),
        capacity=np.repeat(rates, 2),
    )
