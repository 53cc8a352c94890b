"""Programs talk through fixed ports: bytes, halves that are closed, resets, many at once."""

from __future__ import annotations

import hashlib
import os
import socket
import struct
import threading
import time

import pytest

from harness import wait_until
from proxy_support import Proxies, connect, echo, everything, listening, receive


def test_bytes_go_both_ways_and_are_counted(proxies: Proxies) -> None:
    proxies.serve()
    with listening(echo) as port:
        running = proxies.proxy("--forward", f"0:127.0.0.1:{port}")
        with connect(running.port("forward")) as connection:
            for size in (1, 1000, 300_000):
                data = os.urandom(size)
                sender = threading.Thread(target=connection.sendall, args=(data,))
                sender.start()
                assert receive(connection, size) == data
                sender.join()
        wait_until(lambda: " closed after " in running.log())
        told = running.end()
    assert [notice["event"] for notice in told] == ["session", "connection", "statistics"]
    assert told[0]["udp"] is True
    assert (told[1]["sent_bytes"], told[1]["received_bytes"]) == (301_001, 301_001)
    assert told[1]["target"] == f"127.0.0.1:{port}"
    assert told[2]["sent_bytes"] == 301_001
    wait_until(lambda: f"to 127.0.0.1:{port}: closed" in proxies.log())


def test_a_half_that_is_closed_is_closed_at_the_other_side(proxies: Proxies) -> None:
    def sum_of_all(connection: socket.socket) -> None:
        connection.sendall(hashlib.sha256(everything(connection)).digest())

    proxies.serve()
    with listening(sum_of_all) as port:
        running = proxies.proxy("--forward", f"0:127.0.0.1:{port}")
        with connect(running.port("forward")) as connection:
            data = os.urandom(100_000)
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            assert everything(connection) == hashlib.sha256(data).digest()


@pytest.mark.parametrize("resets", ["client", "server"])
def test_a_reset_is_a_reset_at_the_other_side(proxies: Proxies, resets: str) -> None:
    def reset(connection: socket.socket) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()

    seen: list[BaseException | bytes] = []

    def serve(connection: socket.socket) -> None:
        receive(connection, 1)
        if resets == "server":
            reset(connection)
            return
        connection.sendall(b"x")
        try:
            seen.append(connection.recv(1))
        except OSError as error:
            seen.append(error)

    proxies.serve()
    with listening(serve) as port:
        running = proxies.proxy("--forward", f"0:127.0.0.1:{port}")
        connection = connect(running.port("forward"))
        connection.sendall(b"a")
        if resets == "server":
            with pytest.raises(ConnectionResetError):
                connection.recv(1)
            connection.close()
        else:
            assert receive(connection, 1) == b"x"
            reset(connection)
            wait_until(lambda: bool(seen))
            assert isinstance(seen[0], ConnectionResetError)


def test_a_reader_that_stops_stops_its_writer_alone(proxies: Proxies) -> None:
    go = threading.Event()
    counted: list[int] = []

    def slow(connection: socket.socket) -> None:
        go.wait()
        counted.append(len(everything(connection)))

    # 16 MiB for all connections: one that stands still holds at most half of that at the peer.
    proxies.serve(top='memory = "16Mi"')
    with listening(slow) as stopped, listening(echo) as lively:
        running = proxies.proxy("--forward", f"0:127.0.0.1:{stopped}", "--forward", f"0:127.0.0.1:{lively}")
        first, second = running.ports["forward"]
        with connect(first) as writer, connect(second) as other:
            writer.setblocking(False)
            sent, quiet = 0, time.monotonic()
            while time.monotonic() - quiet < 1.5:
                try:
                    sent += writer.send(bytes(1 << 16))
                    quiet = time.monotonic()
                except BlockingIOError:
                    time.sleep(0.01)
                assert sent < 64 << 20
            other.sendall(b"still here")
            assert receive(other, 10) == b"still here"
            writer.setblocking(True)
            go.set()
            writer.shutdown(socket.SHUT_WR)
            assert everything(writer) == b""
    assert counted == [sent]


def test_two_hundred_connections_at_once(proxies: Proxies) -> None:
    proxies.serve()
    with listening(echo) as port:
        running = proxies.proxy("--forward", f"0:127.0.0.1:{port}")
        connections = [connect(running.port("forward")) for _ in range(200)]
        data = [os.urandom(20_000) for _ in connections]
        for connection, bytes_ in zip(connections, data, strict=True):
            connection.sendall(bytes_)
        for connection, bytes_ in zip(connections, data, strict=True):
            assert receive(connection, len(bytes_)) == bytes_
        for connection in connections:
            connection.close()
        wait_until(lambda: running.log().count(" closed after ") == 200)
        assert running.end()[-1]["connections"] == 200


def test_programs_at_the_server_reach_this_side(proxies: Proxies) -> None:
    proxies.serve()
    with listening(echo) as port:
        running = proxies.proxy("--reverse", f"0:127.0.0.1:{port}")
        with connect(running.port("reverse")) as connection:
            connection.sendall(b"hello")
            connection.shutdown(socket.SHUT_WR)
            assert everything(connection) == b"hello"
