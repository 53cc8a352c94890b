"""Probes of real paths: the loopback interface, an emulated relay, middleboxes that drop or police UDP."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from harness import WAIT_S, command, measuring, ran, wait_until
from remote_copy_support import Mangle, Middlebox, Site, peer, server_here
from waystage._native import WanError, WanProbe
from waystage.native_options.servers import ServerUser
from waystage.worlds.lab import wan

MS = 1_000_000


def words(site: Site, *more: object, host: str = "127.0.0.1", port: int = 0) -> list[str]:
    trusted = ("--server-key", site.server_key, "--identity", site.folder / "client.key")
    return command("probe", f"{host}:{port or site.port}", *trusted, "--json", *more)


def probe(
    site: Site, *more: object, host: str = "127.0.0.1", port: int = 0, code: int | None = 0
) -> dict[str, Any]:
    """What `waystage probe --json` says."""
    done = ran(words(site, *more, host=host, port=port), env=site.environment())
    assert code is None or done.code == code, (done.code, done.out, done.err)
    return dict(json.loads(done.out))


def session(site: Site, *, host: str = "127.0.0.1", port: int = 0) -> WanProbe:
    return WanProbe(peer(site, host=host, port=port or site.port))


@contextlib.contextmanager
def probing(site: Site, **more: Any) -> Iterator[Any]:
    """A server in this process, which lets ada probe."""
    user = ServerUser(name="ada", keys=[site.client_key], probe=True)
    with server_here(site, **{"users": [user], "probe_s": 600.0, **more}) as server:
        yield server


@contextlib.contextmanager
def relayed(site: Site, *options: str) -> Iterator[Callable[[], dict[str, Any]]]:
    """The server at 127.0.0.2 too, by a middlebox for TCP and an emulated relay for UDP; gives the relay's counts."""
    name = f"p{os.getpid()}_{time.monotonic_ns() % 100_000}"
    here, there = f"127.0.0.2:{site.port}", f"127.0.0.1:{site.port}"
    argv = command("lab", "wan", "relay", "--listen", here, "--to", there, "--name", name, *options)
    box = Middlebox(site.port, at="127.0.0.2")
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def counts() -> dict[str, Any]:
        while True:
            found: dict[str, Any] = wan.status(name)["directions"]
            if not any(way["under_way"] for way in found.values()):
                return found
            time.sleep(0.02)

    try:
        wait_until(lambda: any(places.name == name and record.up for places, record in wan.known()), process)
        yield counts
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=WAIT_S)
        box.close()
        wan.down(name)


def test_a_clean_path_is_found_clean_from_the_command_line(site: Site) -> None:
    site.serve(top="probe = true\nprobe_rate = '2MB'")
    # 7 where this machine was so busy that it dropped packets itself.
    found = probe(site, "--duration", "0.5", "--max-rate", "50Mbit", code=None)
    assert found["udp"] is True and found["blocked"] == [] and found["server"] == f"127.0.0.1:{site.port}"
    trip = found["round_trip"]
    assert trip["answered"] == trip["sent"] >= 100
    assert 0 < trip["min_ms"] <= trip["median_ms"] <= trip["p99_ms"] <= trip["most_ms"]
    for way in ("up", "down"):
        one = found["directions"][way]
        loss, rate = one["loss"], one["rate"]
        assert one["mtu"] == 9000 and one["arrives"] is True
        assert (loss["lost"], loss["duplicated"], loss["damaged"]) == (0, 0, 0) and loss[
            "damage_seen"
        ] is True
        assert loss["received"] + loss["lost"] <= loss["sent"] and loss["sent"] > 100
        # No more than the server allows, whatever the command line says; a busy machine may not come so far.
        assert rate["limit"] in ("cap", "machine", "queue", "loss"), rate
        assert rate["limit"] != "cap" or "what the server allows" in rate["why"]
        assert all(step["target_bps"] <= 16.1e6 for step in one["sweep"])
        assert one["tcp"]["rate_bps"] > 1e5 and one["tcp"]["congestion"]
    site.end()
    assert "ada@127.0.0.1" in site.log() and "probed: " in site.log()


