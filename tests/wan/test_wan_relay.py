"""The relay of UDP datagrams: no root, real sockets, the same path."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from harness import Waystage, command, wait_until
from waystage.worlds.lab import wan

WAIT_S = 60.0


@contextmanager
def relaying(
    name: str, target: socket.socket, *options: str
) -> Iterator[tuple[tuple[str, int], Callable[[], dict[str, Any]]]]:
    """A relay to `target`: where it listens, and what ends it and gives its final counts."""
    to = f"127.0.0.1:{target.getsockname()[1]}"
    words = ["lab", "wan", "relay", "--listen", "127.0.0.1:0", "--to", to, "--name", name, "--json", *options]
    process = subprocess.Popen(command(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def end() -> dict[str, Any]:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=WAIT_S)
        assert process.returncode in (0, 7), err
        return dict(json.loads(out))

    try:
        assert process.stderr is not None
        found = re.search(r"listens at 127\.0\.0\.1:(\d+) ", process.stderr.readline())
        assert found is not None
        yield ("127.0.0.1", int(found[1])), end
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def target() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listening:
        listening.bind(("127.0.0.1", 0))
        listening.settimeout(WAIT_S)
        yield listening


@pytest.fixture
def client() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sending:
        sending.settimeout(WAIT_S)
        yield sending


def waiting(target: socket.socket) -> list[bytes]:
    """The datagrams that have come."""
    found = []
    while select.select([target], [], [], 0)[0]:
        found.append(target.recv(100))
    return found


@pytest.fixture
def called() -> Iterator[str]:
    """A name of this test's own, of which nothing is left afterwards."""
    chosen = f"r{os.getpid()}_{time.monotonic_ns() % 100_000}"
    yield chosen
    wan.down(chosen)


def test_datagrams_go_there_and_answers_find_back(
    target: socket.socket, client: socket.socket, called: str
) -> None:
    with (
        relaying(called, target, "--delay", "10ms") as (where, end),
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as second,
    ):
        second.settimeout(WAIT_S)
        began = time.monotonic()
        for sender, word in ((client, b"one"), (second, b"two")):
            sender.sendto(word, where)
        sources = {}
        for _ in range(2):
            word, source = target.recvfrom(100)
            sources[word] = source
        assert sources[b"one"] != sources[b"two"], "each client has its own socket"
        for word, source in sources.items():
            target.sendto(word.upper(), source)
        assert (client.recv(100), second.recv(100)) == (b"ONE", b"TWO")
        assert time.monotonic() - began >= 0.020
        status = wan.status(called)
        assert status["kind"] == "relay" and status["listens"] == f"127.0.0.1:{where[1]}"
        found = end()
    assert [d["out"] for d in found["directions"].values()] == [2, 2]
    assert found["directions"]["forward"]["in_bytes"] == 2 * (3 + 28), "headers count"
    assert called not in [resources.name for resources, _ in wan.known()]


def test_losses_copies_and_damage_are_counted(
    target: socket.socket, client: socket.socket, waystage: Waystage, called: str
) -> None:
    count = 500
    with relaying(called, target, "--loss", "10%", "--duplicate", "5%", "--corrupt", "5%", "--seed", "8") as (
        where,
        end,
    ):
        came: list[bytes] = []

        def carried(sent: int) -> bool:
            came.extend(waiting(target))
            forward = wan.status(called)["directions"]["forward"]
            return forward["in"] == sent and not forward["under_way"]

        for number in range(count):
            client.sendto(number.to_bytes(4, "big") * 10, where)
            if number % 20 == 19:  # the buffers of the sockets are small ones
                wait_until(lambda sent=number + 1: carried(sent), what="the way of twenty datagrams")  # type: ignore[misc]
        d = wan.status(called)["directions"]["forward"]
        came += waiting(target)
        assert d["overflow"] == 0
        assert waystage("lab", "wan", "set", called, "--loss", "100%", "-q").code == 0
        client.sendto(b"nobody", where)
        wait_until(
            lambda: wan.status(called)["directions"]["forward"]["in"] > count, what="the last datagram"
        )
        found = end()["directions"]["forward"]
    assert found["lost_random"] == d["lost_random"] + 1
    damaged = [data for data in came if data != data[:4] * 10 or int.from_bytes(data[:4], "big") >= count]
    assert len(damaged) == d["corrupted"] > 0
    assert len(came) == count - d["lost_random"] + d["duplicated"]
    assert abs(d["lost_random"] - count / 10) <= 5 * (count * 0.09) ** 0.5


def test_down_ends_a_relay_and_a_dead_one_gives_its_name_back(
    target: socket.socket, waystage: Waystage, called: str
) -> None:
    with relaying(called, target):
        refused = waystage(
            "lab", "wan", "relay", "--listen", "127.0.0.1:0", "--to", "127.0.0.1:9", "--name", called
        )
        assert (refused.code, "there already" in refused.err) == (6, True)
        assert waystage("lab", "wan", "down", called, "--json").json["removed"] is True
    with relaying(called, target):
        pass  # killed: its folder stays
    assert called in [resources.name for resources, _ in wan.known()]
    with relaying(called, target) as (_, end):
        end()
    assert called not in [resources.name for resources, _ in wan.known()]
