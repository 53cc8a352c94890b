"""A server of copies, its clients, and a middlebox between them, for the tests of copies between hosts.

Everything is on the loopback interface, on ports that were free. Nothing here depends on how fast the machine is.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from harness import WAIT_S, Ran, command, free_port, ran, wait_until
from waystage._native import WanServer, wan_make_key, wan_read_key
from waystage.native_options.peers import Peer
from waystage.native_options.servers import ServerOptions, ServerRoot, ServerUser

ACCOUNT = 'account = "root"\n' if os.geteuid() == 0 else ""
"""What the configuration of a server that runs as root needs."""


@dataclass
class Site:
    """A folder with a server's and a client's keys, `data` to write and `given` to read."""

    folder: Path
    process: subprocess.Popen[bytes] | None = None
    port: int = 0
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in ("data", "given", "home"):
            (self.folder / name).mkdir()
        wan_make_key(self.folder / "server.key")
        wan_make_key(self.folder / "client.key")

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def given(self) -> Path:
        return self.folder / "given"

    @property
    def server_key(self) -> str:
        return wan_read_key(self.folder / "server.key")

    @property
    def client_key(self) -> str:
        return wan_read_key(self.folder / "client.key")

    def config(self, top: str = "", user: str = "", root: str = "privileged = true") -> Path:
        path = self.folder / "serve.toml"
        path.write_text(
            f'listen = "127.0.0.1:{self.port}"\nkey = "server.key"\nlog = "serve.log"\n{top}\n'
            f'[[root]]\npath = "{self.data}"\nwrite = true\n{root}\n[[root]]\npath = "{self.given}"\n{root}\n'
            f'[users.ada]\nkeys = ["{self.client_key} ada@here"]\n{"" if "account" in user else ACCOUNT}{user}\n',
            encoding="utf-8",
        )
        return path

    def serve(self, top: str = "", user: str = "", root: str = "privileged = true") -> None:
        """Start the real server; a second time on the port that it had, which no other process was given meanwhile."""
        self.port = self.port or free_port()
        ready = self.folder / "ready"
        words = ("serve", "--config", self.config(top, user, root), "--ready-file", ready, "--json")
        self.process = subprocess.Popen(
            command(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self.environment()
        )
        self.started.append(self.process)
        wait_until(ready.exists, self.process)
        self.port = int(ready.read_text(encoding="ascii").rpartition(":")[2])

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Signal the server and wait for it."""
        assert self.process is not None
        self.process.send_signal(number)
        self.process.communicate(timeout=WAIT_S)
        (self.folder / "ready").unlink(missing_ok=True)
        return self.process.returncode

    def log(self) -> str:
        return (self.folder / "serve.log").read_text(encoding="utf-8")

    def environment(self) -> dict[str, str]:
        return {**os.environ, "HOME": str(self.folder / "home"), "XDG_CONFIG_HOME": ""}

    def copying(self, *words: object, port: int = 0, key: str | None = None) -> list[str]:
        trusted = ("--server-key", self.server_key if key is None else key)
        identity = ("--identity", self.folder / "client.key")
        # A slow machine is no blocked path.
        patient = () if "--udp-wait" in words else ("--udp-wait", WAIT_S / 3)
        return command("copy", *words, "--port", port or self.port, *identity, *trusted, *patient, "--json")

    def copy(self, *words: object, port: int = 0, key: str | None = None) -> Ran:
        return self.ran(self.copying(*words, port=port, key=key))

    def ran(self, words: Sequence[object]) -> Ran:
        """A command of the site's user, run to its end."""
        return ran(words, env=self.environment())

    def begin(self, *words: object) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            self.copying(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self.environment()
        )
        self.started.append(process)
        return process

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()


def parts_written(journal: Path) -> int:
    """Extents that a journal knows: records of kind 4, each behind a length and a hash."""
    try:
        data = journal.read_bytes()
    except FileNotFoundError:
        return 0
    at, count = len(b"waystage-copy-journal 1\n"), 0
    while at + 8 < len(data):
        length = int.from_bytes(data[at : at + 4], "little")
        if at + 8 + length > len(data):
            break
        count += data[at + 8] == 4
        at += 8 + length
    return count


