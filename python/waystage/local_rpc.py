"""Newline-delimited JSON over a unix stream socket, with the credentials of each peer.

Arrives: a path, a handler; lines from local processes that may be hostile.
Leaves: lines with the kernel's word on their sender (SO_PEERCRED, unix(7)); lines to those processes.
Must not know: the meaning of a line.

A client cannot forge its user, cannot make the server hold more than `Bounds` allows, and cannot keep others from being
served: a line that is too long, answers that it does not read, or one connection too many end that connection alone.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
import os
import socket
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from waystage.local_client import LocalClient, LocalRpcError, Peer, connect, peer_of

__all__ = ["Bounds", "Connection", "Handler", "LocalClient", "LocalRpcError", "LocalServer", "Peer"]

log = logging.getLogger(__name__)

BACKLOG = 4096
"""Connections that wait to be accepted: as many engines may start at once (listen(2) lowers it to somaxconn)."""

PATH_BYTES_MAX = 107
"""`sun_path` of sockaddr_un has 108 bytes, the last of them zero (unix(7))."""


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """What one server accepts. Root, the server's own user and `trusted` are not held to `connections_per_user`."""

    line_bytes: int = 1 << 20
    unread_bytes: int = 4 << 20
    connections: int = 20_000
    connections_per_user: int = 1024
    trusted: frozenset[int] = frozenset()


class Handler(Protocol):
    """Called in the server's one thread; must not block. An exception ends that connection and is logged."""

    def opened(self, connection: Connection) -> None: ...

    def line(self, connection: Connection, data: bytes) -> None: ...

    def closed(self, connection: Connection) -> None: ...


class Connection(asyncio.Protocol):
    """One client. `send` and `close` may be called from any thread."""

    def __init__(self, server: LocalServer) -> None:
        self._server = server
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None
        self._refused = False
        self.peer = Peer(0, -1, -1)

    def send(self, data: bytes) -> None:
        """Send one line, given without its newline. A client that does not read is disconnected."""
        self._server.call(lambda: self._send(data))

    def close(self) -> None:
        """Disconnect once what is queued has been sent."""
        self._server.call(self._close)

    # -- asyncio.Protocol ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.peer = peer_of(transport.get_extra_info("socket"))
        if not self._server.admit(self):
            transport.abort()
            self._transport = None
            return
        self._guarded(lambda: self._server.handler.opened(self))

    def data_received(self, data: bytes) -> None:
        self._deliver(data, lambda: self._transport is None or self._transport.is_closing())

    def connection_lost(self, exc: Exception | None) -> None:
        transport, self._transport = self._transport, None
        if transport is None:
            return
        if isinstance(exc, OSError):
            # The client left before an answer could be written. What it sent before that counts: a finish is one.
            self._deliver(_left_in(transport, self._server.bounds.unread_bytes), lambda: self._refused)
        self._server.forget(self)
        self._guarded(lambda: self._server.handler.closed(self))

    def _deliver(self, data: bytes, ended: Callable[[], bool]) -> None:
        self._received += data
        *lines, rest = self._received.split(b"\n")
        self._received = rest
        for line in lines:
            if ended():
                return
            if len(line) > self._server.bounds.line_bytes:
                break
            self._guarded(lambda line=bytes(line): self._server.handler.line(self, line))  # type: ignore[misc]
        else:
            if len(rest) <= self._server.bounds.line_bytes:
                return
        log.warning("a process of user %d sent a line that is too long: disconnected", self.peer.uid)
        self._abort()

    def _send(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.write(data + b"\n")
        if self._transport.get_write_buffer_size() > self._server.bounds.unread_bytes:
            log.warning("a process of user %d does not read its answers: disconnected", self.peer.uid)
            self._abort()

    def _close(self) -> None:
        self._refused = True
        if self._transport is not None:
            self._transport.close()

    def _abort(self) -> None:
        self._refused = True
        if self._transport is not None:
            self._transport.abort()

    def _guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:
            log.exception("serving %s failed: its client is disconnected", self._server.path)
            self._abort()


class LocalServer:
    """Serves from its own thread between `start` and `stop`; also a context manager."""

    def __init__(
        self, path: Path, handler: Handler, *, mode: int = 0o666, bounds: Bounds | None = None
    ) -> None:
        """Any local user may connect where `mode` is 0o666: the handler decides by `Connection.peer`."""
        self.path, self.handler = path, handler
        self.bounds = bounds or Bounds()
        self._mode = mode
        self._clients: set[Connection] = set()
        self._of_user: collections.Counter[int] = collections.Counter()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="waystage-local-rpc", daemon=True)
        self._identity: tuple[int, int] | None = None

    def start(self) -> None:
        """Raises LocalRpcError: a path that is too long, a folder that is missing or that others may write to, a
        process that serves it already."""
        try:
            listener = _listen(self.path, self._mode)
        except LocalRpcError:
            self._loop.close()
            raise
        found = self.path.lstat()
        self._identity = found.st_dev, found.st_ino
        self._loop.run_until_complete(
            self._loop.create_unix_server(lambda: Connection(self), sock=listener, backlog=BACKLOG)
        )
        self._thread.start()

    def stop(self) -> None:
        """Remove the socket and disconnect all clients; each was sent what it took at once."""
        if self._loop.is_closed():
            return
        with contextlib.suppress(OSError):
            found = self.path.lstat()
            if (found.st_dev, found.st_ino) == self._identity:
                self.path.unlink()
        if self._thread.ident is not None:
            self.call(self._loop.stop)
            self._thread.join()
        for client in list(self._clients):
            client._abort()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    def __enter__(self) -> LocalServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def call(self, work: Callable[[], object]) -> None:
        """Call `work` in the server's thread; without effect once it has stopped."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(work)

    def later(self, delay_s: float, work: Callable[[], object]) -> None:
        """Call `work` in the server's thread after `delay_s` seconds."""
        self.call(lambda: self._loop.call_later(delay_s, work))

    def admit(self, client: Connection) -> bool:
        """Whether one more connection of this user is within the bounds; it is then counted."""
        uid = client.peer.uid
        exempt = uid in (0, os.geteuid()) or uid in self.bounds.trusted
        if len(self._clients) >= self.bounds.connections or (
            not exempt and self._of_user[uid] >= self.bounds.connections_per_user
        ):
            log.warning("user %d has too many connections to %s: one more is refused", uid, self.path)
            return False
        self._clients.add(client)
        self._of_user[uid] += 1
        return True

    def forget(self, client: Connection) -> None:
        """One connection fewer."""
        self._clients.discard(client)
        self._of_user[client.peer.uid] -= 1
        if not self._of_user[client.peer.uid]:
            del self._of_user[client.peer.uid]

    def _run(self) -> None:
        self._loop.run_forever()


