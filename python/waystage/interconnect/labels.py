"""Positional labels: a host's place in the topology as a MAC address.

Arrives: a topology and a host, or a 48-bit label.
Leaves: the label, its parts, and the prefix of an edge switch.
Must not know: rules, sockets, true MAC addresses.

The controller answers ARP requests with the destination's label, which packets then carry as their destination
address. A switch needs one rule per edge switch instead of one per host (PortLand, SIGCOMM'09). The last switch
restores the true address. The label, most significant byte first:

    02:57  locally administered, Waystage's
    EE:EE  the edge switch: its index in `topology.edge_switches`
    PP     the host's position among that switch's hosts, in port order
    RL     bit 7 the storage role, bits 6..0 the host key (see `spread.py`)
"""

from __future__ import annotations

import functools

import msgspec

from waystage import spread
from waystage.topology import Topology, TopologyError

PREFIX = 0x0257 << 32
PREFIX_MASK = 0xFFFF << 32
EDGE_MASK = PREFIX_MASK | 0xFFFF << 16
STORAGE_BIT = 0x80
HOST_KEY_BITS = 0x7F
HOSTS_PER_EDGE = 256
EDGES = 65536


class Label(msgspec.Struct, frozen=True):
    """A parsed label."""

    edge_index: int
    position: int
    storage: bool
    host_key: int

    @property
    def value(self) -> int:
        role = STORAGE_BIT if self.storage else 0
        return PREFIX | self.edge_index << 16 | self.position << 8 | role | self.host_key


def path_count(topology: Topology) -> int:
    """Number of path indexes of the topology."""
    return spread.path_count(len(topology.core_switches))


def label_of(topology: Topology, host: str) -> int:
    """The host's label as a 48-bit integer. Raises TopologyError if it does not fit."""
    edge = topology.attachment[host][0]
    position = topology.hosts_at[edge].index(host)
    edge_index = edge_indexes(topology)[edge]
    if position >= HOSTS_PER_EDGE or edge_index >= EDGES:
        raise TopologyError(
            f"host {host} is number {position} on switch {edge}, edge switch {edge_index}: labels have room for "
            f"{HOSTS_PER_EDGE} hosts a switch and {EDGES} edge switches"
        )
    storage = topology.host_by_name[host].role == "storage"
    return Label(edge_index, position, storage, spread.host_key(topology, host)).value


def edge_prefix(topology: Topology, switch: str) -> tuple[int, int]:
    """Value and mask that match every label of hosts on `switch`."""
    return PREFIX | edge_indexes(topology)[switch] << 16, EDGE_MASK


def edge_indexes(topology: Topology) -> dict[str, int]:
    """edge switch -> its index in sorted order."""
    return {switch: index for index, switch in enumerate(topology.edge_switches)}


def parse(label: int) -> Label | None:
    """The parts of a label; None for other addresses."""
    if not 0 <= label < 1 << 48 or label & PREFIX_MASK != PREFIX:
        return None
    return Label(label >> 16 & 0xFFFF, label >> 8 & 0xFF, bool(label & STORAGE_BIT), label & HOST_KEY_BITS)


def format_mac(value: int) -> str:
    """`02:57:00:01:00:8c` for a 48-bit integer."""
    return ":".join(f"{value >> shift & 0xFF:02x}" for shift in range(40, -1, -8))


@functools.lru_cache(maxsize=1 << 16)
def parse_mac(text: str) -> int:
    """The inverse of format_mac. Raises ValueError."""
    parts = text.split(":")
    if len(parts) != 6 or not all(1 <= len(part) <= 2 for part in parts):
        raise ValueError(f"{text!r} is not a MAC address: write six bytes as 02:00:00:00:00:01")
    value = 0
    for part in parts:
        value = value << 8 | int(part, 16)
    return value
