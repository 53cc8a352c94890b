"""What a switch sends, taken apart: framing, hello, features, ports, packets, errors.

Arrives: bytes from a switch that may be no switch.
Leaves: values, or `MessageError` where a length or a number makes no sense.
Must not know: os_ken, sockets, threads, what a rule is.

Every length is checked against the bytes that are there before anything is read by it, and every loop moves
forward by at least one entry's smallest size. Kinds of messages that the controller has no use for are in no table
here: they are skipped unread. Section numbers are those of OpenFlow 1.3.5; 1.4 differs where it says so.
"""

from __future__ import annotations

import struct
from typing import Any

import msgspec

from waystage.interconnect.openflow_errors import MessageError
from waystage.interconnect.openflow_match import MATCH_HEADER, in_port, match_end

V13, V14 = 4, 5
VERSIONS: tuple[int, ...] = (V13, V14)
"""OpenFlow 1.3 and 1.4. 1.5 brings nothing used here, and every 1.5 switch known speaks 1.4 too."""

HEADER = struct.Struct("!BBHI")
"""version, type, length, transaction id (A.1)."""

MULTIPART_HEADER = struct.Struct("!HH4x")
"""type, flags (A.3.5)."""

HELLO, ERROR, ECHO_REQUEST, ECHO_REPLY = 0, 1, 2, 3
FEATURES_REQUEST, FEATURES_REPLY, SET_CONFIG = 5, 6, 9
PACKET_IN, PORT_STATUS, MULTIPART_REPLY, BARRIER_REPLY = 10, 12, 19, 21
PORT_DESC = 13  # a type of multipart message
MORE = 1  # OFPMPF_REPLY_MORE

MAX_PORT = 0xFF00  # OFPP_MAX: above it are the reserved ports
MAX_PORTS = 4096
"""Ports believed of one switch: four times what the largest chassis has."""

_HELLO_ELEMENT = struct.Struct("!HH")
_VERSION_BITMAP = 1  # OFPHET_VERSIONBITMAP
_FEATURES = struct.Struct("!QIBB2xI4x")
_PORT_13 = struct.Struct("!I4x6s2x16sII16xI4x")
_PORT_14 = struct.Struct("!IH2x6s2x16sII")
_PROPERTY = struct.Struct("!HH")
_ETHERNET_PROPERTY, _ETHERNET_SPEED = 0, struct.Struct("!20xI")  # OFPPDPT_ETHERNET: curr_speed
_PORT_STATUS = struct.Struct("!B7x")
_PORT_DELETED = 1  # OFPPR_DELETE
_PACKET_IN = struct.Struct("!IHBBQ")
_DOWN = 1  # OFPPC_PORT_DOWN in the configuration, OFPPS_LINK_DOWN in the state