def _left_in(transport: asyncio.Transport, most: int) -> bytes:
    """What the kernel still holds for a connection that failed, up to `most` bytes. asyncio closes it afterwards."""
    left = bytearray()
    with contextlib.suppress(OSError):
        while len(left) < most and (data := os.read(transport.get_extra_info("socket").fileno(), 1 << 16)):
            left += data
    return bytes(left)


def _listen(path: Path, mode: int) -> socket.socket:
    if len(os.fsencode(path)) > PATH_BYTES_MAX:
        raise LocalRpcError(f"{path}: the path has more than {PATH_BYTES_MAX} bytes: use a shorter one")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        folder = path.parent.stat()
        if folder.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not folder.st_mode & stat.S_ISVTX:
            raise LocalRpcError(
                f"{path}: other users may write to {path.parent} and could replace the socket: chmod go-w {path.parent}"
            )
        if path.is_socket():
            with contextlib.suppress(LocalRpcError):
                connect(path, 1.0).close()
                raise _InUse
            path.unlink()
        # Not by chmod: the folder's owner could put a link in the socket's place first.
        before = os.umask(0o777 & ~mode)
        try:
            sock.bind(str(path))
        finally:
            os.umask(before)
        sock.listen(BACKLOG)
    except _InUse:
        sock.close()
        raise LocalRpcError(
            f"{path}: another process serves it already: stop it or give another path"
        ) from None
    except OSError as error:
        sock.close()
        raise LocalRpcError(
            f"{path}: {error.strerror or error}: give another path, or make its folder"
        ) from None
    except LocalRpcError:
        sock.close()
        raise
    return sock


class _InUse(Exception):
    """A process answers at the path."""
