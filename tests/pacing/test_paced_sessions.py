"""Proxy sessions and probes obey while they run."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness import WAIT_S
from pacing_support import moves_between, stands_still, until_moving
from remote_copy_support import Site, peer, server_here
from waystage._native import WanError, WanProbe, WanProxy, WanServer
from waystage.native_options.proxies import ProxyOptions
from waystage.native_options.servers import ServerUser

MIB = 1 << 20
SIZE = 48 * MIB


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.close()


@contextmanager
def serving(site: Site) -> Iterator[WanServer]:
    user = ServerUser(name="ada", keys=[site.client_key], reach=["allow 127.0.0.0/8"], probe=True)
    with server_here(site, users=[user], probe_rate_bytes_per_s=4 * MIB, probe_s=60.0) as server:
        yield server


@contextmanager
def source_of_bytes() -> Iterator[int]:
    """A port that sends SIZE bytes to the first that connects."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def send() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(bytes(SIZE))

        thread = threading.Thread(target=send, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(WAIT_S)


@contextmanager
def fetching(site: Site, udp: bool) -> Iterator[tuple[WanProxy, list[int]]]:
    """A proxy through which SIZE bytes come from the server's host; how many have come."""
    with source_of_bytes() as port:
        options = ProxyOptions(listeners=[("forward", "127.0.0.1:0", f"127.0.0.1:{port}")])
        with WanProxy(peer(site, udp_wait_s=30.0 if udp else None), options) as proxy:
            host, _, number = proxy.listening[0].rpartition(":")
            come = [0]

            def receive() -> None:
                with socket.create_connection((host, int(number)), WAIT_S) as connection:
                    while data := connection.recv(1 << 16):
                        come[0] += len(data)

            thread = threading.Thread(target=receive, daemon=True)
            proxy.set_rate(4 * MIB)
            thread.start()
            yield proxy, come
            thread.join(WAIT_S)
            assert come[0] == SIZE


@pytest.mark.parametrize("udp", [True, False])
def test_a_session_holds_a_rate_and_a_pause_of_what_the_peer_sends(site: Site, udp: bool) -> None:
    with serving(site), fetching(site, udp) as (proxy, come):
        assert proxy.controls == ("rate", "pause")
        until_moving(proxy, MIB)
        moves_between(proxy, 0.3 * 4 * MIB, 1.8 * 4 * MIB, 1.5)
        proxy.pause()
        assert stands_still(proxy)
        assert proxy.flow().limited_by == "paused" and come[0] < SIZE
        proxy.set_rate(None)
        proxy.resume()


def test_a_server_pauses_the_sessions_of_proxies(site: Site) -> None:
    with serving(site) as server, fetching(site, udp=True) as (proxy, _):
        until_moving(proxy, MIB)
        server.pause()
        assert stands_still(proxy)
        server.resume()
        proxy.set_rate(None)


def test_a_probe_pauses_between_trains_and_keeps_to_its_rate(site: Site) -> None:
    train = {"packets": 20, "bytes": 1000, "checksum": False, "quiet_s": 0.2}
    with serving(site), WanProbe(peer(site)) as probe:
        assert probe.controls == ("rate", "pause") and probe.most_rate_bytes_per_s == 4 * MIB
        probe.reach(30.0)
        probe.set_rate(MIB)
        assert probe.most_rate_bytes_per_s == MIB
        with pytest.raises(WanError, match="above the rate that is granted to the probe"):
            probe.train(True, interval_ns=10_000, **train)  # type: ignore[arg-type]
        probe.pause()
        ended = threading.Event()

        def measure() -> None:
            probe.train(True, interval_ns=2_000_000, **train)  # type: ignore[arg-type]
            ended.set()

        thread = threading.Thread(target=measure, daemon=True)
        thread.start()
        assert not ended.wait(0.5)
        probe.resume()
        assert ended.wait(WAIT_S)
        thread.join(WAIT_S)
        assert probe.flow().bytes_done == 20_000
        probe.pause()
        cancelled = threading.Event()

        def wait_for_echoes() -> None:
            with pytest.raises(WanError):
                probe.echoes(5, 0.01, 1.0)
            cancelled.set()

        waiting = threading.Thread(target=wait_for_echoes, daemon=True)
        waiting.start()
        time.sleep(0.2)
        probe.cancel()
        waiting.join(WAIT_S)
        assert cancelled.is_set()
