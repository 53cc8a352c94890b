"""Copies and proxies go on where the server noticed the loss first, and where it turned them away before it said a word."""

from __future__ import annotations

import random
import select
import signal
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from copying_trees import snapshot
from harness import WAIT_S, command, wait_until
from remote_copy_support import Site, ended_json, parts_written

PART = 4 << 20


def a_tree(folder: Path) -> Path:
    tree = folder / "tree"
    tree.mkdir()
    (tree / "large").write_bytes(random.Random(7).randbytes(8 * PART))
    (tree / "small").write_bytes(b"small")
    return tree


def test_a_copy_goes_on_after_the_server_said_that_it_gives_up(site: Site, tmp_path: Path) -> None:
    """As where the server lost sight of a client that was stopped: its last words tell the client that it is over."""
    tree = a_tree(tmp_path)
    site.serve(top="drain_s = 1")
    process = site.begin(
        tree, f"127.0.0.1:{site.data}/copy", "--bandwidth-limit", "4M", "--retry-for", str(WAIT_S)
    )
    journal = site.data / "copy/.waystage-copy/journal"
    wait_until(lambda: parts_written(journal) >= 2, process)
    # After a second it ends its sessions, each with a verdict.
    assert site.end() == 0
    site.serve()
    value = ended_json(process)
    assert process.returncode == 0, value
    assert snapshot(site.data / "copy") == snapshot(tree)
    assert value["counts"]["resumed_bytes"] >= 2 * PART


def test_without_retry_for_that_is_said_and_how_to_go_on(site: Site, tmp_path: Path) -> None:
    tree = a_tree(tmp_path)
    site.serve(top="drain_s = 1")
    process = site.begin(tree, f"127.0.0.1:{site.data}/copy", "--bandwidth-limit", "4M")
    wait_until(lambda: parts_written(site.data / "copy/.waystage-copy/journal") >= 1, process)
    assert site.end() == 0
    said = ended_json(process)
    assert process.returncode == 1 and "goes on where it stopped" in said["error"], said


AT_ONCE, AFTER_HELLO, AFTER_TLS = range(3)
"""When a connection is turned away: as it is taken, when the client speaks, when it speaks after the server has."""


@dataclass
class Gate:
    """In front of a server: turns the first connections away, each at its own moment; others pass."""

    server_port: int
    turned_away: list[int]
    port: int = 0
    taken: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)

    def run(self, listener: socket.socket) -> None:
        threads = []
        while not self._stop.is_set():
            if select.select([listener], [], [], 0.05)[0]:
                near, _ = listener.accept()
                moment = self.turned_away[self.taken] if self.taken < len(self.turned_away) else None
                self.taken += 1
                threads.append(threading.Thread(target=self._carry, args=(near, moment), daemon=True))
                threads[-1].start()
        for thread in threads:
            thread.join(WAIT_S)

    def stop(self) -> None:
        self._stop.set()

    def _carry(self, near: socket.socket, moment: int | None) -> None:
        with near, socket.create_connection(("127.0.0.1", self.server_port)) as far:
            answered = False
            while moment != AT_ONCE and not self._stop.is_set():
                for ready in select.select([near, far], [], [], 0.05)[0]:
                    if ready is near and (moment == AFTER_HELLO or (moment == AFTER_TLS and answered)):
                        return self._reset(near)
                    try:
                        data = ready.recv(1 << 16)
                        (far if ready is near else near).sendall(data)
                    except OSError:
                        return None
                    if not data:
                        return None
                    answered = answered or ready is far
            return self._reset(near)

    def _reset(self, near: socket.socket) -> None:
        """As a server does it."""
        near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@contextmanager
def gate(server_port: int, *turned_away: int) -> Iterator[Gate]:
    found = Gate(server_port, list(turned_away))
    with socket.create_server(("127.0.0.1", 0), backlog=1000) as listener:
        found.port = listener.getsockname()[1]
        thread = threading.Thread(target=found.run, args=(listener,), daemon=True)
        thread.start()
        try:
            yield found
        finally:
            found.stop()
            thread.join(WAIT_S)


@pytest.mark.parametrize("way", ["push", "pull"])
def test_a_copy_that_is_turned_away_tries_again(site: Site, tmp_path: Path, way: str) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "file").write_bytes(b"x" * 100_000)
    site.serve()
    (site.data / "there").mkdir()
    (site.data / "there/file").write_bytes(b"y" * 100_000)
    with gate(site.port, AT_ONCE, AFTER_HELLO, AFTER_TLS) as before:
        far = f"127.0.0.1:{site.data}"
        ends = (tree, f"{far}/copy") if way == "push" else (f"{far}/there", tmp_path / "copy")
        site.copy(*ends, "--udp-wait", "0", port=before.port).expect()
        assert before.taken == 4
    copied = site.data / "copy" if way == "push" else tmp_path / "copy"
    assert (copied / "file").stat().st_size == 100_000


def test_a_copy_that_is_always_turned_away_says_so_after_six_tries(site: Site, tmp_path: Path) -> None:
    site.serve()
    with gate(site.port, *[AT_ONCE] * 20) as before:
        ran = site.copy(tmp_path, f"127.0.0.1:{site.data}/copy", "--udp-wait", "0", port=before.port)
        assert ran.code == 1 and "turned away 6 connections in a row" in ran.json["error"], ran
        assert before.taken == 6


def test_a_server_that_does_not_listen_is_not_waited_for(site: Site, tmp_path: Path) -> None:
    with socket.socket() as held:  # bound and no listener: no other process takes the port meanwhile
        held.bind(("127.0.0.1", 0))
        ran = site.copy(tmp_path, f"127.0.0.1:{site.data}", port=held.getsockname()[1])
    assert ran.code == 1 and "is `waystage serve` running there" in ran.json["error"], ran


def test_a_proxy_that_is_turned_away_tries_again(site: Site) -> None:
    site.serve()
    ready = site.folder / "proxied"
    with gate(site.port, AT_ONCE, AFTER_HELLO, AFTER_TLS) as before:
        words = (
            "proxy",
            "127.0.0.1",
            "--socks",
            "0",
            "--port",
            before.port,
            "--udp-wait",
            "0",
            "--ready-file",
            ready,
        )
        trusted = ("--server-key", site.server_key, "--identity", site.folder / "client.key")
        process = subprocess.Popen(
            command(*words, *trusted), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=site.environment()
        )
        site.started.append(process)
        wait_until(ready.exists, process)
        assert before.taken == 4
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=WAIT_S)
        assert process.returncode == 0
