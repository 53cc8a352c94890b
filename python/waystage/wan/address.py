"""What an end on another host is called: `[user@]host:path`, as for rsync and scp.

Arrives: an argument.
Leaves: a host, a user and a path, or None for a path of this machine.
Must not know: whether the host exists.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

DEFAULT_PORT = 7900
"""TCP and UDP, where nothing else is said."""

_REMOTE = re.compile(
    r"(?:(?P<user>[^/@:]+)@)?(?P<host>[^/:@\[\]]+|\[[0-9A-Fa-f:.%]+\]):(?P<path>.*)", re.DOTALL
)


@dataclass(frozen=True)
class Remote:
    """An end on another host. `user` is empty where the server is to tell it from the key."""

    host: str
    user: str
    path: bytes


def parse_remote(end: str) -> Remote | None:
    """The remote end that `end` names; None for a local path, which has no colon before its first slash."""
    found = _REMOTE.fullmatch(end)
    if found is None:
        return None
    host = found["host"].removeprefix("[").removesuffix("]")
    return Remote(host, found["user"] or "", os.fsencode(found["path"]))
