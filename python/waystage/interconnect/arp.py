"""ARP, answered by the controller (RFC 826): the address of a host is its label.

Arrives: frames that hosts sent; who has which IPv4 address and label.
Leaves: replies; counts of answered and unanswered requests.
Must not know: switches' connections, topologies, sockets, clocks.

Nothing is flooded: a request is answered on its ingress port, or dropped and counted. A cyclic topology therefore has
no broadcast storm, and hosts learn labels, not true addresses.

One layout is read and written here: os-ken's packet classes take 45 times as long for a frame, in the switch's thread.
"""

from __future__ import annotations

import ipaddress
import struct

import msgspec

from waystage.interconnect.port_rate import PortRate

ETHERTYPE = 0x0806
REQUEST, REPLY = 1, 2
REQUESTS_PER_S = 200
"""Replies per switch port and second; a host asks for each peer about once a minute."""

_LAYOUT = struct.Struct("!6s6sH HHBBH 6s4s6s4s")
_ETHERNET, _IPV4 = 1, 0x0800
_SMALLEST_FRAME = 60
_GROUP_BIT = 0x01


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """The sender (`mac`, `ip`) and the requested address (`target`), as integers."""

    mac: int
    ip: int
    target: int


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """The location of a host, and its label."""

    label: int
    dpid: int
    port: int


class Counts(msgspec.Struct, kw_only=True):
    """Since the start. `ignored`: announcements, replies, malformed frames; `limited`: above the rate."""

    answered: int = 0
    unknown: int = 0
    ignored: int = 0
    limited: int = 0


class Responder:
    """Answers from `entries`, which may be replaced at any time by another thread."""

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        self.counts = Counts()
        self._rate = PortRate(REQUESTS_PER_S)

    def answer(self, dpid: int, port: int, frame: bytes, now_s: float) -> bytes | None:
        """The reply to send out of the port the frame came in by, or None."""
        request = parse(frame)
        if request is None or request.ip == request.target:  # the second announces the sender's own address
            self.counts.ignored += 1
            return None
        if not self._rate.allows(dpid, port, now_s):
            self.counts.limited += 1
            return None
        entry = self.entries.get(request.target)
        if entry is None:
            self.counts.unknown += 1
            return None
        if (entry.dpid, entry.port) == (dpid, port):
            # An address probe (RFC 5227) for the host's own address must get no answer.
            self.counts.ignored += 1
            return None
        self.counts.answered += 1
        return build_reply(request, entry.label)


def parse(frame: bytes) -> Request | None:
    """The request in the frame; None for any other frame."""
    if len(frame) < _LAYOUT.size:
        return None
    _, source, ethertype, hardware, protocol, hlen, plen, operation, sender, ip, _, target = (
        _LAYOUT.unpack_from(frame)
    )
    if (ethertype, hardware, protocol, hlen, plen) != (ETHERTYPE, _ETHERNET, _IPV4, 6, 4):
        return None
    if operation != REQUEST or sender != source or sender[0] & _GROUP_BIT:
        return None
    return Request(
        mac=int.from_bytes(sender, "big"), ip=int.from_bytes(ip, "big"), target=int.from_bytes(target, "big")
    )


def build_reply(request: Request, label: int) -> bytes:
    """The reply: the requested address is at `label`."""
    asker, answerer = request.mac.to_bytes(6, "big"), label.to_bytes(6, "big")
    head = (ETHERTYPE, _ETHERNET, _IPV4, 6, 4, REPLY)
    target, ip = request.target.to_bytes(4, "big"), request.ip.to_bytes(4, "big")
    return _LAYOUT.pack(asker, answerer, *head, answerer, target, asker, ip).ljust(_SMALLEST_FRAME, b"\0")


def ipv4(text: str) -> int:
    """`10.0.0.1` as an integer. Raises ValueError."""
    return int(ipaddress.IPv4Address(text))