def peer(site: Site, **more: Any) -> Peer:
    """The server of `site`, for ada."""
    usual = Peer(
        host="127.0.0.1",
        port=site.port,
        user="ada",
        key=site.folder / "client.key",
        trusted=site.server_key,
        udp_wait_s=30.0,
    )
    return replace(usual, **more)


@contextlib.contextmanager
def server_here(site: Site, **more: Any) -> Iterator[WanServer]:
    """A server in this process."""
    roots = [ServerRoot(path=site.data, write=True), ServerRoot(path=site.given)]
    usual = ServerOptions(
        listen="127.0.0.1:0",
        key=site.folder / "server.key",
        users=[ServerUser(name="ada", keys=[site.client_key])],
        roots=roots,
        connections=8,
        memory_bytes=64 << 20,
        workers=2,
    )
    server = WanServer(replace(usual, **more))
    site.port = int(server.address.rpartition(":")[2])
    with server:
        yield server


def ended_json(process: subprocess.Popen[bytes]) -> Any:
    out, err = process.communicate(timeout=WAIT_S)
    assert out, err
    return json.loads(out)


Mangle = Callable[[bytes, bool], list[bytes]]
"""What becomes of a datagram; whether it goes to the server."""


class Middlebox:
    """Carries TCP, and UDP where `mangle` is given, between one client at a time and a server.

    It listens at 127.0.0.1, on a new port, or at `at`, on the server's port: UDP there then belongs to another socket.
    """

    def __init__(self, server_port: int, mangle: Mangle | None = None, at: str | None = None) -> None:
        self._server = ("127.0.0.1", server_port)
        self._mangle = mangle
        self._stop = threading.Event()
        self.tcp_stands = threading.Event()
        """Set: nothing more is read of TCP, which stays open."""
        self.tcp_reset = threading.Event()
        """Set: TCP is reset at both ends."""
        if at is None:
            self._listener, self._udp = free_pair()
        else:
            self._listener = socket.create_server((at, server_port))
            self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        if mangle is not None:
            self._threads.append(threading.Thread(target=self._relay, daemon=True))
        else:
            self._udp.close()
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Middlebox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(WAIT_S)
        self._listener.close()
        self._udp.close()

    def _accept(self) -> None:
        while not self._stop.is_set():
            if not select.select([self._listener], [], [], 0.05)[0]:
                continue
            near, _ = self._listener.accept()
            far = socket.create_connection(self._server)
            thread = threading.Thread(target=self._carry, args=(near, far), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _carry(self, near: socket.socket, far: socket.socket) -> None:
        with near, far, contextlib.suppress(OSError):
            to = {near: far, far: near}
            while to and not self._stop.is_set():
                if self.tcp_reset.is_set():
                    for end in (near, far):
                        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    return
                if self.tcp_stands.is_set():
                    self._stop.wait(0.05)
                    continue
                for ready in select.select(list(to), [], [], 0.05)[0]:
                    data = ready.recv(1 << 16)
                    if data:
                        to[ready].sendall(data)
                    else:
                        to.pop(ready).shutdown(socket.SHUT_WR)

    def _relay(self) -> None:
        assert self._mangle is not None
        client: Any = None
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as far, contextlib.suppress(OSError):
            far.bind(("127.0.0.1", 0))
            while not self._stop.is_set():
                for ready in select.select([self._udp, far], [], [], 0.05)[0]:
                    data, source = ready.recvfrom(1 << 16)
                    if ready is self._udp:
                        client = source
                    for datagram in self._mangle(data, ready is self._udp):
                        if ready is self._udp:
                            far.sendto(datagram, self._server)
                        elif client is not None:
                            self._udp.sendto(datagram, client)


def free_pair() -> tuple[socket.socket, socket.socket]:
    """Sockets of TCP and UDP at one port that was free for both."""
    while True:
        listener = socket.create_server(("127.0.0.1", 0))
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            udp.bind(listener.getsockname())
            return listener, udp
        except OSError:
            listener.close()
            udp.close()