def test_loss_duplicates_and_damage_are_seen_in_their_direction_as_the_relay_counted_them(site: Site) -> None:
    with probing(site):
        ways = ("--forward", "corrupt=3%", "--forward", "duplicate=2%", "--back", "loss=5%")
        with relayed(site, *ways, "--seed", "4") as counts:
            found = probe(site, "--only", "loss", "--duration", "1.5", host="127.0.0.2", code=None)
            relay = counts()
    up, down = (found["directions"][way]["loss"] for way in ("up", "down"))
    assert relay["forward"]["overflow"] == relay["back"]["overflow"] == 0, relay
    # Beside the train there were only the first packets, by which both ends found one another.
    more = relay["forward"]["in"] - up["sent"]
    assert 0 < more < 100
    assert up["damage_seen"] and relay["forward"]["corrupted"] - more <= up["damaged"]
    assert up["damaged"] <= relay["forward"]["corrupted"] + relay["forward"]["duplicated"]
    assert up["damaged"] > 20
    assert abs(up["duplicated"] - relay["forward"]["duplicated"]) <= more + up["damaged"]
    assert up["duplicated"] > 10
    dropped_down = down["lost"]
    assert abs(dropped_down - relay["back"]["lost_random"]) <= relay["back"]["in"] - down["sent"]
    assert dropped_down > 50 and down["damaged"] == 0 and down["duplicated"] == 0
    if up["machine"] is None:
        assert up["lost"] == 0, up


def test_reordering_and_delay_are_seen_in_their_direction(site: Site) -> None:
    with probing(site):
        delays = ("--forward", "delay=15ms", "--back", "delay=5ms")
        with relayed(site, *delays, "--forward", "reorder=20%,8ms") as counts:
            found = probe(
                site, "--only", "loss", "--only", "rtt", "--duration", "1", host="127.0.0.2", code=None
            )
            relay = counts()
    up, down = (found["directions"][way]["loss"] for way in ("up", "down"))
    assert up["reordered"] > 0.1 * up["received"] and up["reordered_by"] >= 1
    assert relay["forward"]["reordered"] > 0 and relay["back"]["reordered"] == 0
    # A busy machine does not put packets of one socket out of order.
    assert down["reordered"] == 0 and up["lost"] <= up["sent"] * 0.01
    assert found["round_trip"]["min_ms"] >= 20.0
    assert up["delay_p99_ms"] >= 7.0


def test_a_small_path_mtu_is_found_in_its_direction(site: Site) -> None:
    with probing(site), relayed(site, "--forward", "mtu=1400", "--delay", "2ms"):
        found = probe(site, "--only", "mtu", "--only", "rtt", host="127.0.0.2")
    assert [found["directions"][way]["mtu"] for way in ("up", "down")] == [1400, 1500]


def drop(to_server: bool) -> Mangle:
    """Lets nothing through in one direction."""
    return lambda datagram, to: [] if to == to_server else [datagram]


def test_blocked_udp_is_reported_with_its_direction_and_the_rest_is_measured(site: Site) -> None:
    with probing(site):
        with Middlebox(site.port, drop(to_server=False)) as box:
            only = ("--only", "loss", "--only", "tcp", "--duration", "0.3", "--udp-wait", "5")
            found = probe(site, *only, port=box.port, code=8)
            assert found["blocked"] == ["down"] and "blocked on the way back" in found["notes"][0]
            assert found["directions"]["up"]["loss"]["received"] > 0
            assert found["directions"]["down"]["loss"] is None
            assert found["directions"]["down"]["tcp"]["rate_bps"] > 0
        with Middlebox(site.port) as box:
            found = probe(site, "--no-tcp", "--udp-wait", "5", port=box.port, code=8)
            assert found["blocked"] == ["up", "down"] and found["udp"] is False
            assert f"have UDP port {box.port} let through" in found["notes"][0]
    with probing(site, udp=False):
        found = probe(site, "--only", "rtt", code=8)
        assert found["udp"] is False and "switched off" in found["notes"][0]


