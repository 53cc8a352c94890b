"""The flow tables: their numbers, priorities and the bits of metadata between them.

Arrives: nothing.
Leaves: constants, and the few match fields that several tables share.
Must not know: topologies, plans.

A packet's way, style `labelled` (tagged on every cable between switches):

    host port:  PORTS -> CLASSIFY -> LOCAL -> (own host: out) SPREAD -> UP -> group: tag, out
    trunk port: PORTS -> ARRIVAL (own edge: untag -> LOCAL) -> TRANSIT -> out

and style `per-pair` (never tagged):

    any port:   PORTS -> MARKS -> PAIRS -> out

The two share only the host-port entries of PORTS, so that one entry a host moves it from one style to the other.
Where no entry matches, the packet is dropped.
"""

from __future__ import annotations

from waystage.events import CLASSES, TrafficClass
from waystage.interconnect.rules import Field, WriteMetadata

PORTS, CLASSIFY, ARRIVAL, LOCAL, SPREAD, UP, TRANSIT, MARKS, PAIRS = range(9)

ETH_LLDP = 0x88CC
ETH_ARP = 0x0806

# PORTS
PRIORITY_CONTROL = 1000
PRIORITY_HOST_PORT = 100
PRIORITY_TRUNK = 90
# CLASSIFY and MARKS
PRIORITY_TAG = 400
PRIORITY_DSCP = 300
PRIORITY_TCP = 200
PRIORITY_ENDPOINT = 100
# LOCAL, ARRIVAL, SPREAD, TRANSIT
PRIORITY_EXACT = 100
PRIORITY_OWN_EDGE = 50
PRIORITY_UP = 50
PRIORITY_STEERED = 150
PRIORITY_DEFAULT = 1
# UP
PRIORITY_PATH_GROUP = 100
PRIORITY_EXCEPTION = 200
PRIORITY_PRIMITIVE = 300
PRIORITY_PRIMITIVE_EXCEPTION = 400
# PAIRS (the paper's OFF entries, its ON entries, and ON entries of one class only)
PRIORITY_BASE_PAIR = 100
PRIORITY_CLASS_BASE_PAIR = 110
PRIORITY_PAIR = 200
PRIORITY_CLASS_PAIR = 210

# Metadata: bits 0..3 class, 4..7 row of the source, 8..15 path index.
CLASS_MASK = 0x000F
ROW_MASK = 0x00F0
PATH_MASK = 0xFF00
UNMARKED = 0xF
"""The class bits of a packet without a mark, style `per-pair`."""

UNTAGGED = Field("vlan_vid", 0)
TAGGED = Field("vlan_vid", -1)

GROUP_BASE = 0x57000000
"""Group ids are this plus 256 times the class's code point plus the path index."""

PRIMITIVE_BASE = 0x57080000
"""Groups of MPI primitives: this plus 256 times the primitive's code plus the path index."""

MULTICAST_BASE = 0x57100000
"""Groups of multicast trees: this plus twice the tree's number, and one more for packets from hosts of the switch."""

PRIORITY_MULTICAST = 300
"""In LOCAL, ARRIVAL and TRANSIT."""


def class_code(traffic: TrafficClass) -> int:
    """The code point of a class: its place in CLASSES, its VLAN priority, its metadata bits."""
    return CLASSES.index(traffic)


def class_is(code: int) -> Field:
    return Field("metadata", code, CLASS_MASK)


def write_class(code: int) -> WriteMetadata:
    return WriteMetadata(code, CLASS_MASK)


def group_id(code: int, path_index: int) -> int:
    return GROUP_BASE | code << 8 | path_index


def primitive_group_id(code: int, path_index: int) -> int:
    return PRIMITIVE_BASE | code << 8 | path_index
