"""The address at which an aggregator can be reached by those of other nodes.

Arrives: a network (an interface or a prefix) or none; the interfaces of this host.
Leaves: an IPv4 address, or one sentence that says why there is none.
Must not know: who listens there.
"""

from __future__ import annotations

import array
import fcntl
import ipaddress
import socket as sockets
import struct

SIOCGIFCONF, SIOCGIFFLAGS = 0x8912, 0x8913
IFF_UP, IFF_LOOPBACK = 0x1, 0x8
"""Of netdevice(7); the standard library does not name them."""

LONGEST_NAME = 15
"""Bytes of an interface's name: IFNAMSIZ with its zero."""

MOST_ADDRESSES = 4096
_REQUEST = struct.Struct("16s2xH4s16x")
"""A struct ifreq with a struct sockaddr_in: name, port, address. 40 bytes on 64-bit systems."""


class NetworkError(ValueError):
    """A network that is none, or in which this host has no address; the message is one sentence."""


def checked(network: str) -> str:
    """The network, if it can be one on some host: `ib0`, or `10.1.0.0/16`. Raises NetworkError."""
    if "/" in network:
        _prefix(network)
    elif not network or len(network.encode()) > LONGEST_NAME or not network.isprintable() or " " in network:
        raise NetworkError(
            f"{network[:60]!r} is no network: give the name of an interface, such as ib0, or a prefix, such as 10.1.0.0/16"
        )
    return network


def own_address(network: str | None = None) -> str:
    """This host's address in `network`; without one that of the interface with the default route, else of the first
    other than loopback, else of loopback. Raises NetworkError."""
    found = _addresses()
    if network is not None:
        return _within(checked(network), found)
    with sockets.socket(sockets.AF_INET, sockets.SOCK_DGRAM) as probe:
        try:
            # No packet leaves: 192.0.2.1 is reserved for documentation (RFC 5737).
            probe.connect(("192.0.2.1", 9))
        except OSError:  # nodes of a cluster may have no default route
            return next((address for _, address, loopback in found if not loopback), "127.0.0.1")
        return str(probe.getsockname()[0])


def _within(network: str, found: list[tuple[str, str, bool]]) -> str:
    if "/" in network:
        prefix = _prefix(network)
        matching = [address for _, address, _ in found if ipaddress.IPv4Address(address) in prefix]
        where = f"in {network}"
    else:
        matching = [address for name, address, _ in found if network in (name, name.partition(":")[0])]
        where = f"at an interface {network} that is up"
    if not matching:
        has = ", ".join(f"{address} ({name})" for name, address, _ in found) or "none at all"
        raise NetworkError(f"this host has no IPv4 address {where}; it has {has}")
    return matching[0]


def _prefix(network: str) -> ipaddress.IPv4Network:
    try:
        return ipaddress.IPv4Network(network, strict=False)
    except ValueError:
        raise NetworkError(
            f"{network[:60]!r} is no IPv4 prefix: give one such as 10.1.0.0/16, or the name of an interface"
        ) from None


def _addresses() -> list[tuple[str, str, bool]]:
    """(Interface, address, whether it is loopback) of the interfaces that are up."""
    room = array.array("B", bytes(_REQUEST.size * MOST_ADDRESSES))
    place, _ = room.buffer_info()
    found = []
    with sockets.socket(sockets.AF_INET, sockets.SOCK_DGRAM) as probe:
        filled = fcntl.ioctl(probe, SIOCGIFCONF, struct.pack("iP", len(room), place))
        (size,) = struct.unpack_from("i", filled)
        for name, _, address in _REQUEST.iter_unpack(room.tobytes()[:size]):
            try:
                (flags,) = struct.unpack_from("H", fcntl.ioctl(probe, SIOCGIFFLAGS, name + bytes(24)), 16)
            except OSError:
                continue  # it is gone
            if flags & IFF_UP:
                text = name.partition(b"\0")[0].decode(errors="replace")
                found.append((text, sockets.inet_ntoa(address), bool(flags & IFF_LOOPBACK)))
    return found
