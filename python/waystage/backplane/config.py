"""How a process joins the backplane.

Arrives: endpoints, certificates, bounds, access rights, as an operator writes them.
Leaves: a checked configuration in Zenoh's own words.
Must not know: sessions, events.

A process that names no endpoint is alone and opens no socket. One that only connects is a client; one
that listens is a router, since only routers carry events between clients. Multicast and gossip stay off:
nobody is found who was not named.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
from pathlib import Path
from typing import Any

import msgspec

from waystage.backplane.access import AccessRule, zenoh_access_control

SECURE_PROTOCOLS = frozenset({"tls", "quic"})
LOCAL_PROTOCOLS = frozenset({"unixsock-stream", "unixpipe"})
PLAIN_PROTOCOLS = frozenset({"tcp", "udp", "ws"})


STALLED_US = 1_000_000
"""How long a receiver may take nothing before its link is closed; it comes back and is sent what it missed.

Until then everything else that its sender forwards waits too. Zenoh's own 5 s are as long as a publisher waits for
a confirmation: one frozen subscriber made the notifications of all others fail.
"""


class BackplaneError(RuntimeError):
    """A backplane that cannot be opened or used; the message names the endpoint or option and the mend."""


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
    """

    name: str = ""
    scope: str = "site"
    listen: tuple[str, ...] = ()
    connect: tuple[str, ...] = ()
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
        """`name`, or host and process id made fit for a key."""
        host = re.sub(r"[^A-Za-z0-9_=-]", "-", os.uname().nodename)[:60]
        return self.name or f"{host}-{os.getpid()}"

    def check(self) -> None:
        """Raises BackplaneError where this configuration is wrong or would be unsafe."""
        for endpoint in (*self.listen, *self.connect):
            protocol, _ = _parts(endpoint)
            if protocol in SECURE_PROTOCOLS and self.tls is None:
                raise BackplaneError(
                    f"endpoint {endpoint} needs certificates: give tls ca, certificate and key"
                )
        for endpoint in self.listen:
            if not self.insecure and not is_safe_to_listen(endpoint):
                raise BackplaneError(
                    f"listening on {endpoint} would let anyone on the network read and publish: use "
                    "tls/HOST:PORT with certificates, a loopback address, or say --insecure"
                )
        if self.access and self.tls is None:
            raise BackplaneError(
                "access rules go by the names in certificates: give tls ca, certificate and key too"
            )
        if self.access and any(_parts(e)[0] not in SECURE_PROTOCOLS for e in self.listen):
            raise BackplaneError(
                "access rules hold only where every client shows a certificate: listen on tls endpoints alone"
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


def is_safe_to_listen(endpoint: str) -> bool:
    """Whether only this machine, or only holders of a certificate, can reach `endpoint`."""
    protocol, address = _parts(endpoint)
    if protocol in SECURE_PROTOCOLS or protocol in LOCAL_PROTOCOLS:
        return True
    host = address.split("?")[0].split("#")[0].rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name may resolve to anything


def load_config(path: Path) -> dict[str, Any]:
    """Read a YAML mapping. Raises BackplaneError naming the file and what is wrong with it."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        found = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BackplaneError(f"cannot read {path}: {error.strerror}") from None
    except (YAMLError, UnicodeDecodeError) as error:
        first = str(error).splitlines()[0]
        raise BackplaneError(f"{path} is no YAML: {first}") from None
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


def _parts(endpoint: str) -> tuple[str, str]:
    protocol, slash, address = endpoint.partition("/")
    if not slash or not address or protocol not in SECURE_PROTOCOLS | LOCAL_PROTOCOLS | PLAIN_PROTOCOLS:
        raise BackplaneError(
            f"endpoint {endpoint!r} is not PROTOCOL/ADDRESS: for example tcp/127.0.0.1:7447, "
            "tls/host:7447 or unixsock-stream//run/waystage/backplane.sock"
        )
    return protocol, address
