"""The client's end of `local_rpc`: connects only to a server that may be trusted.

Arrives: a path; lines to send.
Leaves: lines of a server that runs as root, as the caller, or as the user to whom root gave the runtime folder.
Must not know: the meaning of a line. It imports little: programs that run for a moment use it.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
from pathlib import Path
from typing import NamedTuple

RUNTIME_FOLDER = Path("/run/waystage")
"""Made by root, as systemd does (RuntimeDirectory=), for the user of the site's services: that user serves in it."""


class LocalRpcError(ValueError):
    """A socket that cannot be served or reached; the message names the path and the fix."""


class Peer(NamedTuple):
    """The credentials of the peer process, as of its connecting."""

    pid: int
    uid: int
    gid: int


class LocalClient:
    """One connection to a `LocalServer`, for one thread. Raises LocalRpcError, and OSError once connected."""

    def __init__(self, path: Path, *, timeout_s: float = 5.0, line_bytes: int = 64 << 20) -> None:
        self._sock = connect(path, timeout_s)
        self._timeout_s = timeout_s
        self._line_bytes = line_bytes
        self._received = bytearray()

    def send(self, data: bytes) -> None:
        self._sock.settimeout(self._timeout_s)
        self._sock.sendall(data + b"\n")

    def receive(self, timeout_s: float | None = None) -> bytes | None:
        """The next line; None after `timeout_s` seconds. Raises EOFError where the server has disconnected."""
        self._sock.settimeout(timeout_s)
        while (end := self._received.find(b"\n")) < 0:
            if len(self._received) > self._line_bytes:
                raise LocalRpcError("the server sent a line that is too long")
            try:
                data = self._sock.recv(1 << 16)
            except (TimeoutError, BlockingIOError):
                return None
            if not data:
                raise EOFError
            self._received += data
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        return line

    def fileno(self) -> int:
        return self._sock.fileno()

    def close(self) -> None:
        self._sock.close()

    def __enter__(self) -> LocalClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def connect(path: Path, timeout_s: float) -> socket.socket:
    """A socket to the server at `path`, which must be trusted. Raises LocalRpcError."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout_s)
        sock.connect(str(path))
        server = peer_of(sock)
        if server.uid not in (0, os.geteuid()) and not _is_the_sites(path, server.uid):
            raise LocalRpcError(
                f"{path}: user {server.uid} serves it: trust only a service of root, of the owner of {RUNTIME_FOLDER}, or your own; give another path"
            )
    except OSError as error:
        sock.close()
        raise LocalRpcError(f"{path}: {error.strerror or error}: is the service running?") from None
    except LocalRpcError:
        sock.close()
        raise
    return sock


def peer_of(sock: socket.socket) -> Peer:
    """The credentials of the peer process (SO_PEERCRED)."""
    return Peer(*struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)))


def _is_the_sites(path: Path, uid: int) -> bool:
    """Whether root gave the runtime folder to this user."""
    if path.parent != RUNTIME_FOLDER:
        return False
    above, folder = RUNTIME_FOLDER.parent.lstat(), RUNTIME_FOLDER.lstat()
    closed = not (above.st_mode | folder.st_mode) & (stat.S_IWGRP | stat.S_IWOTH)
    return closed and above.st_uid == 0 and stat.S_ISDIR(folder.st_mode) and folder.st_uid == uid
