"""Sessions: over lossy UDP, without UDP, lost and made anew, drained."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import socket
import subprocess
import threading
import time

import pytest

from harness import WAIT_S, command, free_port, halt, wait_until
from proxy_support import Proxies, Running, connect, echo, everything, listening, receive, socks
from remote_copy_support import Middlebox


def fetch(port: int, size: int) -> None:
    """Bytes there and back, through a new connection."""
    data = os.urandom(size)
    with connect(port) as connection:
        sender = threading.Thread(target=connection.sendall, args=(data,))
        sender.start()
        assert hashlib.sha256(receive(connection, size)).digest() == hashlib.sha256(data).digest()
        sender.join()


def test_bytes_are_the_same_over_a_path_that_loses_and_reorders(proxies: Proxies) -> None:
    chance = random.Random(5)
    held: list[bytes] = []

    def mangle(datagram: bytes, to_server: bool) -> list[bytes]:
        if chance.random() < 0.1:
            return []
        if chance.random() < 0.1 and len(held) < 5:
            held.append(datagram)
            return []
        late = [held.pop()] if held and to_server and chance.random() < 0.5 else []
        return [datagram, *late]

    proxies.serve()
    with Middlebox(proxies.port, mangle) as box:
        with listening(echo) as port:
            running = proxies.proxy("--forward", f"0:127.0.0.1:{port}", port=box.port)
            threads = [
                threading.Thread(target=fetch, args=(running.port("forward"), 300_000)) for _ in range(4)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(WAIT_S)
            told = running.end()
    assert [notice["end"] for notice in told if notice["event"] == "connection"] == ["closed"] * 4
    assert told[-1]["connection"]["lost_packets"] > 0


def test_bytes_are_the_same_over_the_relay_of_an_emulated_path(proxies: Proxies) -> None:
    proxies.serve()
    # It carries TCP; its port for UDP is the relay's.
    box = Middlebox(proxies.port)
    path = ("--delay", "5ms", "--jitter", "1ms", "--loss", "5%", "--rate", "100Mbit", "--seed", "3")
    ends = ("--listen", f"127.0.0.1:{box.port}", "--to", f"127.0.0.1:{proxies.port}")
    relay = subprocess.Popen(
        command("lab", "wan", "relay", *ends, "--name", f"proxy{os.getpid()}", *path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    proxies.started.append(relay)
    try:
        assert relay.stderr is not None and b"listens at" in relay.stderr.readline()
        with listening(echo) as port:
            running = proxies.proxy("--forward", f"0:127.0.0.1:{port}", port=box.port)
            fetch(running.port("forward"), 3_000_000)
            told = running.end()
        relay.send_signal(signal.SIGINT)
        relay.communicate(timeout=WAIT_S)
    finally:
        box.close()
    assert told[0]["udp"] is True
    assert told[-1]["connection"]["lost_packets"] > 0
    assert told[1]["end"] == "closed"


def test_where_udp_is_blocked_it_goes_over_tcp_and_says_so(proxies: Proxies) -> None:
    proxies.serve()
    with Middlebox(proxies.port) as box:
        with listening(echo) as port:
            running = proxies.proxy("--forward", f"0:127.0.0.1:{port}", "--udp-wait", "0.3", port=box.port)
            for _ in range(3):
                fetch(running.port("forward"), 2_000_000)
            told = running.end()
    assert told[0]["udp"] is False
    assert "nothing came back over UDP" in told[0]["notes"][0]
    assert told[-1]["connection"]["udp"] == 0


def test_after_the_server_was_killed_new_connections_work(proxies: Proxies) -> None:
    proxies.serve()
    with listening(echo) as port:
        running = proxies.proxy("--forward", f"0:127.0.0.1:{port}", "--wait", str(WAIT_S))
        old = connect(running.port("forward"))
        old.sendall(b"x")
        assert receive(old, 1) == b"x"
        proxies.end(signal.SIGKILL)
        with pytest.raises(ConnectionResetError):
            old.recv(1)
        old.close()
        # It is taken, and waits for the next session.
        waiting = connect(running.port("forward"))
        waiting.sendall(b"y")
        proxies.serve()
        assert receive(waiting, 1) == b"y"
        waiting.close()
        fetch(running.port("forward"), 100_000)
        told = running.end()
    assert told[-1]["sessions"] == 2 and told[-1]["lost"] == 1
    assert any(notice["event"] == "lost" for notice in told)


def test_a_client_that_waits_too_long_for_a_session_is_refused(proxies: Proxies) -> None:
    proxies.serve()
    running = proxies.proxy("--socks", "0", "--wait", "0.5")
    proxies.end(signal.SIGKILL)
    wait_until(lambda: "no session" in running.log())
    connection, code = socks(running.port("socks"), "127.0.0.1", 9)
    connection.close()
    assert code == 3


@pytest.mark.parametrize("who", ["proxy", "server"])
def test_a_signal_lets_connections_end(proxies: Proxies, who: str) -> None:
    proxies.serve()
    with listening(echo) as port:
        running = proxies.proxy("--forward", f"0:127.0.0.1:{port}")
        connection = connect(running.port("forward"))
        connection.sendall(b"before")
        assert receive(connection, 6) == b"before"
        process = running.process if who == "proxy" else proxies.process
        assert process is not None
        process.send_signal(signal.SIGTERM)
        if who == "proxy":
            refused(running)
        else:
            time.sleep(0.5)
        connection.sendall(b"after")
        connection.shutdown(socket.SHUT_WR)
        assert everything(connection) == b"after"
        connection.close()
        process.communicate(timeout=WAIT_S)
        assert process.returncode == 0


def refused(running: Running) -> None:
    """Wait until no client is accepted any more."""

    def closed() -> bool:
        try:
            connect(running.port("forward")).close()
        except ConnectionRefusedError:
            return True
        return False

    wait_until(closed)


def test_statistics_are_printed_when_asked_for(proxies: Proxies) -> None:
    proxies.serve()
    running = proxies.proxy("--socks", "0")
    running.process.send_signal(signal.SIGUSR1)
    assert running.process.stdout is not None
    while b'"statistics"' not in running.process.stdout.readline():
        assert running.process.poll() is None


def test_a_server_that_is_not_there_is_named(proxies: Proxies) -> None:
    port = free_port()
    done = proxies.run("--socks", "0", port=port)
    assert done.code == 1 and f"cannot be reached at 127.0.0.1:{port}" in done.err


def test_a_connection_that_was_only_asked_for_waits_for_the_next_session(proxies: Proxies) -> None:
    """As that of a program which connects while the proxy has not noticed yet that the server is gone."""
    proxies.serve()
    with listening(echo) as port:
        running = proxies.proxy("--forward", f"0:127.0.0.1:{port}", "--wait", str(WAIT_S))
        server = proxies.process
        assert server is not None
        halt(server.pid)
        with connect(running.port("forward")) as connection:
            connection.sendall(b"x")
            # The proxy has asked the server for it, which does not answer.
            time.sleep(0.5)
            proxies.end(signal.SIGKILL)
            proxies.serve()
            assert receive(connection, 1) == b"x"
        running.end()
