"""Access control of switches: certificates, source addresses, datapath ids.

Arrives: what an operator configured; a peer's address, certificate names and datapath id.
Leaves: a checked configuration, a TLS context, reasons to refuse.
Must not know: os_ken, connections, threads.

Without certificates or a list of addresses, only loopback addresses are accepted. The check uses the bound address,
so that `0`, `::` or a host name cannot bypass it.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import ssl
from collections.abc import Mapping

import msgspec

from waystage.interconnect.openflow_errors import AccessError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

MAX_NAME, MAX_NAMES = 253, 16
"""Limits of the names of a certificate that appear in events and the log."""


class Tls(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Files in PEM for mutual TLS. `switches` binds names in certificates to datapath ids; empty binds none.

    A datapath id is a number or a text of hexadecimal digits, as Open vSwitch writes them.
    """

    ca: str
    certificate: str
    key: str
    switches: dict[str, int | str] = {}


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """`allow` holds addresses and networks; empty means any, which needs `tls` or a loopback address."""

    tls: Tls | None = None
    allow: tuple[str, ...] = ()


class Gate:
    """An `Access` that was checked and read from its files. Raises AccessError."""

    def __init__(self, access: Access) -> None:
        self._networks = tuple(_network(text) for text in access.allow)
        self._everyone = _everyone(self._networks)
        self.context = None if access.tls is None else _context(access.tls)
        self._bound = {} if access.tls is None else _bindings(access.tls.switches)

    def check_listening(self, host: str, bound: str, port: int) -> None:
        """Whether `bound`, the address that `host` became, may be listened at."""
        if self.context is not None or is_loopback(bound):
            return
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if not self._networks:
            raise AccessError(
                f"listening for switches on {where} would let anyone on the network pretend to be a switch: give "
                "certificates (openflow.tls or --openflow-tls-ca), the switches' addresses (openflow.allow or "
                "--openflow-allow), or listen on 127.0.0.1"
            )
        if self._everyone:
            raise AccessError(
                "openflow.allow names every address there is: name the switches' own, or give certificates "
                "(openflow.tls or --openflow-tls-ca)"
            )

    def allows(self, peer: str) -> bool:
        """Whether a connection from this address is to be read at all."""
        if not self._networks:
            return True
        address = _address(peer)
        return any(address.version == network.version and address in network for network in self._networks)

    def objection(self, names: tuple[str, ...], dpid: int) -> str | None:
        """Why a peer with these names in its certificate may not be the switch `dpid`; None where it may."""
        if not self._bound:
            return None
        known = [name for name in names if name in self._bound]
        who = f"certificate {', '.join(map(repr, names)) or 'without a name'}"
        if not known:
            return f"its {who} is not named in openflow.tls.switches"
        if any(self._bound[name] == dpid for name in known):
            return None
        return f"its {who} belongs to datapath id {self._bound[known[0]]:#x}"


def check_listening(host: str, port: int, access: Access) -> None:
    """Whether switches may be awaited there, before a socket is opened. Raises AccessError."""
    gate = Gate(access)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise AccessError(
            f"cannot listen for switches on {host}:{port} ({error}): choose an address and port of this machine"
        ) from None
    for *_, where in found:
        gate.check_listening(host, str(where[0]), port)


def certificate_names(certificate: Mapping[str, object] | None) -> tuple[str, ...]:
    """Common names and DNS names, from what `ssl` gives of a verified certificate."""
    found: list[str] = []
    about: dict[str, tuple[tuple[object, ...], ...]] = dict(certificate or {})  # type: ignore[arg-type]
    for entry in about.get("subject", ()):
        found += [str(pair[1]) for pair in entry if isinstance(pair, tuple) and pair[0] == "commonName"]
    found += [str(value) for kind, value in about.get("subjectAltName", ()) if kind == "DNS"]
    usable = (name for name in found if name.isprintable() and len(name) <= MAX_NAME)
    return tuple(dict.fromkeys(usable))[:MAX_NAMES]


def is_loopback(host: str) -> bool:
    try:
        return _address(host).is_loopback
    except ValueError:
        return False


def _address(text: str) -> Address:
    """An address without its zone; an IPv4 address that came over IPv6 as IPv4."""
    address = ipaddress.ip_address(text.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return address if mapped is None else mapped


def _network(text: str) -> Network:
    try:
        network = ipaddress.ip_network(text)
    except ValueError as error:
        raise AccessError(
            f"openflow.allow: {text!r} is no address or network ({error}): write for example 192.0.2.0/24"
        ) from None
    mapped = getattr(network.network_address, "ipv4_mapped", None)
    if mapped is not None and network.prefixlen >= 96:
        return ipaddress.ip_network((mapped, network.prefixlen - 96))
    return network


def _everyone(networks: tuple[Network, ...]) -> bool:
    """Whether every address of a kind is among them, also where it was cut in pieces."""
    v4 = ipaddress.collapse_addresses(n for n in networks if isinstance(n, ipaddress.IPv4Network))
    v6 = ipaddress.collapse_addresses(n for n in networks if isinstance(n, ipaddress.IPv6Network))
    return any(n.prefixlen == 0 for n in v4) or any(n.prefixlen == 0 for n in v6)


def _context(tls: Tls) -> ssl.SSLContext:
    for what, file in (("ca", tls.ca), ("certificate", tls.certificate), ("key", tls.key)):
        if not os.path.isfile(file) or not os.access(file, os.R_OK):
            raise AccessError(f"openflow.tls.{what}: cannot read {file}: check the path and its permissions")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    # A peer that renegotiates could keep one handshake after another going; tickets would outlive a certificate.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET
    context.num_tickets = 0
    try:
        context.load_verify_locations(cafile=tls.ca)
    except ssl.SSLError as error:
        raise AccessError(
            f"openflow.tls.ca: {tls.ca} holds no certificate in PEM ({error.reason or error})"
        ) from None
    try:
        context.load_cert_chain(tls.certificate, tls.key, password=_no_password)
    except (ssl.SSLError, ValueError) as error:
        raise AccessError(
            f"openflow.tls: {tls.certificate} and {tls.key} are no certificate and its key in PEM, without a passphrase "
            f"({getattr(error, 'reason', None) or error})"
        ) from None
    return context


def _no_password() -> str:
    raise ValueError("the key has a passphrase")


def _bindings(switches: Mapping[str, int | str]) -> dict[str, int]:
    bound: dict[str, int] = {}
    for name, given in switches.items():
        try:
            dpid = int(given, 16) if isinstance(given, str) else given
        except ValueError:
            dpid = -1
        if not 0 <= dpid < 1 << 64:
            raise AccessError(
                f"openflow.tls.switches: {given!r} of {name!r} is no datapath id: write for example 0x1"
            )
        bound[name] = dpid
    return bound
