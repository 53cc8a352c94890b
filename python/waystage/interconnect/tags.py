"""Tags: what an MPI message is, beside its destination's label, in the destination MAC address of its packets.

Arrives: a topology; primitive, ranks, communicator and job of a message; or a 48-bit address.
Leaves: the address, its parts, and values with masks that match some of them.
Must not know: rules, sockets, how packets get their tags (crates/tags), true MAC addresses.

A tag is 48 bits (UnisonFlow, IEEE Access 6, 2018, has the idea; its layout has no place for the destination):

    bits 47..43  the primitive: see `primitive_code`
    bits 42..40  110: a unicast, locally administered address that is no label (a label begins with 0x0257)
    bits 39..0   edge switch, position, job, communicator, source rank, destination rank, host key

Edge switch, position and host key are the label's, as wide as the topology needs; the others share the rest. So
switches forward by masks just as they forward by labels; the host key is where a label has it, and rules on it are the
same. A value that does not fit is written as all ones: see `Layout.fit`.
"""

from __future__ import annotations

import functools

import msgspec

from waystage import spread
from waystage.interconnect import labels
from waystage.interconnect.rules import Field
from waystage.patterns.kinds import KINDS
from waystage.topology import Topology

MARKER = 0b110
MARKER_SHIFT = 40
PRIMITIVE_SHIFT = 43
BELOW_PRIMITIVE = 40
"""Bits below the octet of primitive and marker."""

FEWEST_BITS = 12
"""Bits that must be left for job, communicator and ranks: three each."""

MOST_RANK_BITS = 12

_FIRST_COLLECTIVE = 16
_COLLECTIVES_FROM = 7
"""Kinds 0 to 6 and from 16 on (patterns/kinds.py) become codes 0 to 6 and from 7 on, which fit five bits."""


PRIMITIVES = tuple(kind.name for kind in KINDS[1:])
"""Names that tags distinguish."""


class Tag(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed tag. Ranks are those of MPI_COMM_WORLD, `communicator` is the library's number of it, `primitive` a
    kind's name."""

    primitive: str
    edge_index: int
    position: int
    job: int
    communicator: int
    source: int
    destination: int
    host_key: int


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """Widths of the fields below the primitive, in bits, most significant first; together 40."""

    edge: int
    position: int
    job: int
    communicator: int
    source: int
    destination: int
    host_key: int

    def shift(self, field: str) -> int:
        """Of the field's lowest bit."""
        below = self.__struct_fields__[self.__struct_fields__.index(field) + 1 :]
        return sum(getattr(self, name) for name in below)

    def fit(self, field: str, value: int) -> int:
        """`value`, or all ones for one that the field has no room for: such values look alike."""
        most = (1 << getattr(self, field)) - 1
        return value if 0 <= value < most else most

    def encode(self, tag: Tag) -> int:
        """The tag as a 48-bit integer."""
        value = primitive_code(tag.primitive) << PRIMITIVE_SHIFT | MARKER << MARKER_SHIFT
        # The whole of the destination's fields is used: `layout_of` makes them wide enough.
        value |= tag.edge_index << self.shift("edge") | tag.position << self.shift("position")
        value |= tag.host_key
        for field in ("job", "communicator", "source", "destination"):
            value |= self.fit(field, getattr(tag, field)) << self.shift(field)
        return value

    def decode(self, address: int) -> Tag | None:
        """The parts of a tag; None for other addresses."""
        if not is_tag(address):
            return None
        parts = [
            address >> self.shift(field) & (1 << getattr(self, field)) - 1 for field in self.__struct_fields__
        ]
        edge, position, job, communicator, source, destination, key = parts
        return Tag(
            primitive=primitive_name(address >> PRIMITIVE_SHIFT),
            edge_index=edge,
            position=position,
            host_key=key,
            job=job,
            communicator=communicator,
            source=source,
            destination=destination,
        )

    def of_host(self, topology: Topology, host: str) -> Field:
        """Matches every tag with this destination."""
        label = labels.parse(labels.label_of(topology, host))
        assert label is not None, "a label is a label"
        value = label.edge_index << self.shift("edge") | label.position << self.shift("position")
        return _matching(value, _ones(BELOW_PRIMITIVE) ^ _ones(self.shift("position")))

    def of_edge(self, topology: Topology, switch: str) -> Field:
        """Matches every tag whose destination is a host of this edge switch."""
        value = labels.edge_indexes(topology)[switch] << self.shift("edge")
        return _matching(value, _ones(BELOW_PRIMITIVE) ^ _ones(self.shift("edge")))


def is_tag(address: int) -> bool:
    return 0 <= address < 1 << 48 and address >> MARKER_SHIFT & 0b111 == MARKER


def any_tag() -> Field:
    """Matches every tag, under any layout."""
    return _matching(0, 0)


def primitive_code(name: str) -> int:
    """The code of a kind's name. Raises ValueError for an unknown one."""
    for kind in KINDS:
        if kind.name == name:
            collective = kind.number >= _FIRST_COLLECTIVE
            return kind.number - _FIRST_COLLECTIVE + _COLLECTIVES_FROM if collective else kind.number
    raise ValueError(
        f"{ascii(name)[:40]} is no primitive: write one of {', '.join(kind.name for kind in KINDS)}"
    )


def primitive_name(code: int) -> str:
    """The kind's name; `unsplit` for a code without one."""
    number = code - _COLLECTIVES_FROM + _FIRST_COLLECTIVE if code >= _COLLECTIVES_FROM else code
    return next((kind.name for kind in KINDS if kind.number == number), KINDS[0].name)


def primitive_field(name: str) -> Field:
    """Matches every tag of the primitive, under any layout. Raises ValueError."""
    value = primitive_code(name) << PRIMITIVE_SHIFT | MARKER << MARKER_SHIFT
    return Field("eth_dst", value, 0xFF << MARKER_SHIFT)


@functools.lru_cache(maxsize=8)
def layout_of(topology: Topology) -> Layout | None:
    """The layout of a topology, or None where it is so large that its labels leave too little."""
    hosts_per_edge = max((len(hosts) for hosts in topology.hosts_at.values()), default=1)
    edge = _width(len(topology.edge_switches))
    position = _width(hosts_per_edge)
    host_key = spread.key_mask(len(topology.core_switches)).bit_length()
    left = BELOW_PRIMITIVE - edge - position - host_key
    if left < FEWEST_BITS:
        return None
    rank = min(MOST_RANK_BITS, left * 5 // 16)
    communicator = (left - 2 * rank) // 2
    return Layout(
        edge=edge,
        position=position,
        job=left - 2 * rank - communicator,
        communicator=communicator,
        source=rank,
        destination=rank,
        host_key=host_key,
    )


def _matching(value: int, mask: int) -> Field:
    return Field("eth_dst", MARKER << MARKER_SHIFT | value, 0b111 << MARKER_SHIFT | mask)


def _ones(bits: int) -> int:
    return (1 << bits) - 1


def _width(values: int) -> int:
    """Bits for the numbers below `values`."""
    return max(1, (values - 1).bit_length())
