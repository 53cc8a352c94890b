"""Who may read the view: a token, and requests that no foreign page can have made.

Arrives: headers of a request, a secret.
Leaves: None, or the sentence why it is refused.
Must not know: HTTP servers, what is served.

A page elsewhere that a user visits can reach a loopback server. It is kept out three times: the name in `Host` must be
one of ours (DNS rebinding), `Origin` and `Sec-Fetch-Site` must be of our own page, and the cookie is `SameSite=Strict`.
Other users of the machine can reach it too; they lack the token.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

TOKEN_BYTES = 32
LEAST_TOKEN = 16
"""Characters of a token that a user chose."""


class AccessError(ValueError):
    """A token file that cannot be used; the message says why and what to do."""


class Refusal(NamedTuple):
    """An HTTP status and one sentence."""

    status: int
    reason: str


class Gate:
    """`names`: host names of this server beside those of the loopback address. `session` is the cookie's value."""

    def __init__(self, token: str, names: tuple[str, ...] = (), *, secure: bool = False) -> None:
        self._token = token.encode()
        self.session = secrets.token_urlsafe(TOKEN_BYTES)
        self._names = frozenset(name.lower() for name in names)
        self._scheme = "https" if secure else "http"

    def check_source(self, headers: Mapping[str, str]) -> Refusal | None:
        """For every request, also for the page itself."""
        host = headers.get("Host", "")
        name = _host_name(host)
        if not _is_loopback(name) and name not in self._names:
            return Refusal(
                421,
                "this server has another name: use the address that `waystage view` printed, or --name NAME",
            )
        origin = headers.get("Origin")
        if origin is not None and origin.lower() != f"{self._scheme}://{host.lower()}":
            return Refusal(403, "a page of another origin may not read this server")
        # A link elsewhere gets the page itself, which holds nothing.
        opens = headers.get("Sec-Fetch-Mode") == "navigate" and headers.get("Sec-Fetch-Dest") == "document"
        if headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin") and not opens:
            return Refusal(403, "a page of another site may not read this server")
        return None

    def knows(self, token: str) -> bool:
        """Whether it is the token, in constant time."""
        return hmac.compare_digest(token.encode("utf-8", "surrogateescape"), self._token)

    def check_reader(self, cookie: str, authorization: str) -> Refusal | None:
        """For everything that holds data."""
        if cookie and hmac.compare_digest(cookie.encode("utf-8", "surrogateescape"), self.session.encode()):
            return None
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() == "bearer" and self.knows(token.strip()):
            return None
        return Refusal(
            401,
            "no token: open the whole address that `waystage view` printed, or send `Authorization: Bearer TOKEN`",
        )


def new_token() -> str:
    return secrets.token_urlsafe(TOKEN_BYTES)


def token_from(path: Path) -> str:
    """The token in a file that only its owner can read; a new one where the file is absent. Raises AccessError."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise AccessError(f"token file {path}: {error.strerror}: give a file that can be written") from None
    with open(descriptor, "r+", encoding="utf-8", errors="surrogateescape") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise AccessError(f"token file {path}: is not a regular file: give another")
        if found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise AccessError(f"token file {path}: others can read it or own it: `chmod 600 {path}`")
        text = file.read(4096).strip()
        if not text:
            text = new_token()
            file.write(text + "\n")
        if len(text) < LEAST_TOKEN or not text.isascii() or not text.isprintable() or " " in text:
            raise AccessError(f"token file {path}: write one word of at least {LEAST_TOKEN} ASCII characters")
    return text


def _host_name(host: str) -> str:
    """`[::1]:80` -> `::1`; `Name:80` -> `name`."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def _is_loopback(name: str) -> bool:
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
