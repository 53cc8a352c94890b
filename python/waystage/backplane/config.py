"""Configuration of a process on the backplane.

Arrives: endpoints, certificates, bounds and access rights in the operator's format.
Leaves: a validated configuration in Zenoh's format.
Must not know: sessions, events.

A process without endpoints is isolated and opens no socket. One that only connects is a client; one that listens is a
router, because only routers forward events between clients. Multicast and gossip scouting stay off, so that all peers
are explicit.

On one machine, processes connect by a unix socket, for which the kernel checks owner and mode against the credentials
of each client. A loopback address has no such check; it is refused without TLS, like any other, unless `insecure`.
"""

from __future__ import annotations

import json
import os
import re
import ssl
from pathlib import Path
from typing import Any

import msgspec

from waystage.backplane import sockets
from waystage.backplane.access import AccessError, AccessRule, check_access, zenoh_access_control
from waystage.backplane.identity import common_name
from waystage.bounded import read_bounded

SECURE_PROTOCOLS = frozenset({"tls", "quic"})
UNIX = "unixsock-stream"
PLAIN_PROTOCOLS = frozenset({"tcp", "udp", "ws"})

SITE_ENDPOINT = f"{UNIX}//run/waystage/backplane.sock"
"""Where a site's controller listens for the programs of its machine, unless told otherwise."""


STALLED_US = 1_000_000
"""How long a receiver may take nothing before its link is closed; it comes back and is sent what it missed.

Until then everything else that its sender forwards waits too. Zenoh's own 5 s are as long as a publisher waits for
a confirmation: one frozen subscriber made the notifications of all others fail.
"""


class BackplaneError(RuntimeError):
    """A backplane that cannot be opened or used; the message names the endpoint or option and the fix."""