class PortState(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A switch port: `up` where it is enabled and has carrier; `speed_bps` as the switch reports it."""

    up: bool
    name: str = ""
    mac: str = ""
    speed_bps: int = 0


class Features(msgspec.Struct, frozen=True, kw_only=True):
    """Who the switch says it is; `auxiliary` is 0 for its main connection."""

    dpid: int
    auxiliary: int


class PacketIn(msgspec.Struct, frozen=True, kw_only=True):
    """A packet that came in by `port`."""

    port: int | None
    data: bytes


def common_version(version: int, body: bytes) -> int | None:
    """The version to speak after a hello (7.5.1, section 6.3.1), or None where there is none.

    The body of a hello below 1.3 has no meaning and is left unread.
    """
    offered = _bitmap(body) if version >= V13 else None
    if offered is None:
        highest = min(version, max(VERSIONS))
        return highest if highest in VERSIONS else None
    return max((v for v in VERSIONS if offered >> v & 1), default=None)


def _bitmap(body: bytes) -> int | None:
    """The first word of the version bitmap; None where the hello has no such element."""
    found, at, size = None, 0, len(body)
    while at < size:
        kind, length = _unpack(_HELLO_ELEMENT, body, at, "hello element")
        if length < _HELLO_ELEMENT.size or at + length > size:
            raise MessageError(f"a hello element says it has {length} bytes")
        if kind == _VERSION_BITMAP and found is None:
            found = int.from_bytes(body[at + 4 : at + 8], "big") if length >= 8 else 0
        at += (length + 7) & ~7
    return found


def hello(body_versions: tuple[int, ...] = VERSIONS) -> bytes:
    """Our hello, transaction id 0, with a bitmap of what is spoken."""
    bitmap = sum(1 << version for version in body_versions)
    return HEADER.pack(max(body_versions), HELLO, 16, 0) + struct.pack("!HHI", _VERSION_BITMAP, 8, bitmap)


def hello_failed(version: int, reason: str) -> bytes:
    """The error that answers a hello without a common version (A.4.1)."""
    text = reason.encode()
    return HEADER.pack(version, ERROR, HEADER.size + 4 + len(text), 0) + bytes(4) + text


def bare(version: int, kind: int, body: bytes = b"") -> bytes:
    """A message of a fixed body, transaction id 0."""
    return HEADER.pack(version, kind, HEADER.size + len(body), 0) + body


def features(body: bytes) -> Features:
    if len(body) != _FEATURES.size:
        raise MessageError(f"a features reply has {HEADER.size + len(body)} bytes, not 32")
    dpid, _, _, auxiliary, _ = _FEATURES.unpack(body)
    return Features(dpid=dpid, auxiliary=auxiliary)


def error(body: bytes) -> tuple[int, int]:
    """Type and code of an error message; what it quotes is left unread."""
    if len(body) < 4:
        raise MessageError(f"an error message has {HEADER.size + len(body)} bytes")
    return int.from_bytes(body[:2], "big"), int.from_bytes(body[2:4], "big")


def multipart(body: bytes) -> tuple[int, bool, bytes]:
    """Type of a multipart reply, whether more parts follow, and this part's body."""
    kind, flags = _unpack(MULTIPART_HEADER, body, 0, "multipart reply")
    return kind, bool(flags & MORE), body[MULTIPART_HEADER.size :]


def ports(version: int, body: bytes) -> list[tuple[int, PortState]]:
    """One part of a port description reply."""
    found: list[tuple[int, PortState]] = []
    at, size = 0, len(body)
    while at < size:
        number, state, at = _port(version, body, at)
        found.append((number, state))
    return found


def port_status(version: int, body: bytes) -> tuple[int, PortState | None]:
    """The port that changed and its state, None where it was removed (A.4.3)."""
    (reason,) = _unpack(_PORT_STATUS, body, 0, "port status")
    number, state, end = _port(version, body, _PORT_STATUS.size)
    if end != len(body):
        raise MessageError(f"a port status has {len(body) - end} bytes too many")
    return number, None if reason == _PORT_DELETED else state


def packet_in(body: bytes) -> PacketIn:
    """A packet handed to the controller (A.4.1)."""
    _unpack(_PACKET_IN, body, 0, "packet-in")
    at = _PACKET_IN.size
    fields_end, end = match_end(body, at, len(body))
    if end + 2 > len(body):
        raise MessageError("a packet-in ends within its match")
    return PacketIn(port=in_port(body, at + MATCH_HEADER.size, fields_end), data=body[end + 2 :])


def _port(version: int, body: bytes, at: int) -> tuple[int, PortState, int]:
    """Number and state of the port described at `at`, and where its description ends (A.2.1; 1.4: 7.2.1)."""
    if version < V14:
        number, mac, name, config, state, speed = _unpack(_PORT_13, body, at, "port")
        end = at + _PORT_13.size
    else:
        number, length, mac, name, config, state = _unpack(_PORT_14, body, at, "port")
        end = at + length
        if length < _PORT_14.size or end > len(body):
            raise MessageError(f"a port's description says it has {length} bytes")
        speed = _speed(body, at + _PORT_14.size, end)
    text = name.split(b"\0", 1)[0].decode("utf-8", "replace")
    return (
        number,
        PortState(
            up=not (config & _DOWN or state & _DOWN),
            name=text if text.isprintable() else repr(text)[1:-1],
            mac=mac.hex(":"),
            speed_bps=speed * 1000,
        ),
        end,
    )


def _speed(body: bytes, at: int, end: int) -> int:
    """The current speed in kbit/s among a port's properties; 0 where no property says."""
    speed = 0
    while at < end:
        kind, length = _unpack(_PROPERTY, body, at, "port property")
        if length < _PROPERTY.size or at + length > end:
            raise MessageError(f"a port's property says it has {length} bytes")
        if kind == _ETHERNET_PROPERTY:
            if length < 32:
                raise MessageError(f"a port's Ethernet property has {length} bytes, not 32")
            speed = max(speed, _ETHERNET_SPEED.unpack_from(body, at)[0])
        at += (length + 7) & ~7
    return speed


def _unpack(layout: struct.Struct, body: bytes, at: int, what: str) -> tuple[Any, ...]:
    if at + layout.size > len(body):
        raise MessageError(f"a {what} is cut short")
    return layout.unpack_from(body, at)
