"""Runs the server of a view until a signal.

Arrives: a feed and what folds events into it; an address, a token, certificates.
Leaves: a listening server and its address; every page closed in the end.
Must not know: command lines, where events come from.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from waystage.view.access import Gate, new_token
from waystage.view.feed import Feed
from waystage.view.hub import PAGES
from waystage.view.server import ViewServer


class ServingError(ValueError):
    """An address or certificates that cannot be served; the message says what to do."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """`listen` is HOST:PORT, port 0 for any. Beyond the loopback address a certificate is needed; with `tls_ca`, pages
    need one too (mutual TLS)."""

    listen: str = "127.0.0.1:8077"
    names: tuple[str, ...] = ()
    token: str = ""
    pages: int = PAGES
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    tls_ca: Path | None = None

    @property
    def secure(self) -> bool:
        return self.tls_certificate is not None


class Serving:
    """A server on its socket; `run` serves until it is stopped. Raises ServingError."""

    def __init__(
        self,
        feed: Feed,
        fold: Callable[[], int],
        options: Options,
        *,
        metrics: Callable[[ViewServer], str] | None = None,
    ) -> None:
        self._options = options
        self._tls = _context(options)
        host, self._socket = _bind(options)
        self._token = options.token or new_token()
        port = self._socket.getsockname()[1]
        self._stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        scheme = "https" if options.secure else "http"
        shown = options.names[0] if options.names else f"[{host}]" if ":" in host else host
        self.address = f"{scheme}://{shown}:{port}/"
        gate = Gate(self._token, (*options.names, host), secure=options.secure)
        self.server = ViewServer(
            feed, gate, fold, pages=options.pages, metrics=metrics, secure=options.secure
        )

    @property
    def link(self) -> str:
        """The address with the token in its fragment, which browsers send to no server."""
        return f"{self.address}#token={self._token}"

    def run(self, ready: Callable[[], None] = lambda: None, *, signals: bool = True) -> None:
        """Serve until SIGTERM, Ctrl-C or `stop`; `ready` is called when pages are answered."""
        asyncio.run(self._run(ready, signals))

    async def _run(self, ready: Callable[[], None], signals: bool) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        if signals:
            for number in (signal.SIGTERM, signal.SIGINT):
                self._loop.add_signal_handler(number, self._stop.set)
        await self.server.start(self._socket, self._tls)
        try:
            ready()
            await self._stop.wait()
        finally:
            await self.server.stop()

    def stop(self) -> None:
        """From any thread."""
        loop, event = self._loop, self._stop
        if loop is not None and event is not None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(event.set)

    @contextlib.contextmanager
    def in_thread(self) -> Iterator[Serving]:
        """Serve in another thread while the block runs."""
        started = threading.Event()
        thread = threading.Thread(
            target=self.run, args=(started.set,), kwargs={"signals": False}, name="waystage-view", daemon=True
        )
        thread.start()
        started.wait(10.0)
        try:
            yield self
        finally:
            self.stop()
            thread.join(10.0)


def _bind(options: Options) -> tuple[str, socket.socket]:
    host, colon, port = options.listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ServingError(f"{options.listen!r} is not HOST:PORT: for example 127.0.0.1:8077")
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise ServingError(f"{options.listen}: {error.strerror}") from None
    if not ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback and not options.secure:
        raise ServingError(
            f"{options.listen} is reached from other hosts: give --tls-certificate and --tls-key, "
            "or listen on 127.0.0.1 and use `ssh -L`"
        )
    sock = socket.socket(family, kind, proto)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise ServingError(
            f"cannot listen at {options.listen}: {error.strerror}: choose another with --listen"
        ) from None
    return host, sock


def _context(options: Options) -> ssl.SSLContext | None:
    if options.tls_certificate is None or options.tls_key is None:
        if options.tls_certificate or options.tls_key or options.tls_ca:
            raise ServingError("give --tls-certificate and --tls-key together; --tls-ca goes with both")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(options.tls_certificate, options.tls_key)
        if options.tls_ca is not None:
            context.load_verify_locations(options.tls_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except OSError as error:  # ssl.SSLError is one
        reason = getattr(error, "reason", None) or error.strerror
        raise ServingError(f"the certificate {options.tls_certificate} cannot be used: {reason}") from None
    return context
