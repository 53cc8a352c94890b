"""Reading have the rates of the topology, count what they carry, tell their losses apart, and can fail."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable

import msgspec
import pytest

from harness import WAIT_S, halt, measuring, wait_until
from waystage.interconnect.graphml import read_topology
from waystage.topology import Topology
from waystage.worlds.lab.counters import Direction, Reading
from waystage.worlds.lab.lab import Lab

pytestmark = pytest.mark.lab

TCP_SHARE = (9000 - 40 - 12) / (9000 + 14)
"""Payload in a full frame: 20 bytes of IP, 20 of TCP, 12 of timestamps, 14 of Ethernet."""


def iperf(lab: Lab, source: str, target: str, *options: str) -> dict[str, float]:
    server = lab.exec(target, ["iperf3", "-s", "-1", "--forceflush"], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    while "listening" not in server.stdout.readline():  # flushed, or it would wait in a buffer
        assert server.poll() is None
    client = lab.exec(
        source,
        ["iperf3", "-J", "-c", lab.host_ip(target), *options],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        out, _ = client.communicate(timeout=WAIT_S)
        server.communicate(timeout=WAIT_S)
    finally:
        client.kill()
        server.kill()
        client.wait()
        server.wait()
    result: dict[str, dict[str, float]] = json.loads(out)["end"]
    return result.get("sum_received") or result["sum"]


def check_rate(lab: Lab, source: str, target: str, expected: float, *options: str) -> tuple[Reading, Reading]:
    """A link never carries more than its rate; that it carries no less shows where the machine has time for it, and
    switches read every packet. The counts before and after."""
    with measuring():
        for _ in range(4):
            before = lab.links()
            got = iperf(lab, source, target, "-O", "1", *options)["bits_per_second"] / TCP_SHARE
            assert got <= 1.05 * expected
            after = lab.links()
            if got >= 0.95 * expected and after.cpu_drops == before.cpu_drops:
                return before, after
        pytest.fail(f"{source} to {target} never came within 5 % of {expected:g} bit/s: last {got:g}")


def direction(counts: Reading, node: str, port: int) -> Direction:
    (found,) = (d for link in counts.links for d in link.directions if (d.node, d.port) == (node, port))
    return found


def tag_between_switches(lab: Lab) -> None:
    """What the labelled data path does: a VLAN tag at the first switch, removed at the last."""
    topology = lab.topology
    core_port = topology.link_between("edge1", "core1").port_at("edge1")
    for source in ("c1", "c2"):
        lab.ofctl(
            "add-flow",
            "edge1",
            f"priority=20,ip,in_port={topology.attachment[source][1]},actions=push_vlan:0x8100,"
            f"set_field:4098->vlan_vid,output:{core_port}",
        )
    host = topology.host_by_name["c4"]
    lab.ofctl(
        "add-flow",
        "edge2",
        f"priority=20,dl_vlan=2,dl_dst={host.mac},actions=pop_vlan,output:{topology.attachment['c4'][1]}",
    )


@pytest.mark.parametrize("tagged", [False, True])
def test_a_link_s_rate_is_the_topology_s_within_5_percent(lab: Lab, tagged: bool) -> None:
    if tagged:
        tag_between_switches(lab)
    before, after = check_rate(lab, "c1", "c4", 100e6, "-t", "3")
    carried, sent = (
        direction(after, node, port).bytes - direction(before, node, port).bytes
        for node, port in (("edge1", 5), ("c1", 1))
    )
    assert carried == pytest.approx(sent, rel=0.01)
    assert carried > 30e6


@pytest.mark.parametrize("megabits", [20, 400])
def test_slow_and_fast_links_keep_their_rate_too(
    lab_name: str, paper: Topology, static_paths: Callable[[Lab], None], megabits: int
) -> None:
    links = [msgspec.structs.replace(k, capacity_bps=megabits * 10**6) for k in paper.links]
    topology = Topology.build("other", paper.hosts, paper.switches, links)
    with Lab(lab_name, topology) as lab:
        static_paths(lab)
        check_rate(lab, "c1", "c2", megabits * 1e6, "-t", "2", "-l", "8k")


def test_packets_that_do_not_fit_into_a_queue_are_counted_where_they_were_lost(lab: Lab) -> None:
    """Two senders of 80 Mbit/s each into one link of 100: the queue of the switch's port overflows."""
    target = lab.host_ip("c3")
    before = lab.links()
    for host in ("c1", "c2"):
        lab.exec(host, ["ping", "-c", "1", "-w", "60", target], stdout=subprocess.DEVNULL).wait()
    blast = (
        "import socket, time\n"
        "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        f"s.connect(({target!r}, 9))\n"
        "end = time.monotonic() + 1.0\n"
        "sent = 0\n"
        "begin = time.monotonic()\n"
        "while time.monotonic() < end:\n"
        "    try:\n"
        "        s.send(bytes(8000))\n"
        "    except ConnectionRefusedError:\n"
        "        pass\n"
        "    sent += 1\n"
        "    time.sleep(max(0.0, begin + sent * 8000 * 8 / 80e6 - time.monotonic()))\n"
    )
    with measuring():
        senders = [lab.exec(host, ["/usr/bin/env", "python3", "-c", blast]) for host in ("c1", "c2")]
        for sender in senders:
            assert sender.wait(timeout=WAIT_S) == 0
        after = lab.links()
        lost = direction(after, "edge1", 3).queue_drops
        assert lost > 100
        assert after.queue_drops - before.queue_drops == lost, "nowhere else is there a bottleneck"
        assert direction(after, "edge1", 3).bytes == pytest.approx(100e6 / 8, rel=0.25)


