"""A copy between hosts obeys while it runs: pushed and pulled, over UDP and over TCP."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness import wait_until
from pacing_support import (
    cancelled_at_once,
    is_limited_by,
    moves_below,
    moves_between,
    stands_still,
    until_moving,
)
from remote_copy_support import Site, peer, server_here
from waystage._native import RemoteCopy, WanServer
from waystage.native_options.copies import RemoteCopyOptions
from waystage.native_options.servers import ServerUser

MIB = 1 << 20
SIZE = 192 * MIB


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.close()


@pytest.fixture
def content() -> bytes:
    return os.urandom(MIB) * (SIZE // MIB)


Ways = pytest.mark.parametrize(("push", "udp"), [(True, True), (False, True), (True, False), (False, False)])


@contextmanager
def copying(
    site: Site, content: bytes, *, push: bool, udp: bool = True, connections: int = 1, **more: object
) -> Iterator[RemoteCopy]:
    local, remote = site.folder / "here", (site.data if push else site.given) / "file"
    (local if push else remote).write_bytes(content)
    server = peer(site, udp_wait_s=30.0 if udp else None, **more)
    options = RemoteCopyOptions(memory_bytes=32 * MIB, connections=connections)
    with RemoteCopy(local, os.fsencode(remote), server, options, push=push) as copy:
        yield copy
    assert (remote if push else local).read_bytes() == content


@Ways
def test_a_pause_stops_the_bytes_at_the_sender_and_the_copy_goes_on_with_identical_ones(
    site: Site, content: bytes, push: bool, udp: bool
) -> None:
    with server_here(site), copying(site, content, push=push, udp=udp) as copy:
        assert copy.controls == ("rate", "mode", "pause")
        copy.set_rate(20 * MIB)
        until_moving(copy, 8 * MIB)
        copy.pause()
        assert stands_still(copy)
        assert copy.flow().limited_by == "paused"
        assert copy.flow().bytes_done < SIZE
        before = copy.connection()[0]
        copy.set_rate(None)
        copy.resume()
        assert copy.wait(180) and copy.complete
        after = copy.connection()[0]
        if udp:
            assert after["round_trip_ms"] < before["round_trip_ms"] + 1000, "the pause is no round trip"


@Ways
def test_a_new_rate_holds_in_both_directions(site: Site, content: bytes, push: bool, udp: bool) -> None:
    with server_here(site), copying(site, content, push=push, udp=udp) as copy:
        copy.set_rate(8 * MIB)
        until_moving(copy)
        time.sleep(1)
        moves_between(copy, 0.5 * 8 * MIB, 1.7 * 8 * MIB, 2)
        copy.limit(2 * MIB)
        time.sleep(1)
        moves_below(copy, 4.5 * MIB, 2)  # the user's own limit is the lower one
        copy.limit(None)
        copy.set_rate(None)
        assert copy.wait(180)


@pytest.mark.parametrize("push", [True, False])
def test_a_copy_in_a_pause_outlives_the_idle_time_of_its_connection(
    site: Site, content: bytes, push: bool
) -> None:
    with server_here(site), copying(site, content, push=push) as copy:
        copy.set_rate(20 * MIB)
        until_moving(copy, 4 * MIB)
        copy.pause()
        # A connection of which nothing is heard ends after half a minute.
        assert not copy.wait(35)
        copy.set_rate(None)
        copy.resume()
        assert copy.wait(180) and copy.complete


@pytest.mark.parametrize("push", [True, False])
def test_modes_change_in_the_middle_of_a_copy_of_several_connections(
    site: Site, content: bytes, push: bool
) -> None:
    granted = [ServerUser(name="ada", keys=[site.client_key], modes=["aggressive", "fast-start"])]
    with (
        server_here(site, users=granted, copy_connections=2),
        copying(site, content, push=push, connections=2) as copy,
    ):
        copy.set_rate(15 * MIB)
        until_moving(copy)
        for mode in ("modest", "aggressive", "fast-start", "modest", "fair"):
            copy.set_mode(mode)
            until_moving(copy, copy.flow().bytes_done)
        assert copy.notes() == []
        copy.set_rate(None)
        assert copy.wait(180) and copy.complete


def test_a_mode_that_the_server_does_not_grant_is_noted_and_the_copy_goes_on(
    site: Site, content: bytes
) -> None:
    with server_here(site), copying(site, content, push=False) as copy:
        copy.set_rate(15 * MIB)
        until_moving(copy)
        copy.set_mode("aggressive")
        with pytest.raises(ValueError, match="eager"):
            copy.set_mode("eager")
        wait_until(copy.notes, what="a note")
        assert ["does not grant mode aggressive" in note for note in copy.notes()] == [True]
        copy.set_rate(None)
        assert copy.wait(180)


@pytest.mark.parametrize("push", [True, False])
def test_a_paused_copy_is_cancelled_at_once(site: Site, content: bytes, push: bool) -> None:
    local, remote = site.folder / "here", (site.data if push else site.given) / "file"
    (local if push else remote).write_bytes(content)
    with server_here(site):
        options = RemoteCopyOptions(memory_bytes=32 * MIB)
        with RemoteCopy(local, os.fsencode(remote), peer(site), options, push=push) as copy:
            copy.set_rate(20 * MIB)
            until_moving(copy)
            copy.pause()
            time.sleep(0.3)
            cancelled_at_once(copy)


@pytest.mark.parametrize("push", [True, False])
def test_a_server_paces_and_pauses_its_sessions(site: Site, content: bytes, push: bool) -> None:
    with server_here(site) as server, copying(site, content, push=push) as copy:
        assert server.controls == ("rate", "pause")
        server.set_rate(20 * MIB)
        until_moving(copy)
        server.pause()
        assert stands_still(copy)
        server.resume()
        server.set_rate(8 * MIB)
        time.sleep(1)
        moves_between(copy, 0.4 * 8 * MIB, 1.8 * 8 * MIB, 2)
        server.set_rate(None)
        assert copy.wait(180) and copy.complete
        assert moved(server) >= SIZE


def moved(server: WanServer) -> int:
    return server.flow().bytes_done


def test_a_pushing_copy_says_what_limits_it(site: Site, content: bytes) -> None:
    with server_here(site), copying(site, content, push=True) as copy:
        copy.set_rate(6 * MIB)
        until_moving(copy, MIB)
        time.sleep(1)
        assert is_limited_by(copy, "rate", 1.0)
        copy.set_rate(None)
        assert copy.wait(180)