class Tls(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Files in PEM for mutual TLS; `check_names` compares certificates with the names connected to."""

    ca: str
    certificate: str
    key: str
    check_names: bool = True


class BackplaneConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds have defaults that hold a burst of minutes: 8,192 events of a few hundred bytes.

    `name` and `scope` say who publishes and where (`node3`, `job-17`, `site`). `cache_events` and
    `cache_bytes` bound what is kept for replay, `queue` what waits for a subscriber. `publish_wait_s` is
    the longest time `publish` blocks where the cache is full of events that the controller has not journalled.
    `local_group` may connect to the unix sockets listened at; without it only their owner and root. `insecure`
    allows endpoints without TLS: any process that reaches them, on this machine too, may read and publish.
    """

    name: str = ""
    scope: str = "site"
    listen: tuple[str, ...] = ()
    connect: tuple[str, ...] = ()
    local_group: str = ""
    insecure: bool = False
    tls: Tls | None = None
    access: tuple[AccessRule, ...] = ()
    connect_timeout_s: float = 3.0
    cache_events: int = 8192
    cache_bytes: int = 64 * 1024 * 1024
    queue: int = 16384
    publish_wait_s: float = 5.0

    @property
    def publisher_name(self) -> str:
        """`name`; else the name in the certificate, which access rules expect; else host and process id.

        A client of a unix socket has `local.` before that, since its name proves nothing.
        """
        if self.name:
            return self.name
        if self.tls is not None:
            return self._certificate_name()
        host = re.sub(r"[^A-Za-z0-9_=-]", "-", os.uname().nodename)[:60]
        own = f"{host}-{os.getpid()}"
        return f"local.{own}" if self.connect and not self.listen else own

    def check(self) -> None:
        """Raises BackplaneError where this configuration is wrong or would be unsafe."""
        protocols = {endpoint: _parts(endpoint)[0] for endpoint in (*self.listen, *self.connect)}
        for endpoint, protocol in protocols.items():
            if protocol in SECURE_PROTOCOLS and self.tls is None:
                raise BackplaneError(
                    f"endpoint {endpoint} needs certificates: give tls ca, certificate and key"
                )
            if protocol in PLAIN_PROTOCOLS and not self.insecure:
                raise BackplaneError(_plain(endpoint, listening=endpoint in self.listen))
        if any(rule.names for rule in self.access) and self.tls is None:
            raise BackplaneError(
                "access rules with names go by certificates: give tls ca, certificate and key too"
            )
        try:
            for path in (*self.listen_sockets, *self.connect_sockets):
                sockets.check_path(str(path))
            if self.local_group:
                sockets.group_id(self.local_group)
            check_access(self.access, local=bool(self.listen_sockets))
        except (sockets.SocketError, AccessError) as error:
            raise BackplaneError(str(error)) from None
        if self.access and any(protocols[e] in PLAIN_PROTOCOLS for e in self.listen):
            raise BackplaneError(
                "access rules need authenticated clients: listen only on tls endpoints and unix sockets"
            )
        if self.tls is not None:
            for what, file in (
                ("ca", self.tls.ca),
                ("certificate", self.tls.certificate),
                ("key", self.tls.key),
            ):
                if not os.access(file, os.R_OK):
                    raise BackplaneError(
                        f"tls {what}: cannot read {file}: check the path and its permissions"
                    )
            self._certificate_name()
        for name, value in (("cache_events", self.cache_events), ("queue", self.queue)):
            if value < 1:
                raise BackplaneError(f"{name} is {value}: give at least 1")

    def zenoh(self) -> dict[str, Any]:
        """Zenoh configuration, path -> value, for `Config.insert_json5`. Call `check` first."""
        retry = {"period_init_ms": 100, "period_max_ms": 1000, "period_increase_factor": 2}
        settings: dict[str, Any] = {
            "mode": "router" if self.listen else "client" if self.connect else "peer",
            "scouting/multicast/enabled": False,
            "scouting/gossip/enabled": False,
            "listen/endpoints": list(self.listen),
            "connect/endpoints": list(self.connect),
            "connect/retry": retry,
            "transport/shared_memory/enabled": False,
            # A site has more than Zenoh's default of 1,000 node agents.
            "transport/unicast/max_sessions": 20_000,
            "transport/unicast/accept_pending": 2_000,
            "adminspace/enabled": False,
            "transport/link/tx/queue/congestion_control/block/wait_before_close": STALLED_US,
        }
        if self.connect and not self.listen:
            settings["connect/timeout_ms"] = int(self.connect_timeout_s * 1000)
        if self.tls is not None:
            settings |= {
                "transport/link/tls/root_ca_certificate": self.tls.ca,
                "transport/link/tls/listen_private_key": self.tls.key,
                "transport/link/tls/listen_certificate": self.tls.certificate,
                "transport/link/tls/connect_private_key": self.tls.key,
                "transport/link/tls/connect_certificate": self.tls.certificate,
                "transport/link/tls/enable_mtls": True,
                "transport/link/tls/verify_name_on_connect": self.tls.check_names,
                "transport/link/tls/close_link_on_expiration": True,
            }
        if self.access:
            settings["access_control"] = zenoh_access_control(self.access)
        return settings

    @property
    def listen_sockets(self) -> tuple[Path, ...]:
        """The unix sockets listened at."""
        return tuple(Path(address) for protocol, address in map(_parts, self.listen) if protocol == UNIX)

    @property
    def connect_sockets(self) -> tuple[Path, ...]:
        """The unix sockets connected to."""
        return tuple(Path(address) for protocol, address in map(_parts, self.connect) if protocol == UNIX)

    def _certificate_name(self) -> str:
        assert self.tls is not None, "only asked for where there is a certificate"
        tls = self.tls
        try:
            return common_name(tls.ca, tls.certificate, tls.key)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            reason = error.reason if isinstance(error, ssl.SSLError) and error.reason else error
            raise BackplaneError(
                f"the tls certificate {tls.certificate} cannot be used with {tls.key} and {tls.ca}: {reason}"
            ) from None


def load_config(path: Path) -> dict[str, Any]:
    """Read a YAML mapping. Raises BackplaneError naming the file and what is wrong with it."""
    from waystage.yaml_text import MAX_BYTES, YamlError, load_plain  # slow to import

    try:
        found = load_plain(read_bounded(path, MAX_BYTES))
    except OSError as error:
        raise BackplaneError(f"cannot read {path}: {error.strerror}") from None
    except YamlError as error:
        raise BackplaneError(f"{path}:{error.line}: {error}") from None
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise BackplaneError(f"{path} must hold keys and values, not {json.dumps(found, default=str)[:40]}")
    return found


def config_from(values: dict[str, Any], where: str) -> BackplaneConfig:
    """Build a configuration from plain values. Raises BackplaneError naming the key."""
    try:
        return msgspec.convert(values, BackplaneConfig, strict=True)
    except msgspec.ValidationError as error:
        raise BackplaneError(f"{where}: {error}") from None


def _plain(endpoint: str, *, listening: bool) -> str:
    use = f"use {SITE_ENDPOINT} on one machine, tls/HOST:PORT with certificates between machines, or say insecure"
    if listening:
        return f"listening on {endpoint} would let every process that reaches it read and publish: {use} (--insecure)"
    return f"connecting to {endpoint} would trust any process that listens there: {use} (in --config)"


def _parts(endpoint: str) -> tuple[str, str]:
    protocol, slash, address = endpoint.partition("/")
    if not slash or not address or protocol not in SECURE_PROTOCOLS | PLAIN_PROTOCOLS | {UNIX}:
        raise BackplaneError(
            f"endpoint {endpoint!r} is not PROTOCOL/ADDRESS: for example {SITE_ENDPOINT} or tls/host:7447"
        )
    return protocol, address
