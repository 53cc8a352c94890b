"""The interconnect controller on a real Open vSwitch: what is cabled how, found out and checked."""

from __future__ import annotations

import ipaddress
import subprocess
import sys
import threading

import pytest

from harness import WAIT_S, wait_until
from openflow_square import World, build, fabric_topology
from waystage.events import (
    CablingError,
    HostSeen,
    LinkDown,
    PathsChanged,
    TopologyChanged,
)
from waystage.interconnect.watch import Options
from waystage.topology import Topology

pytestmark = pytest.mark.lab


def test_swapped_cables_are_named(world: World) -> None:
    topology = fabric_topology()
    for switch in topology.switches:
        world.ovs.add_switch(switch.name, switch.dpid)
    for cable in (
        ("edge1", 1, "core2", 1),
        ("edge1", 2, "core1", 1),
        ("edge2", 1, "core1", 2),
        ("edge2", 2, "core2", 2),
    ):
        world.ovs.add_cable(*cable)
    world.start(topology)
    world.connect()
    error = world.await_event(CablingError, lambda e: e.switch == "edge1" and e.port == 1)
    assert (error.expected, error.found) == ("core1:1", "core2:1")
    other = world.await_event(CablingError, lambda e: e.switch == "core1" and e.port == 1)
    assert (other.expected, other.found) == ("edge1:1", "edge1:2")
    world.await_event(LinkDown, lambda e: e.link == "edge1:1-core1:1")


def test_a_topology_is_discovered_where_none_is_given(world: World) -> None:
    topology = fabric_topology()
    build(world.ovs, topology)
    world.start(None, options=Options(storage_hosts=("h4",)))
    world.connect()
    done = threading.Event()
    speaker = threading.Thread(target=speak, args=(world, topology, done))
    speaker.start()
    try:
        found = world.await_event(
            TopologyChanged, lambda e: len(e.topology.hosts) == 4 and len(e.topology.links) == 8
        )
        world.await_event(PathsChanged)
        assert {h.name: (h.ip, h.mac, h.role) for h in found.topology.hosts} == {
            h.name: (h.ip, h.mac, h.role) for h in topology.hosts
        }
        assert {s.name for s in found.topology.core_switches and found.topology.switches} == {
            "s1",
            "s2",
            "s3",
            "s4",
        }
        assert {e.host for e in world.of(HostSeen)} == {"h1", "h2", "h3", "h4"}
        wait_until(lambda: world.ping(1, 3) and world.ping(4, 2), what="a ping both ways")
    finally:
        done.set()
        speaker.join()


def speak(world: World, topology: Topology, done: threading.Event) -> None:
    """Send what an LLDP daemon on each host would send, every half second."""
    script = (
        "import socket,sys,time\n"
        "s=socket.socket(socket.AF_PACKET,socket.SOCK_RAW);s.bind(('eth0',0))\n"
        "while True: s.send(bytes.fromhex(sys.argv[1]));time.sleep(.5)\n"
    )
    processes = []
    for host in topology.hosts:
        assert host.mac is not None and host.ip is not None
        mac = bytes.fromhex(host.mac.replace(":", ""))
        entries = [
            (1, b"\x04" + mac),
            (2, b"\x03" + mac),
            (3, b"\0\x78"),
            (5, host.name.encode()),
            (8, b"\x05\x01" + ipaddress.IPv4Address(host.ip).packed + b"\x02\0\0\0\x02\0"),
            (0, b""),
        ]
        body = b"".join((kind << 9 | len(value)).to_bytes(2, "big") + value for kind, value in entries)
        frame = (bytes.fromhex("0180c200000e") + mac + bytes.fromhex("88cc") + body).ljust(60, b"\0")
        namespace = f"{world.ovs.name}-{host.name}"
        processes.append(
            subprocess.Popen(["ip", "netns", "exec", namespace, sys.executable, "-c", script, frame.hex()])
        )
    done.wait(WAIT_S)
    for process in processes:
        process.kill()
        process.wait()
