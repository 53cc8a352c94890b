"""A peer that speaks OpenFlow by hand, well or badly, and a recorder of what the server tells; for tests."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from types import TracebackType

from waystage.interconnect.openflow import PortState
from waystage.interconnect.rules import SwitchRules


def message(version: int, kind: int, body: bytes = b"", xid: int = 1) -> bytes:
    return struct.pack("!BBHI", version, kind, 8 + len(body), xid) + body


def hello(version: int = 4, bitmap: int = 1 << 4) -> bytes:
    return message(version, 0, struct.pack("!HHI", 1, 8, bitmap))


class Recorder:
    """What the server told."""

    def __init__(self) -> None:
        self.up: dict[int, tuple[dict[int, PortState], SwitchRules]] = {}
        self.down: list[int] = []
        self.ports: list[tuple[int, int, PortState | None]] = []
        self.packets: list[tuple[int, int, bytes]] = []
        self.refused: list[tuple[int, str, str]] = []

    def switch_up(self, dpid: int, ports: dict[int, PortState], held: SwitchRules) -> None:
        self.up[dpid] = (ports, held)

    def switch_down(self, dpid: int) -> None:
        self.down.append(dpid)

    def port_changed(self, dpid: int, port: int, state: PortState | None) -> None:
        self.ports.append((dpid, port, state))

    def packet_in(self, dpid: int, port: int, data: bytes) -> None:
        self.packets.append((dpid, port, data))

    def switch_refused(self, dpid: int, address: str, certificate: str, reason: str, times: int) -> None:
        self.refused.append((dpid, certificate, reason))


class Peer:
    """A connection to the server, as a switch without ports, rules or groups would use it."""

    def __init__(self, port: int, *, source: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> None:
        plain = socket.create_connection(("127.0.0.1", port), source_address=(source, 0), timeout=60)
        self.socket = plain if tls is None else tls.wrap_socket(plain)
        self._buffer = bytearray()

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def say_hello(self, dpid: int) -> None:
        self.socket.sendall(hello() + message(4, 6, struct.pack("!QIBB2xI4x", dpid, 0, 254, 0, 0)))

    def next_message(self) -> tuple[int, int, bytes]:
        """Type, transaction id and body. Raises ConnectionError at the end."""
        while True:
            if len(self._buffer) >= 8:
                _, kind, length, xid = struct.unpack_from("!BBHI", self._buffer)
                if len(self._buffer) >= length:
                    body = bytes(self._buffer[8:length])
                    del self._buffer[:length]
                    return kind, xid, body
            data = self.socket.recv(65536)
            if not data:
                raise ConnectionError("closed")
            self._buffer += data

    def await_request(self, kind: int) -> int:
        """The transaction id of the next message of this kind."""
        while True:
            found, xid, _ = self.next_message()
            if found == kind:
                return xid

    def answer(self, xid: int, kind: int, body: bytes = b"", *, more: bool = False) -> None:
        self.socket.sendall(message(4, 19, struct.pack("!HH4x", kind, more) + body, xid))

    def come_up(self, dpid: int, rules: bytes = b"") -> None:
        """The whole handshake, until all is described; `rules` is the one part of the rules' description."""
        self.say_hello(dpid)
        for kind in (13, 1, 7):
            self.answer(self.await_request(18), kind, rules if kind == 1 else b"")

    def serve_as(self, dpid: int) -> None:
        """The handshake, then answers until the server closes the channel."""
        with contextlib.suppress(OSError):
            self.come_up(dpid)
            while True:
                kind, xid, body = self.next_message()
                if kind == 2:
                    self.socket.sendall(message(4, 3, body, xid))

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """Echo requests are answered meanwhile."""
        stop = threading.Event()

        def answer() -> None:
            while not stop.is_set():
                try:
                    kind, xid, body = self.next_message()
                except TimeoutError:
                    continue
                except OSError:
                    return
                if kind == 2:
                    self.socket.sendall(message(4, 3, body, xid))

        self.socket.settimeout(0.05)
        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            self.socket.settimeout(60)