def test_a_pulled_cable_is_seen_by_both_ends_and_comes_back_with_its_rate(lab: Lab) -> None:
    name = "edge1:5-core1:1"

    def states() -> tuple[bool, bool, bool]:
        link = next(link for link in lab.links().links if link.name == name)
        ends = [lab.ofctl("dump-ports-desc", s) for s in ("edge1", "core1")]
        port = [text.split(f" {p}(")[1].split("speed")[0] for text, p in zip(ends, (5, 1), strict=True)]
        return link.up, "LINK_DOWN" not in port[0], "LINK_DOWN" not in port[1]

    wait_until(lambda: states() == (True, True, True))
    lab.set_link(name, False)
    wait_until(lambda: states() == (False, False, False))
    lab.set_link(name, True)
    wait_until(lambda: states() == (True, True, True))
    shown = lab.fabric_exec(["tc", "qdisc", "show"], stdout=subprocess.PIPE, text=True)
    assert shown.communicate()[0].count("tbf") == 15, "one shaper on every switch port"


def test_a_host_s_cable_can_be_pulled(lab: Lab) -> None:
    lab.set_link("c1:1-edge1:1", False)
    refused = lab.exec(
        "c1",
        ["ping", "-c", "1", "-w", "1", lab.host_ip("c2")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    assert refused.wait(timeout=WAIT_S) != 0
    lab.set_link("c1:1-edge1:1", True)
    again = lab.exec("c1", ["ping", "-c", "1", "-w", "60", lab.host_ip("c2")], stdout=subprocess.DEVNULL)
    assert again.wait(timeout=WAIT_S) == 0


def test_packets_that_the_switch_did_not_read_in_time_are_counted_separately(lab: Lab) -> None:
    process = lab.switches.process("ovs-vswitchd")
    assert process is not None
    target = lab.host_ip("c2")
    lab.exec("c1", ["ping", "-c", "1", "-w", "60", target], stdout=subprocess.DEVNULL).wait()
    assert lab.links().cpu_drops == 0
    halt(process.pid)
    try:
        blast = (
            "import socket\n"
            "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
            f"for _ in range(20_000): s.sendto(bytes(1000), ({target!r}, 9))\n"
        )
        assert lab.exec("c1", ["/usr/bin/env", "python3", "-c", blast]).wait(timeout=WAIT_S) == 0
        found = lab.links()
        assert direction(found, "c1", 1).cpu_drops > 0
        assert direction(found, "c4", 1).cpu_drops == 0
    finally:
        os.kill(process.pid, signal.SIGCONT)


@pytest.mark.parametrize("name", ["leaf-spine-8", "sixteen", "fat-tree-4"])
def test_every_shipped_topology_comes_up(lab_name: str, name: str) -> None:
    with Lab(lab_name, read_topology(name)) as lab:
        lab.check()
        shown = lab.fabric_exec(["tc", "qdisc", "show"], stdout=subprocess.PIPE, text=True).communicate()[0]
        assert shown.count("tbf") == len(lab.wiring.ports)
