"""What becomes of a copy whose TCP connection fails while packets go on."""

from __future__ import annotations

import random
import signal
from pathlib import Path
from subprocess import Popen

import pytest

from harness import wait_until
from remote_copy_support import Mangle, Middlebox, Site, ended_json, parts_written

PART = 4 << 20


def through(data: bytes, to_server: bool) -> list[bytes]:
    return [data]


def in_bursts(begin: float, end: float) -> Mangle:
    """Gilbert and Elliott: a bad spell begins and ends with these probabilities, packet by packet, each way."""
    dice, bad = random.Random(5), {True: False, False: False}

    def mangle(data: bytes, to_server: bool) -> list[bytes]:
        bad[to_server] = dice.random() >= end if bad[to_server] else dice.random() < begin
        return [] if bad[to_server] else [data]

    return mangle


def begun(
    site: Site, tmp_path: Path, box: Middlebox, push: bool, *words: str
) -> tuple[Popen[bytes], Path, Path]:
    """A copy of 8 parts through the middlebox that has written one; its process, what it copies and where to."""
    source = (tmp_path if push else site.given) / "large"
    source.write_bytes(random.Random(2).randbytes(8 * PART))
    to = site.data if push else tmp_path / "here"
    to.mkdir(exist_ok=True)
    ends = (source, f"127.0.0.1:{to}") if push else (f"127.0.0.1:{source}", to)
    process = site.begin(*ends, "--port", str(box.port), *words)
    wait_until(
        lambda: any(parts_written(found) >= 1 for found in to.glob(".waystage-copy-*/journal")), process
    )
    return process, source, to / "large"


@pytest.mark.parametrize("push", [True, False], ids=["push", "pull"])
@pytest.mark.parametrize("fails", ["stands", "reset"])
def test_a_copy_completes_without_tcp_on_a_path_that_loses_bursts(
    site: Site, tmp_path: Path, push: bool, fails: str
) -> None:
    site.serve()
    with Middlebox(site.port, in_bursts(0.01, 0.1)) as box:
        process, source, copied = begun(site, tmp_path, box, push, "--bandwidth-limit", "8M")
        (box.tcp_stands if fails == "stands" else box.tcp_reset).set()
        said = ended_json(process)
        assert process.returncode == 0, said
    assert copied.read_bytes() == source.read_bytes()


def test_a_server_that_was_killed_is_noticed_by_the_end_of_tcp(site: Site, tmp_path: Path) -> None:
    site.serve()
    with Middlebox(site.port, through) as box:
        process, _, _ = begun(site, tmp_path, box, True, "--bandwidth-limit", "2M")
        assert site.end(signal.SIGKILL) == -signal.SIGKILL
        said = ended_json(process)
        assert process.returncode == 1 and "has gone away" in said["error"]
