"""LLDP frames (IEEE 802.1AB), sent out of switch ports and received.

Arrives: bytes of an Ethernet frame from anywhere; a switch port to announce.
Leaves: frames; the sender of a frame.
Must not know: topologies, switches, sockets, time.

Our frames carry a keyed digest over switch and port, so that a host cannot impersonate a switch. A host can replay a
received frame, which only reveals its own location; a fake cable takes two colluding hosts.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import struct
from collections.abc import Iterator

import msgspec

from waystage.topology import NAME_PATTERN

ETHERTYPE = 0x88CC
NEAREST_BRIDGE = bytes.fromhex("0180c200000e")  # 802.1AB table 7-1: never forwarded by a bridge
SENDER = bytes.fromhex("0257fffffffe")  # locally administered; no label has this edge index
TTL_S = 120
"""How long a host's LLDP daemon shows us after the last frame; ours counts silence by itself."""

_OUI = bytes.fromhex("025753")  # locally administered
_OUI_SUBTYPE = 1
_OWN = struct.Struct("!QI8s")
_END, _CHASSIS, _PORT, _TTL, _SYSTEM_NAME, _MANAGEMENT, _ORGANISATION = 0, 1, 2, 3, 5, 8, 127
_SUBTYPE_LOCAL, _ADDRESS_IPV4 = 7, 1
_SMALLEST_FRAME = 60


class Neighbour(msgspec.Struct, frozen=True, kw_only=True):
    """Who sent a frame. `switch` is (dpid, port) of an authentic frame of ours, else None.

    `name` and `ip` are what a host said of itself: its system name where that can be a node's name, and
    its first IPv4 management address. `mac` is the frame's source, which is the address of the sending
    port; a chassis address may be that of another port.
    """

    switch: tuple[int, int] | None = None
    name: str = ""
    mac: str = ""
    ip: str | None = None


def build(dpid: int, port: int, name: str, key: bytes) -> bytes:
    """The frame that announces a switch port."""
    own = _OWN.pack(dpid, port, _digest(dpid, port, key))
    body = b"".join(
        (
            _tlv(_CHASSIS, bytes([_SUBTYPE_LOCAL]) + f"{dpid:016x}".encode()),
            _tlv(_PORT, bytes([_SUBTYPE_LOCAL]) + str(port).encode()),
            _tlv(_TTL, TTL_S.to_bytes(2, "big")),
            _tlv(_SYSTEM_NAME, name.encode()[:255]),
            _tlv(_ORGANISATION, _OUI + bytes([_OUI_SUBTYPE]) + own),
            _tlv(_END, b""),
        )
    )
    frame = NEAREST_BRIDGE + SENDER + ETHERTYPE.to_bytes(2, "big") + body
    return frame.ljust(_SMALLEST_FRAME, b"\0")


def parse(frame: bytes, key: bytes) -> Neighbour | None:
    """The parsed frame; None if it is malformed or falsely claims to be ours."""
    if frame[12:14] != ETHERTYPE.to_bytes(2, "big"):
        return None
    entries = list(_entries(frame[14:]))
    if [kind for kind, _ in entries[:3]] != [_CHASSIS, _PORT, _TTL]:
        return None
    name, ip = "", None
    for kind, value in entries:
        if kind == _SYSTEM_NAME:
            name = _usable_name(value)
        elif kind == _MANAGEMENT and ip is None:
            ip = _management_ipv4(value)
        elif kind == _ORGANISATION and value[:3] == _OUI:
            if len(value) != 4 + _OWN.size:
                return None
            dpid, port, digest = _OWN.unpack(value[4:])
            if not hmac.compare_digest(digest, _digest(dpid, port, key)):
                return None
            return Neighbour(switch=(dpid, port))
    return Neighbour(name=name, mac=frame[6:12].hex(":"), ip=ip)


def _entries(body: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and value of each TLV; a truncated one ends the list."""
    at = 0
    while at + 2 <= len(body):
        head = int.from_bytes(body[at : at + 2], "big")
        kind, length = head >> 9, head & 0x1FF
        value = body[at + 2 : at + 2 + length]
        if kind == _END or len(value) < length:
            return
        yield kind, value
        at += 2 + length


def _tlv(kind: int, value: bytes) -> bytes:
    return (kind << 9 | len(value)).to_bytes(2, "big") + value


def _digest(dpid: int, port: int, key: bytes) -> bytes:
    return hashlib.blake2b(struct.pack("!QI", dpid, port), key=key, digest_size=8).digest()


def _usable_name(value: bytes) -> str:
    name = value.decode("ascii", "replace")
    return name if NAME_PATTERN.match(name) and name.isprintable() else ""


def _management_ipv4(value: bytes) -> str | None:
    if len(value) < 6 or value[0] != 5 or value[1] != _ADDRESS_IPV4:
        return None
    address = ipaddress.IPv4Address(value[2:6])
    return None if address.is_unspecified or address.is_loopback else str(address)
