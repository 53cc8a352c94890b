"""The probe engine from Python: over loopback, and between namespaces."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator

import pytest

from harness import WAIT_S, free_port, wait_until
from waystage._native import LossMeter, LossMeterError, LossStream


def loopback(port: int, rate_pps: int = 500) -> LossStream:
    return LossStream(source="127.0.0.1", target="127.0.0.1", port=port, rate_pps=rate_pps)


def test_what_is_sent_over_loopback_arrives() -> None:
    meter = LossMeter([loopback(free_port()), loopback(free_port())])
    assert meter.warm_up(WAIT_S) == []
    meter.start()
    wait_until(lambda: meter.totals()[1] > 100, what="the arrival of probes")
    sent, received = meter.totals()
    assert 0 < received <= sent
    report = meter.stop(drain_s=WAIT_S)
    assert [s.lost for s in report.streams] == [0, 0]
    assert all(s.received == s.sent > 0 for s in report.streams)
    assert report.latency_max_ns >= report.latency_p50_ns > 0
    assert report.streams[0].loss_runs == []


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"source": "here"}, "'here'|\"here\""),
        ({"target": "::1"}, "::1"),
    ],
)
def test_an_address_that_is_none_is_named(arguments: dict[str, str], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        LossStream(**{"source": "127.0.0.1", "target": "127.0.0.1", **arguments}, port=9, rate_pps=1)


def test_errors_name_the_stream_the_namespace_and_the_order() -> None:
    with pytest.raises(LossMeterError, match="stream 0: rate 0"):
        LossMeter([loopback(9, rate_pps=0)])
    absent = LossStream(
        source="127.0.0.1", target="127.0.0.1", port=9, rate_pps=1, source_namespace="waystage-absent"
    )
    with pytest.raises(LossMeterError, match="waystage-absent"):
        LossMeter([absent])
    meter = LossMeter([loopback(free_port())])
    with pytest.raises(LossMeterError, match="not running"):
        meter.stop()
    with pytest.raises(ValueError, match="number of seconds"):
        meter.warm_up(-1)


@pytest.fixture
def two_namespaces() -> Iterator[tuple[str, str]]:
    names = (f"wsprobe{os.getpid()}a", f"wsprobe{os.getpid()}b")
    setup = (
        f"set -e; ip netns add {names[0]}; ip netns add {names[1]}\n"
        f"ip link add wsp0 netns {names[0]} type veth peer name wsp0 netns {names[1]}\n"
        f"ip -n {names[0]} addr add 10.9.8.1/24 dev wsp0; ip -n {names[1]} addr add 10.9.8.2/24 dev wsp0\n"
        f"ip -n {names[0]} link set wsp0 up; ip -n {names[1]} link set wsp0 up\n"
    )
    try:
        subprocess.run(["sh", "-c", setup], check=True, capture_output=True)
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


@pytest.mark.lab
def test_streams_cross_namespaces_and_losses_are_seen(
    two_namespaces: tuple[str, str],
) -> None:
    a, b = two_namespaces
    here = os.stat("/proc/self/ns/net").st_ino

    def stream(port: int, dscp: int) -> LossStream:
        return LossStream(
            source="10.9.8.1",
            target="10.9.8.2",
            port=port,
            rate_pps=500,
            dscp=dscp,
            source_namespace=a,
            target_namespace=b,
        )

    meter = LossMeter([stream(7001, 0), stream(7002, 10)])
    assert os.stat("/proc/self/ns/net").st_ino == here
    assert meter.warm_up(WAIT_S) == []
    meter.start()
    for state, counted in (("up", 1), ("down", 0), ("up", 1)):
        subprocess.run(["ip", "-n", b, "link", "set", "wsp0", state], check=True, capture_output=True)
        # Probes of both streams are sent in each state, and arrive where the link is up.
        wanted = meter.totals()[counted] + 100
        wait_until(lambda: meter.totals()[counted] >= wanted, what=f"probes while it is {state}")  # noqa: B023
    report = meter.stop(drain_s=2)
    for found in report.streams:
        assert found.duplicated == 0
        assert 0 < found.lost < found.sent
        assert found.received + found.lost == found.sent
        assert sum(count for _, count in found.loss_runs) == found.lost
    assert (report.foreign, report.overflowed) == (0, 0)


@pytest.mark.lab
def test_streams_without_a_path_are_named_and_other_threads_run_meanwhile(
    two_namespaces: tuple[str, str],
) -> None:
    a, b = two_namespaces
    subprocess.run(["ip", "-n", b, "link", "set", "wsp0", "down"], check=True, capture_output=True)
    there = LossStream(source="127.0.0.1", target="127.0.0.1", port=free_port(), rate_pps=100)
    nowhere = LossStream(
        source="10.9.8.1",
        target="10.9.8.2",
        port=7003,
        rate_pps=100,
        source_namespace=a,
        target_namespace=b,
    )
    meter = LossMeter([there, nowhere])
    unreached: list[int] = []
    waiting = threading.Thread(target=lambda: unreached.extend(meter.warm_up(5)))
    waiting.start()
    counted = 0
    while waiting.is_alive():
        counted += 1
        time.sleep(0.01)
    assert unreached == [1]
    assert counted > 3  # the GIL is released while the engine waits
