"""What an emulated path does to real packets. Only counts, and bounds that hold however slow this machine is."""

from __future__ import annotations

import hashlib
import re
import subprocess
from itertools import groupby

import pytest

from harness import WAIT_S
from wan_support import Up, ping, python, send
from waystage.worlds.lab import wan
from waystage.worlds.lab.wan import paths

pytestmark = pytest.mark.lab


def near(count: int, share: float, of: int) -> bool:
    """Within five standard deviations. The seed decides all, so that it holds always or never."""
    return abs(count - share * of) <= 5 * (of * share * (1 - share)) ** 0.5


def test_no_packet_is_early_or_made_up(up: Up) -> None:
    path = up(delay="15ms", rate="100Mbit")
    assert all(d["in"] == 0 for d in wan.status(path)["directions"].values())
    status, out = ping(path, "-c", "4", "-i", "0.05")
    assert status == 0, out
    times = [float(t) for t in re.findall(r"time=([\d.]+) ms", out)]
    assert len(times) == 4 and min(times) >= 30.0
    done = paths.start(path, "left", ["ping", "-6", "-c", "1", "fd58::2"], stdout=subprocess.DEVNULL)
    assert done.wait(WAIT_S) == 0
    counts = wan.status(path)["directions"]
    assert [d["in"] for d in counts.values()] == [d["out"] for d in counts.values()] == [5, 5]


def test_losses_and_copies_are_counted_and_follow_from_the_seed(up: Up) -> None:
    count = 2000
    path = up(seed=3, loss="10%", duplicate="5%", delay="1ms")
    came, forward, _ = send(path, count)
    lost = set(range(count)) - set(came)
    assert (forward["in"], forward["out"], forward["overflow"]) == (count, len(came), 0)
    assert len(lost) == forward["lost_random"] and near(len(lost), 0.1, count)
    copies = len(came) - len(set(came))
    assert copies == forward["duplicated"] and near(copies, 0.05, count - len(lost))
    again = up(seed=3, loss="10%", rate="50Mbit", delay="3ms", buffer="none")
    assert set(range(count)) - set(send(again, count)[0]) == lost, "other times, the same fates"
    other, _, _ = send(up(seed=4, loss="10%"), count)
    assert set(range(count)) - set(other) != lost


def test_bursts_are_as_long_as_asked_for(up: Up) -> None:
    count = 4000
    came, forward, _ = send(up(bursts="2%,20%"), count)
    there = set(came)
    runs = [len(list(run)) for lost, run in groupby(n not in there for n in range(count)) if lost]
    assert sum(runs) == forward["lost_burst"] and forward["lost_random"] == 0
    assert 3.5 < sum(runs) / len(runs) < 6.5, "1 / 20 %"


def test_the_rate_is_never_exceeded_and_a_full_buffer_drops(up: Up) -> None:
    count, size = 300, 1000
    path = up(rate="8Mbit", buffer="none")
    came, forward, seconds = send(path, count, size)
    assert came == list(range(count)) and forward["overflow"] == 0
    assert seconds >= count * (size + 28) * 8 / 8e6
    wan.change(path, {"buffer": "20 kB", "rate": "1Mbit"})
    came, forward, _ = send(path, 100, size)
    assert len(came) == 100 - forward["lost_buffer"] and forward["lost_buffer"] > 0
    assert came == sorted(came)


def test_what_is_kept_back_comes_after_others(up: Up) -> None:
    came, forward, _ = send(up(reorder="20%,5ms", delay="1ms"), 1000)
    assert sorted(came) == list(range(1000)) and near(forward["held_back"], 0.2, 1000)
    most, late = -1, 0
    for number in came:
        late += number < most
        most = max(most, number)
    assert 0 < late == forward["reordered"]


def test_a_damaged_datagram_is_dropped_by_the_receivers_checksum(up: Up) -> None:
    path = up(corrupt="100%")
    came, forward, _ = send(path, 50)
    assert came == [] and forward["corrupted"] == forward["out"] == 50
    shown = paths.start(path, "right", ["cat", "/proc/net/snmp"], stdout=subprocess.PIPE, text=True)
    text, _ = shown.communicate(timeout=WAIT_S)
    names, values = (line.split() for line in text.splitlines() if line.startswith("Udp: "))
    assert int(values[names.index("InCsumErrors")]) == 50


def test_larger_packets_than_the_paths_mtu_vanish(up: Up) -> None:
    path = up(mtu="1000", device_mtu=1500)
    assert ping(path, "-c", "1", "-s", "972", "-W", "20")[0] == 0
    assert ping(path, "-c", "2", "-i", "0.05", "-s", "973", "-W", "0.2")[0] == 1
    assert wan.status(path)["directions"]["forward"]["too_large"] == 2
    small = up(mtu="1000")
    status, out = ping(small, "-c", "1", "-s", "1200", "-M", "do")
    assert status == 1 and "1000" in out, "its own device says so, where the path's MTU is the device's"


STREAM = """
import hashlib, socket, sys
size = int(sys.argv[1])
data = b"".join(n.to_bytes(4, "big") for n in range(size // 4))
if len(sys.argv) > 2:
    s = socket.create_connection((sys.argv[2], 7001))
    s.sendall(data)
    s.shutdown(socket.SHUT_WR)
    print(hashlib.sha256(data).hexdigest(), s.recv(100).decode())
else:
    listener = socket.create_server(("::", 7001), family=socket.AF_INET6, dualstack_ipv6=True)
    print("ready", flush=True)
    for _ in range(2):
        s, _ = listener.accept()
        digest = hashlib.sha256()
        while piece := s.recv(1 << 16):
            digest.update(piece)
        s.sendall(digest.hexdigest().encode())
        s.close()
"""


def test_tcp_gets_through_all_of_it_with_its_bytes_whole(up: Up) -> None:
    """Frames of many packets are cut, thinned out, damaged and joined again: what is wrong with that shows here."""
    path = up(
        rate="200Mbit",
        delay="1ms",
        loss="0.5%",
        duplicate="2%",
        corrupt="0.5%",
        reorder="2%,1ms",
        buffer="500 kB",
    )
    size = 1_500_000
    server = python(path, "right", STREAM, size, stdout=subprocess.PIPE)
    assert server.stdout is not None and server.stdout.readline() == "ready\n"
    whole = hashlib.sha256(b"".join(n.to_bytes(4, "big") for n in range(size // 4))).hexdigest()
    for address in ("10.58.0.2", "fd58::2"):
        client = python(path, "left", STREAM, size, address, stdout=subprocess.PIPE)
        assert client.communicate(timeout=WAIT_S)[0].split() == [whole, whole]
    forward = wan.status(path)["directions"]["forward"]
    assert forward["in"] > 2 * size / 1500 and forward["unusable"] == forward["refused"] == 0
    assert min(forward[k] for k in ("lost_random", "duplicated", "corrupted", "reordered")) > 0
    server.wait(WAIT_S)