def test_a_server_that_hears_nothing_calls_and_what_it_sends_is_measured(site: Site) -> None:
    with probing(site, listen="0.0.0.0:0"), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as thief:
        # It takes what comes for the server's port, whose own socket is at no address in particular.
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        thief.bind(("127.0.0.1", site.port))
        found = probe(site, "--only", "loss", "--duration", "0.3", "--udp-wait", "5", code=8)
        assert found["blocked"] == ["up"] and "blocked on the way there" in found["notes"][0]
        assert found["directions"]["down"]["loss"]["received"] > 0
        assert found["directions"]["up"]["loss"] is None


def test_a_path_of_ipv6_is_measured_without_seeing_damage(site: Site) -> None:
    with contextlib.closing(socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)) as trial:
        try:
            trial.bind(("::1", 0))
        except OSError as error:
            pytest.skip(f"this machine has no IPv6: {error}")
    with probing(site, listen="[::]:0"):
        found = probe(site, "--only", "loss", "--only", "mtu", "--duration", "0.3", host="[::1]", code=None)
        assert found["header_bytes"] == 48 and found["directions"]["up"]["mtu"] == 9000
        for way in ("up", "down"):
            loss = found["directions"][way]["loss"]
            assert loss["received"] > 0 and loss["damage_seen"] is False
        # A server at all addresses serves IPv4 at the same port.
        assert probe(site, "--only", "loss", "--duration", "0.3", code=None)["directions"]["up"]["loss"][
            "damage_seen"
        ]


class Policer:
    """A token bucket towards the server: what it does not let pass is gone, and nothing waits."""

    def __init__(self, rate_bps: float, bucket_bytes: float) -> None:
        self._rate, self._most, self._tokens = rate_bps / 8, bucket_bytes, bucket_bytes
        self._at = time.monotonic()

    def __call__(self, datagram: bytes, to_server: bool) -> list[bytes]:
        if not to_server:
            return [datagram]
        now = time.monotonic()
        self._tokens = min(self._most, self._tokens + (now - self._at) * self._rate)
        self._at = now
        if self._tokens < len(datagram) + 28:
            return []
        self._tokens -= len(datagram) + 28
        return [datagram]


def test_a_policed_path_is_recognised(site: Site) -> None:
    with measuring(), probing(site):
        with Middlebox(site.port, Policer(3e6, 20_000)) as box:
            only = ("--only", "rate", "--direction", "up", "--duration", "3", "--max-rate", "20Mbit")
            rate = probe(site, *only, port=box.port)["directions"]["up"]["rate"]
        if rate["limit"] == "machine":
            pytest.skip(f"the machine was too busy to send at a rate: {rate['why']}")
        assert rate["limit"] == "policed", rate
        assert 2.5e6 <= rate["achievable_bps"] <= 3.5e6, rate


def refusal(call: Callable[[], object]) -> WanError:
    with pytest.raises(WanError) as raised:
        call()
    return raised.value


def test_a_user_without_the_right_to_probe_may_still_copy(site: Site) -> None:
    with server_here(site, probe_s=60.0) as server:
        error = refusal(lambda: session(site))
        assert error.kind == "denied" and "`probe = true`" in str(error)
        wait_until(lambda: any("does not let ada probe" in line for line in server.log()))
        done = ran(words(site), env=site.environment())
        assert done.code == 1 and "`probe = true`" in json.loads(done.out)["error"]


def test_the_configuration_says_who_may_probe(site: Site) -> None:
    site.serve(user="probe = true")
    assert probe(site, "--only", "rtt", "--quick")["round_trip"]["answered"] > 0
    site.end()
    site.serve()
    assert "`probe = true`" in probe(site, code=1)["error"]


