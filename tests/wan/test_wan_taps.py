"""The taps of `bench probe`: what an echo did on the path, from what passed its ends."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from types import ModuleType

import pytest

from harness import bench_module
from wan_support import Up, ping

MS = 10**6


@pytest.fixture(scope="module")
def taps() -> ModuleType:
    return bench_module("_wan_taps")


def packet(protocol: int, body: bytes) -> bytes:
    return bytes([0x45, *bytes(8), protocol, *bytes(10)]) + body


def icmp(answer: bool, number: int) -> bytes:
    return packet(1, struct.pack(">BBHHH", 0 if answer else 8, 0, 0, 77, number) + bytes(56))


def probe(answer: bool, sent_at: int) -> bytes:
    times = (5, sent_at) if answer else (sent_at, 0)
    return packet(17, bytes(8) + struct.pack(">BIB18xQQQI", 0x21, 9, 1 + answer, *times, 0, 0))


@pytest.mark.parametrize("echo", [icmp, probe])
def test_waiting_at_either_host_is_no_part_of_the_path(
    taps: ModuleType, echo: Callable[[bool, int], bytes]
) -> None:
    left = [(0, True, echo(False, 1)), (13 * MS, False, echo(True, 1)), (20 * MS, True, echo(False, 2))]
    # 3 ms of the 13 pass at right; the second is lost on the way back.
    right = [
        (4 * MS, False, echo(False, 1)),
        (7 * MS, True, echo(True, 1)),
        (24 * MS, False, echo(False, 2)),
        (25 * MS, True, echo(True, 2)),
    ]
    assert taps.round_trips(left, right) == [10.0]


def test_what_is_no_echo_is_passed_over(taps: ModuleType) -> None:
    others = [
        b"",
        b"\x60" + bytes(60),
        packet(6, bytes(60)),
        packet(1, b""),
        packet(17, b"\x21"),
        bytes([0x4F] * 28),
    ]
    seen = [(1, leaves, other) for other in others for leaves in (True, False)]
    assert taps.round_trips(seen, seen) == []


def test_what_a_tap_says_is_read_as_it_was_written(taps: ModuleType) -> None:
    seen = [(7, True, b"abc"), (2**60, False, b"")]
    said = b"".join(taps.RECORD.pack(when, leaves, len(one)) + one for when, leaves, one in seen)
    assert list(taps.records(said)) == seen


@pytest.mark.lab
def test_every_echo_is_seen_at_both_ends_and_is_quicker_than_ping_says(taps: ModuleType, up: Up) -> None:
    path = up(delay="20ms")
    with taps.tapped(path) as seen:
        status, out = ping(path, "-c", "5", "-i", "0.05")
    assert status == 0, out
    told = sorted(float(t) for t in re.findall(r"time=([\d.]+) ms", out))
    assert len(seen.on_path_ms) == len(told) == 5
    # ping prints three digits of what it measured from before it sent.
    assert all(40.0 <= one <= most + 0.1 for one, most in zip(sorted(seen.on_path_ms), told, strict=True))
