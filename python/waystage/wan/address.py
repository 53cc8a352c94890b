"""Addresses of remote paths: `[user@]host:path`, as for rsync and scp; `port:host:port`, as for ssh.

Arrives: an argument.
Leaves: a host, a user and a path, or None for a path of this machine; addresses to listen on and destinations.
Must not know: whether the host exists.
"""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass

DEFAULT_PORT = 7900
"""The default port of TCP and UDP."""

_REMOTE = re.compile(
    r"(?:(?P<user>[^/@:]+)@)?(?P<host>[^/:@\[\]]+|\[[0-9A-Fa-f:.%]+\]):(?P<path>.*)", re.DOTALL
)


_ADDRESS = r"[^:\[\]\s]+|\[[0-9A-Fa-f:.%]+\]"
_SERVER = re.compile(rf"(?:(?P<user>[^/@:\s]+)@)?(?P<host>{_ADDRESS})")
_LISTEN = re.compile(rf"(?:(?P<at>{_ADDRESS}):)?(?P<port>\d{{1,5}})")
_FORWARD = re.compile(rf"(?P<listen>(?:(?:{_ADDRESS}):)?\d{{1,5}}):(?P<to>(?:{_ADDRESS}):\d{{1,5}})")


@dataclass(frozen=True)
class Remote:
    """A path on another host. An empty `user` leaves the user to the server, by the key."""

    host: str
    user: str
    path: bytes


def parse_remote(end: str) -> Remote | None:
    """The remote path that `end` names; None for a local path, which has no colon before its first slash."""
    found = _REMOTE.fullmatch(end)
    if found is None:
        return None
    host = found["host"].removeprefix("[").removesuffix("]")
    return Remote(host, found["user"] or "", os.fsencode(found["path"]))


def parse_server(text: str) -> tuple[str, str]:
    """Host and user of `[user@]host`; an empty user leaves it to the server. ValueError otherwise."""
    found = _SERVER.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no [USER@]HOST; the port is a separate option")
    return found["host"].removeprefix("[").removesuffix("]"), found["user"] or ""


def parse_listen(text: str) -> str:
    """`ADDRESS:PORT` of `[ADDRESS:]PORT`, on the loopback interface where no address is given. ValueError otherwise."""
    found = _LISTEN.fullmatch(text)
    if found is None or int(found["port"]) >= 1 << 16:
        raise ValueError(f"{text!r} is no [ADDRESS:]PORT, such as 1080 or [::]:1080")
    at = found["at"] or "127.0.0.1"
    try:
        address = ipaddress.ip_address(at.removeprefix("[").removesuffix("]"))
    except ValueError:
        raise ValueError(f"{text!r}: {at} is no address to listen at; * is written 0.0.0.0 or [::]") from None
    return f"[{address}]:{found['port']}" if address.version == 6 else f"{address}:{found['port']}"


def parse_forward(text: str) -> tuple[str, str]:
    """Where to listen, as `ADDRESS:PORT`, and where to, as `HOST:PORT`, of `[ADDRESS:]PORT:HOST:PORT`.

    ValueError otherwise.
    """
    found = _FORWARD.fullmatch(text)
    if found is None or not 0 < int(found["to"].rpartition(":")[2]) < 1 << 16:
        raise ValueError(f"{text!r} is no [ADDRESS:]PORT:HOST:PORT, such as 8080:www.example.org:80")
    return parse_listen(found["listen"]), found["to"]
