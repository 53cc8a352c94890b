"""Floods of handshakes and datagrams: bounded work and memory, and who has a key still gets in."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from remote_copy_support import Site

FLOOD_S = 3.0
"""However fast the machine floods in it, the server does a bounded part of what it is asked for."""

SOURCES = 40
LINGER_AT_ONCE = struct.pack("ii", 1, 0)


class Flood:
    """A thread that does something as fast as it can, from many loopback addresses, until it is stopped."""

    def __init__(self, attack: Callable[[str], None]) -> None:
        self.count = 0
        self._attack, self._stop = attack, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(OSError):
                self._attack(f"127.0.{1 + self.count % 2}.{1 + self.count % SOURCES}")
            self.count += 1

    def end(self) -> None:
        self._stop.set()
        self._thread.join(30)


@contextlib.contextmanager
def flooding(*attacks: Callable[[str], None]) -> Iterator[list[Flood]]:
    floods = [Flood(attack) for attack in attacks]
    try:
        yield floods
    finally:
        for flood in floods:
            flood.end()


def status(pid: int, key: str) -> int:
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(next(line for line in text.splitlines() if line.startswith(f"{key}:")).split()[1])


def test_floods_on_both_ports_leave_room_for_those_with_a_key(site: Site, tmp_path: Path) -> None:
    chance = random.Random(1)
    (tmp_path / "file").write_bytes(chance.randbytes(1 << 20))
    site.serve()
    assert site.process is not None
    pid = site.process.pid
    held: list[socket.socket] = []

    def knock(source: str) -> None:
        """Connects, says what begins no handshake or nothing, and goes or stays."""
        stream = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_AT_ONCE)
        stream.bind((source, 0))
        stream.connect(("127.0.0.1", site.port))
        if chance.random() < 0.2:
            held.append(stream)
            if len(held) > 400:
                held.pop(0).close()
            return
        if chance.random() < 0.5:
            stream.send(chance.randbytes(200))
        stream.close()

    datagrams = {
        f"127.0.{1 + number % 2}.{1 + number % SOURCES}": socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        for number in range(2 * SOURCES)
    }
    for source, sender in datagrams.items():
        sender.bind((source, 0))

    def spray(source: str) -> None:
        """Ten datagrams that look like packets of connections that are not there."""
        for _ in range(10):
            length = chance.choice((17, 60, 1200))
            datagrams[source].sendto(b"\x11" + chance.randbytes(length), ("127.0.0.1", site.port))

    before = status(pid, "VmRSS")
    try:
        with flooding(knock, spray) as floods:
            begun = time.monotonic()
            ran = site.copy(tmp_path / "file", f"127.0.0.1:{site.data}")
            most = [status(pid, "Threads")]
            while time.monotonic() - begun < FLOOD_S or any(flood.count < 200 for flood in floods):
                most.append(status(pid, "Threads"))
                time.sleep(0.05)
            again = site.copy(tmp_path / "file", f"127.0.0.1:{site.data}", "--update", "always")
            most.append(status(pid, "Threads"))
    finally:
        for each in (*held, *datagrams.values()):
            each.close()
    for done in (ran, again):
        # By UDP or, where a busy machine took too long over it, by TCP.
        assert done.code == 0, done
    assert (site.data / "file").read_bytes() == (tmp_path / "file").read_bytes()
    # 64 handshakes at a time, a thread each, and what two copies and the server itself have.
    assert max(most) < 64 + 40, max(most)
    assert status(pid, "VmRSS") - before < 128 << 10, "KiB"
    assert site.end() == 0
    log = site.log()
    assert "turned away before their handshake" in log
    assert log.count("\n") < 300, "what is many is counted"
    assert site.client_key not in log
    assert os.stat(site.folder / "serve.log").st_size < 100_000
