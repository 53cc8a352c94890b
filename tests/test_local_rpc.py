"""A local server knows its peers, and no peer can hurt another."""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import WAIT_S, open_to_others, wait_until
from waystage.local_rpc import Bounds, Connection, LocalClient, LocalRpcError, LocalServer


class Echo:
    """Answers each line with the sender's uid and the line."""

    def __init__(self) -> None:
        self.events: queue.Queue[tuple[str, int]] = queue.Queue()

    def opened(self, connection: Connection) -> None:
        self.events.put(("opened", connection.peer.uid))

    def line(self, connection: Connection, data: bytes) -> None:
        if data == b"fail":
            raise RuntimeError("told to")
        if data == b"flood":
            for _ in range(1000):
                connection.send(b"x" * 65536)
            return
        connection.send(b"%d:%s" % (connection.peer.uid, data))

    def closed(self, connection: Connection) -> None:
        self.events.put(("closed", connection.peer.uid))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rpc.sock"


@pytest.fixture
def server(path: Path) -> Iterator[LocalServer]:
    with LocalServer(path, Echo(), bounds=Bounds(line_bytes=1000, unread_bytes=1 << 20)) as running:
        yield running


def ask(client: LocalClient, line: bytes) -> bytes | None:
    client.send(line)
    return client.receive(WAIT_S)


def ended(client: LocalClient) -> bool:
    try:
        while client.receive(WAIT_S) is not None:
            pass
    except (EOFError, ConnectionResetError):
        return True
    return False


def test_a_line_comes_with_the_user_of_its_sender(server: LocalServer, path: Path) -> None:
    with LocalClient(path) as client:
        assert ask(client, b"hello") == b"%d:hello" % os.geteuid()
        client.send(b"one\ntwo")
        assert (client.receive(WAIT_S), client.receive(WAIT_S)) == (
            b"%d:one" % os.geteuid(),
            b"%d:two" % os.geteuid(),
        )


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_another_user_is_seen_as_such(server: LocalServer, path: Path) -> None:
    open_to_others(path.parent)
    code = (
        "import os,socket,sys; os.setgid(65534); os.setuid(65534); s=socket.socket(socket.AF_UNIX);"
        "s.connect(sys.argv[1]); s.sendall(b'me\\n'); print(s.recv(100).decode().strip())"
    )
    ran = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)
    assert ran.stdout.strip() == "65534:me", ran.stderr


@pytest.mark.parametrize(
    "attack", [b"x" * 5000, b"x" * 2000 + b"\n", b"fail\n"], ids=["endless", "long", "fails"]
)
def test_an_attack_ends_its_own_connection_alone(server: LocalServer, path: Path, attack: bytes) -> None:
    with LocalClient(path) as good, LocalClient(path) as bad:
        assert ask(good, b"a") is not None
        bad._sock.sendall(attack)
        assert ended(bad)
        assert ask(good, b"b") is not None


def test_a_client_that_does_not_read_is_disconnected(server: LocalServer, path: Path) -> None:
    with LocalClient(path) as bad, LocalClient(path) as good:
        bad.send(b"flood")
        handler = server.handler
        assert isinstance(handler, Echo)
        seen = [handler.events.get(timeout=WAIT_S)[0] for _ in range(3)]
        assert seen == ["opened", "opened", "closed"]
        assert ask(good, b"still") is not None


def test_connections_are_counted_and_freed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with LocalServer(path, Echo(), bounds=Bounds(connections=2)):
        with LocalClient(path) as one, LocalClient(path) as two, LocalClient(path) as three:
            assert ask(one, b"a") and ask(two, b"b")
            assert ended(three)

        def is_freed() -> bool:
            with LocalClient(path) as again, contextlib.suppress(EOFError, OSError):
                return ask(again, b"c") is not None
            return False

        wait_until(is_freed, what="a free connection")


def test_a_second_server_is_refused_and_a_dead_ones_socket_is_replaced(
    server: LocalServer, path: Path
) -> None:
    with pytest.raises(LocalRpcError, match="another process serves it already"):
        LocalServer(path, Echo()).start()
    dead = path.with_name("dead.sock")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(dead))
    with LocalServer(dead, Echo()), LocalClient(dead) as client:
        assert ask(client, b"x") is not None
    assert not dead.exists()


def test_unusable_paths_are_named(tmp_path: Path) -> None:
    with pytest.raises(LocalRpcError, match="make its folder"):
        LocalServer(tmp_path / "none" / "rpc.sock", Echo()).start()
    with pytest.raises(LocalRpcError, match="shorter"):
        LocalServer(tmp_path / ("x" * 120), Echo()).start()
    open_folder = tmp_path / "open"
    open_folder.mkdir()
    open_folder.chmod(0o777)
    with pytest.raises(LocalRpcError, match="chmod go-w"):
        LocalServer(open_folder / "rpc.sock", Echo()).start()
    with pytest.raises(LocalRpcError, match="is the service running"):
        LocalClient(tmp_path / "absent.sock")


def test_a_link_that_the_folders_owner_puts_in_the_sockets_place_changes_no_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = path.with_name("victim")
    victim.touch(0o600)
    bind = socket.socket.bind

    class Swapped(socket.socket):
        def bind(self, address: str) -> None:  # type: ignore[override]
            bind(self, address)
            path.rename(path.with_name("aside"))
            path.symlink_to(victim)

    monkeypatch.setattr(socket, "socket", Swapped)
    with LocalServer(path, Echo()):
        assert victim.stat().st_mode & 0o777 == 0o600
        assert path.with_name("aside").stat().st_mode & 0o777 == 0o666


def test_what_a_client_sent_before_it_left_is_delivered_though_its_answer_fails(path: Path) -> None:
    received: list[bytes] = []
    may_answer, closed = threading.Event(), threading.Event()

    class Slow(Echo):
        def line(self, connection: Connection, data: bytes) -> None:
            received.append(data)
            assert may_answer.wait(WAIT_S)
            connection.send(b"accepted")

        def closed(self, connection: Connection) -> None:
            closed.set()

    with LocalServer(path, Slow()):
        with LocalClient(path) as client:
            client.send(b"start")
            wait_until(lambda: received, what="the first line")
            client.send(b"progress")
            client.send(b"finish")
        may_answer.set()
        assert closed.wait(WAIT_S)
    assert received == [b"start", b"progress", b"finish"]