def test_the_servers_bounds_hold_whatever_a_client_asks_for(site: Site) -> None:
    with probing(site, probe_rate_bytes_per_s=1_000_000, probe_s=60.0):
        one = session(site)
        assert one.most_rate_bytes_per_s == 1_000_000 and one.longest_s == 60.0
        error = refusal(lambda: session(site))
        assert error.kind == "busy" and "two would measure one another" in str(error)
        assert one.reach(WAIT_S / 3) == (True, True, True)
        train: dict[str, Any] = {
            "packets": 50,
            "bytes": 972,
            "interval_ns": MS,
            "checksum": True,
            "quiet_s": 0.2,
        }
        for up in (True, False):
            assert one.train(up, **train)["received"] > 0
        error = refusal(lambda: one.train(False, **{**train, "interval_ns": MS // 2}))
        assert error.kind == "denied" and "lets a probe use 8.0 Mbit/s" in str(error)
        one.close()
        # The first has ended; its place is free again.
        two = session_when_free(site)
        two.reach(WAIT_S / 3)
        error = refusal(lambda: two.train(False, **{**train, "packets": 70_000}))
        assert error.kind == "denied" and "lets a probe last 60 s" in str(error)
        two.close()
        assert session_when_free(site).most_rate_bytes_per_s == 1_000_000


def session_when_free(site: Site) -> WanProbe:
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            return session(site)
        except WanError as error:
            assert error.kind == "busy" and time.monotonic() < deadline, error
            time.sleep(0.05)


def test_trains_that_make_no_sense_are_refused_before_they_leave(site: Site) -> None:
    with probing(site):
        one = session(site)
        one.reach(WAIT_S / 3)
        good: dict[str, Any] = {
            "packets": 5,
            "bytes": 100,
            "interval_ns": MS,
            "checksum": False,
            "quiet_s": 0.1,
        }
        for wrong in (
            {"packets": 0},
            {"bytes": 51},
            {"bytes": 8973},
            {"interval_ns": 0},
            {"packets": 1 << 26},
        ):
            error = refusal(lambda wrong=wrong: one.train(True, **{**good, **wrong}))  # type: ignore[misc]
            assert error.kind == "input", wrong
        assert one.train(True, **good)["received"] == 5
        one.close()


def test_strangers_add_nothing_to_a_count(site: Site) -> None:
    chance = random.Random(7)
    with probing(site) as server:
        one = session(site)
        assert one.reach(WAIT_S / 3) == (True, True, True)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            before = server.progress()["strange_datagrams"]
            for size in (0, 1, 12, 51, 52, 400, 1472):
                stranger.sendto(b"\x21" + chance.randbytes(size), ("127.0.0.1", site.port))
            found = one.train(True, packets=50, bytes=200, interval_ns=MS, checksum=True, quiet_s=0.5)
            assert (found["damaged"], found["duplicated"]) == (0, 0) and found["received"] <= 50
            wait_until(lambda: server.progress()["strange_datagrams"] >= before + 7)
            stranger.settimeout(0.2)
            with pytest.raises(TimeoutError):
                stranger.recv(1)
        one.close()


def test_ctrl_c_ends_both_ends(site: Site) -> None:
    with probing(site) as server:
        process = subprocess.Popen(
            words(site, "--only", "loss", "--duration", "300"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=site.environment(),
        )
        try:
            wait_until(lambda: server.progress()["connections"] == 1, process)
            time.sleep(0.5)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=WAIT_S)
            assert process.returncode == 130, (out, err)
            wait_until(lambda: server.progress()["connections"] == 0)
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate()
        session_when_free(site).close()


def test_a_server_that_is_gone_is_reported(site: Site) -> None:
    with probing(site):
        one = session(site)
        one.reach(WAIT_S / 3)
    error = refusal(lambda: one.train(True, packets=9, bytes=200, interval_ns=MS, checksum=True, quiet_s=0.1))
    assert error.kind in ("lost", "denied"), error
    done = ran(words(site), env=site.environment())
    assert done.code == 1 and "cannot be reached" in json.loads(done.out)["error"]


@pytest.mark.parametrize("text", ["", "a:0", "a:65536", "a/b", "a:b:c", "[::1", "a:"])
def test_what_is_no_host_is_said_so(text: str) -> None:
    done = ran(command("probe", text))
    assert done.code == 2 and "is not a host" in done.err
