"""Match fields of OpenFlow, as TLVs (OpenFlow 1.3.5, section 7.2.3.2).

Arrives: bytes that hold a match, with the bounds they must stay in.
Leaves: fields as the planner knows them, or `MessageError`.
Must not know: os_ken, sockets, what a rule does.
"""

from __future__ import annotations

import operator
import struct
from typing import Any, cast

from waystage.interconnect.openflow_errors import MessageError
from waystage.interconnect.rules import Field, MatchField

MATCH_HEADER = struct.Struct("!HH")
"""type, length without padding."""

VID_PRESENT = 0x1000  # OFPVID_PRESENT
FOREIGN = "match "
"""Begins the name of the one field that stands for a match of fields Waystage never uses: its bytes in hexadecimal
follow."""

MAX_MATCH = 2048
"""Bytes of a match: all fields of 1.5 with masks, and Open vSwitch's registers, take about 1,400."""

_STANDARD = 1  # OFPMT_OXM
_BASIC = 0x8000  # OFPXMC_OPENFLOW_BASIC
_FIELDS: dict[str, tuple[int, int]] = {
    "in_port": (0, 4),
    "metadata": (2, 8),
    "eth_dst": (3, 6),
    "eth_src": (4, 6),
    "eth_type": (5, 2),
    "vlan_vid": (6, 2),
    "vlan_pcp": (7, 1),
    "ip_dscp": (8, 1),
    "ip_proto": (10, 1),
    "tcp_src": (13, 2),
    "tcp_dst": (14, 2),
    "udp_src": (15, 2),
    "udp_dst": (16, 2),
}
"""Name -> number and bytes (table 12 of 1.3.5)."""

_KNOWN = {
    _BASIC << 16 | number << 9 | masked << 8 | size << masked: (name, size if masked else 0)
    for name, (number, size) in _FIELDS.items()
    for masked in (0, 1)
}
"""Header of a field -> its name, and where its mask begins."""

_NUMBERS = {_BASIC << 7 | number for number, _ in _FIELDS.values()}
_WORD = struct.Struct("!I")
_NAME = operator.attrgetter("name")
_IN_PORT = _BASIC << 16 | 4


def match_end(data: bytes, at: int, limit: int) -> tuple[int, int]:
    """Where the fields of the match at `at` end, and where it ends with its padding; both within `limit`."""
    if at + MATCH_HEADER.size > limit:
        raise MessageError("a match is cut short")
    kind, length = MATCH_HEADER.unpack_from(data, at)
    end = at + ((length + 7) & ~7)
    if kind != _STANDARD or length < MATCH_HEADER.size or length > MAX_MATCH or end > limit:
        raise MessageError(f"a match of type {kind} says it has {length} bytes")
    return at + length, end


def in_port(data: bytes, at: int, end: int) -> int | None:
    """The port among the fields from `at` to `end`; all of them are checked."""
    found = None
    while at < end:
        header, at, after = oxm(data, at, end)
        if header == _IN_PORT:
            found = int.from_bytes(data[at:after], "big")
        at = after
    return found


def decode_fields(data: bytes, at: int, end: int) -> tuple[Field, ...]:
    """The fields from `at` to `end`, sorted by name.

    Where Waystage would never use one of them, one field that is `FOREIGN` stands for all: it equals no
    rule that is wanted, and `foreign_bytes` gives the match back so that the rule can be deleted.
    """
    found: list[Field] = []
    begin, foreign, last = at, False, end - 4
    names: set[Any] = set()
    while at < end:
        # As `oxm`, written out: a message may hold thousands of fields.
        if at > last:
            raise MessageError("a match field is cut short")
        (header,) = _WORD.unpack_from(data, at)
        at += 4
        after = at + (header & 0xFF)
        known = _KNOWN.get(header)
        if after > end or known is None:
            _check(header, after > end)
            name, split = header >> 9, 0
            foreign = True
        else:
            name, split = known
        if name in names:
            raise MessageError("a match has one field twice")
        names.add(name)
        if not foreign:
            if split:
                value = int.from_bytes(data[at : at + split], "big")
                mask: int | None = int.from_bytes(data[at + split : after], "big")
            else:
                value, mask = int.from_bytes(data[at:after], "big"), None
            if name == "vlan_vid":
                if mask is None:
                    value &= ~VID_PRESENT
                elif value == mask == VID_PRESENT:
                    value, mask = -1, None
                else:
                    foreign = True
            found.append(Field(name, value, mask))
        at = after
    if foreign:
        return (Field(cast(MatchField, FOREIGN + data[begin:end].hex()), 0),)
    if len(found) > 1:
        found.sort(key=_NAME)
    return tuple(found)


def foreign_bytes(match: tuple[Field, ...]) -> bytes | None:
    """The encoded match that `decode_fields` kept as foreign, padded; None for any other."""
    if len(match) != 1 or not match[0].name.startswith(FOREIGN):
        return None
    fields = bytes.fromhex(match[0].name[len(FOREIGN) :])
    encoded = MATCH_HEADER.pack(_STANDARD, MATCH_HEADER.size + len(fields)) + fields
    return encoded.ljust((len(encoded) + 7) & ~7, b"\0")


def oxm(data: bytes, at: int, end: int) -> tuple[int, int, int]:
    """Header of the field at `at`, and where its value begins and ends."""
    if at + 4 > end:
        raise MessageError("a match field is cut short")
    (header,) = _WORD.unpack_from(data, at)
    after = at + 4 + (header & 0xFF)
    if after > end or header not in _KNOWN:
        _check(header, after > end)
    return header, at + 4, after


def _check(header: int, too_long: bool) -> None:
    """Raises MessageError unless this is a complete field of a kind that is not known here."""
    length = header & 0xFF
    if too_long or length == 0:
        raise MessageError(f"a match field says it has {length} bytes")
    if header >> 9 in _NUMBERS:
        raise MessageError(f"match field {header >> 9 & 0x7F} has {length} bytes")
