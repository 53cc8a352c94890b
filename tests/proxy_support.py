"""Proxies of the real program, and programs that talk through them, for the tests of `waystage proxy`."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from harness import WAIT_S, Ran, command, wait_until
from remote_copy_support import Site
from waystage.worlds.lab.wan import paths

ALL = 'proxy = ["allow 127.0.0.0/8", "allow localhost"]\nproxy_listen = ["127.0.0.1"]'
"""What the tests' user may, if a test does not say otherwise."""


FAR = "10.77.1.2"
"""An address that only the right end of a path has."""

ECHO = """
import socket, sys
kind = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
listener = socket.create_server((sys.argv[1], int(sys.argv[2])), family=kind)
while True:
    connection, _ = listener.accept()
    while data := connection.recv(1 << 16):
        connection.sendall(data)
    connection.close()
"""


@dataclass
class Running:
    """A `waystage proxy`: where it listens, by kind, in order."""

    process: subprocess.Popen[bytes]
    ports: dict[str, list[int]]
    log_file: Any

    def port(self, kind: str) -> int:
        return self.ports[kind][0]

    def log(self) -> str:
        text: str = self.log_file.read_text(encoding="utf-8")
        return text

    def end(self, number: signal.Signals = signal.SIGTERM) -> list[dict[str, Any]]:
        """Signal it and wait; what it told, each a dictionary with `event`."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=WAIT_S)
        assert self.process.returncode == 0, err
        return [json.loads(line) for line in out.splitlines()]


@dataclass
class Proxies(Site):
    """A site whose server lets its user reach this host."""

    count: int = 0

    def serve(self, top: str = "", user: str = ALL, root: str = "privileged = true") -> None:
        super().serve(top, user, root)

    def proxying(self, *words: object, port: int = 0) -> list[str]:
        trusted = ("--server-key", self.server_key, "--identity", self.folder / "client.key")
        patient = () if "--udp-wait" in words else ("--udp-wait", WAIT_S / 3)
        return command("proxy", "127.0.0.1", "--port", port or self.port, *trusted, *patient, *words)

    def run(self, *words: object, port: int = 0) -> Ran:
        """One that is expected to end by itself."""
        return self.ran(self.proxying(*words, port=port))

    def proxy(self, *words: object, port: int = 0) -> Running:
        """Start one, and wait until it has reached the server."""
        self.count += 1
        ready, log = self.folder / f"proxy{self.count}", self.folder / f"proxy{self.count}.log"
        process = subprocess.Popen(
            self.proxying(*words, "--ready-file", ready, "--log", log, "--json", port=port),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment(),
        )
        self.started.append(process)
        wait_until(ready.exists, process)
        ports: dict[str, list[int]] = {}
        for line in ready.read_text(encoding="ascii").splitlines():
            kind, address = line.split()
            ports.setdefault(kind, []).append(int(address.rpartition(":")[2]))
        return Running(process, ports, log)


@contextlib.contextmanager
def listening(serve: Callable[[socket.socket], None], host: str = "127.0.0.1") -> Iterator[int]:
    """A server whose connections are each given to `serve` in a thread; its port. Without a host at all addresses, of IPv6 too."""
    stop = threading.Event()
    threads: list[threading.Thread] = []
    both = not host and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    with socket.create_server((host, 0), backlog=1000, family=family, dualstack_ipv6=both) as listener:
        listener.settimeout(0.1)

        def each(connection: socket.socket) -> None:
            connection.settimeout(WAIT_S)
            with connection, contextlib.suppress(OSError):
                serve(connection)

        def accept() -> None:
            while not stop.is_set():
                with contextlib.suppress(TimeoutError):
                    connection, _ = listener.accept()
                    threads.append(threading.Thread(target=each, args=(connection,), daemon=True))
                    threads[-1].start()

        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        try:
            yield listener.getsockname()[1]
        finally:
            stop.set()
            accepting.join(WAIT_S)
            for thread in threads:
                thread.join(WAIT_S)


def echo(connection: socket.socket) -> None:
    while data := connection.recv(1 << 16):
        connection.sendall(data)


def connect(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
    connection.settimeout(WAIT_S)
    return connection


def receive(connection: socket.socket, count: int) -> bytes:
    """`count` bytes, or those until the end."""
    data = bytearray()
    while len(data) < count and (more := connection.recv(min(1 << 16, count - len(data)))):
        data += more
    return bytes(data)


def everything(connection: socket.socket) -> bytes:
    return receive(connection, 1 << 40)


def socks(port: int, host: str, to: int, kind: int = 3) -> tuple[socket.socket, int]:
    """A connection through SOCKS and the reply's code; `kind` is 1 for IPv4, 4 for IPv6, 3 for a name (RFC 1928)."""
    connection = connect(port)
    connection.sendall(b"\x05\x01\x00")
    assert receive(connection, 2) == b"\x05\x00"
    if kind == 3:
        address = bytes([len(host)]) + host.encode()
    else:
        address = socket.inet_pton(socket.AF_INET if kind == 1 else socket.AF_INET6, host)
    connection.sendall(b"\x05\x01\x00" + bytes([kind]) + address + struct.pack(">H", to))
    reply = receive(connection, 10)
    return connection, reply[1]


@contextlib.contextmanager
def running(path: str, side: str, *argv: str) -> Iterator[subprocess.Popen[bytes]]:
    process = paths.start(path, side, argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def does(path: str, side: str, *argv: str) -> tuple[int, str]:
    process = paths.start(path, side, argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    out, _ = process.communicate(timeout=WAIT_S)
    return process.returncode, out
