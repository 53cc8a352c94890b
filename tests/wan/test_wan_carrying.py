"""What an emulated path does to real packets. Only counts, and bounds that hold however slow this machine is."""

from __future__ import annotations

import hashlib
import re
import subprocess
from itertools import groupby

import pytest

from harness import WAIT_S, wait_until
from wan_support import Up, ping, python, send, settled
from waystage.worlds.lab import wan
from waystage.worlds.lab.wan import paths

pytestmark = pytest.mark.lab


MARKS = """
import select, socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
s.bind(("10.58.0.2", 7000))
print("ready", flush=True)
while True:
    readable, _, _ = select.select([s, sys.stdin], [], [])
    if s in readable:
        print(s.recvmsg(2000, 100)[1][0][2][0])
    elif readable and not select.select([s], [], [], 0.3)[0]:
        break  # a packet that has left the path may be on its way through the kernel
"""
"""Prints the byte of DSCP and ECN of each datagram until its input ends."""

CAPABLE = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, int(sys.argv[1]))
s.connect(("10.58.0.2", 7000))
for number in range(int(sys.argv[2])):
    s.send(bytes(1000))
"""


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


def test_a_policer_passes_its_bucket_at_once_and_then_its_rate(up: Up) -> None:
    came, forward, seconds = send(up(policer="1Mbit,20kB"), 200, 1000)
    assert len(came) == 200 - forward["lost_policer"] and forward["lost_buffer"] == 0
    assert came[:19] == list(range(19)), "the bucket"
    assert len(came) * 1028 <= 20_000 + (seconds + 0.1) * 1e6 / 8
    assert forward["lost_policer"] > 0


def test_codel_and_red_drop_before_the_buffer_is_full(up: Up) -> None:
    for aqm in ("codel", "red,0%,0.2%"):
        # A queue of 1.2 s, of which the buffer could hold ten times as much.
        path = up(rate="1Mbit", buffer="1500kB", aqm=aqm)
        came, forward, _ = send(path, 150, 1000)
        assert len(came) == 150 - forward["lost_early"] and forward["lost_early"] >= 3, aqm
        assert forward["lost_buffer"] == 0
        wan.change(path, {"aqm": "none"})
        assert len(send(path, 150, 1000)[0]) == 150


@pytest.mark.parametrize("options", [{"ecn": "5kB"}, {"ecn": "aqm", "aqm": "codel"}], ids=["queue", "codel"])
def test_capable_packets_are_marked_and_not_lost(up: Up, options: dict[str, str]) -> None:
    path = up(rate="1Mbit", buffer="none", **options)
    with_mark, count = 0b11, 100
    for code_point in (0b10, 0b00):
        before = wan.status(path)["directions"]["forward"]
        receiver = python(path, "right", MARKS, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert receiver.stdin is not None and receiver.stdout is not None
        assert receiver.stdout.readline() == "ready\n"
        sender = python(path, "left", CAPABLE, code_point, count)
        assert sender.wait(WAIT_S) == 0
        forward = settled(path, before["in"] + count)
        out, _ = receiver.communicate(timeout=WAIT_S)
        seen = [int(byte) & with_mark for byte in out.split()]
        marked, lost = (forward[key] - before[key] for key in ("marked", "lost_early"))
        assert len(seen) == count - lost
        assert seen.count(with_mark) == marked
        if code_point:
            assert marked >= 3 and lost == 0
        else:
            assert marked == 0 and (lost > 0) == ("aqm" in options)


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
    wait_until(lambda: wan.status(path)["directions"]["forward"]["in"] == 3, what="both pings at the path")
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
