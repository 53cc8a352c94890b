"""The bytes of one control channel, plain or in TLS.

Arrives: an accepted socket; bytes to send.
Leaves: bytes that came; the names in the peer's certificate.
Must not know: OpenFlow.

`recv` belongs to one thread, `send` and `shut` to any. OpenSSL's connections may not be used by two threads at
once, so TLS runs on buffers in memory: its calls are short and share a lock, and neither waiting for the socket
nor a peer that does not read is inside that lock.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
import time

from waystage.interconnect.openflow_access import certificate_names

SEND_TIMEOUT_S = 2.0
"""How long a switch may refuse to read before its channel is closed."""

HANDSHAKE_BYTES = 64 * 1024
"""What a TLS handshake may take: a chain of ten large certificates."""


class PlainChannel:
    """A socket; `open` once before the rest."""

    names: tuple[str, ...] = ()

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(SEND_TIMEOUT_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = sock
        self._send_lock = threading.Lock()
        self._readable = select.poll()
        self._readable.register(sock, select.POLLIN)

    def open(self, deadline_s: float) -> None:
        """Be ready by this time of the monotonic clock. Raises OSError."""

    def recv(self, timeout_s: float, limit: int) -> bytes:
        """Bytes that came, at most `limit`; none at the end. Raises TimeoutError or another OSError."""
        return self._recv(timeout_s, limit)

    def send(self, data: bytes) -> None:
        """Write all now. Raises OSError where the channel is closed or the peer does not read."""
        with self._send_lock:
            self._socket.sendall(data)

    def shut(self) -> None:
        """Close both directions; a thread in `recv` then ends."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()

    def _recv(self, timeout_s: float, limit: int) -> bytes:
        if not self._readable.poll(max(0.0, timeout_s) * 1000):
            raise TimeoutError("nothing came in time")
        return self._socket.recv(limit)


class TlsChannel(PlainChannel):
    """The server's side of mutual TLS; `open` makes the handshake."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        super().__init__(sock)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._tls_lock = threading.Lock()

    def open(self, deadline_s: float) -> None:
        left = HANDSHAKE_BYTES
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._flush()
            except ssl.SSLError:
                with contextlib.suppress(OSError):
                    self._flush()  # the alert says why
                raise
            data = self._recv(deadline_s - time.monotonic(), min(left, 1 << 14))
            left -= len(data)
            if not data or left <= 0:
                raise ConnectionError(
                    "it closed the connection" if not data else "its certificates are too large"
                )
            self._incoming.write(data)
        self._flush()
        self.names = certificate_names(self._tls.getpeercert())

    def recv(self, timeout_s: float, limit: int) -> bytes:
        deadline_s = time.monotonic() + timeout_s
        while True:
            plain: bytes | None = None
            with self._tls_lock:
                with contextlib.suppress(ssl.SSLWantReadError):
                    plain = self._tls.read(limit)
                answering = self._outgoing.pending > 0  # to a key update
            if answering:
                self._flush()
            if plain is not None:
                return plain
            data = self._recv(deadline_s - time.monotonic(), limit)
            if not data:
                return b""
            with self._tls_lock:
                self._incoming.write(data)

    def send(self, data: bytes) -> None:
        with self._send_lock:
            with self._tls_lock:
                self._tls.write(data)
                sealed = self._outgoing.read()
            self._socket.sendall(sealed)

    def _flush(self) -> None:
        with self._send_lock:
            with self._tls_lock:
                sealed = self._outgoing.read()
            if sealed:
                self._socket.sendall(sealed)


Channel = PlainChannel | TlsChannel


def why_no_handshake(error: OSError) -> str:
    """A failed handshake as a message for the operator."""
    if isinstance(error, TimeoutError):
        return "its TLS handshake took too long"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    reason = getattr(error, "reason", None) or ""
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "it showed no certificate"
    if reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNSUPPORTED_PROTOCOL"):
        return "it does not speak TLS 1.2 or newer: point the switch at ssl:, not tcp:"
    return f"its TLS handshake failed: {reason or error}"
