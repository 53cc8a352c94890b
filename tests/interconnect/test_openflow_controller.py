"""The interconnect controller on a real Open vSwitch: two core and two edge switches, four hosts."""

from __future__ import annotations

import ipaddress
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from waystage.events import (
    AssignPaths,
    CablingError,
    Envelope,
    Event,
    HostSeen,
    LinkDown,
    LinkUp,
    LinkUse,
    PairPath,
    PathPlan,
    PathsChanged,
    PathsRefused,
    StagingStarted,
    TopologyChanged,
    envelope,
)
from waystage.interconnect import labels
from waystage.interconnect.controller import InterconnectController
from waystage.interconnect.graphml import write_topology
from waystage.interconnect.watch import Options
from waystage.topology import Host, Link, Switch, Topology

pytestmark = pytest.mark.lab

SEPARATED = PathPlan(separated=True, cores={"mpi": ("core1",), "staging": ("core2",)})
TOGETHER = PathPlan()


def fabric_topology(*, addresses: bool = True) -> Topology:
    hosts = [
        Host(
            name=f"h{n}",
            role="storage" if n == 4 else "compute",
            mac=f"02:42:0a:00:00:{n:02x}" if addresses else None,
            ip=f"10.9.0.{n}" if addresses else None,
        )
        for n in (1, 2, 3, 4)
    ]
    switches = [Switch(name=n, dpid=d) for n, d in (("edge1", 1), ("edge2", 2), ("core1", 3), ("core2", 4))]
    cables = [
        ("edge1", 1, "core1", 1),
        ("edge1", 2, "core2", 1),
        ("edge2", 1, "core1", 2),
        ("edge2", 2, "core2", 2),
    ]
    links = [Link(a=a, a_port=p, b=b, b_port=q, capacity_bps=10**8) for a, p, b, q in cables]
    links += [
        Link(a=f"h{n}", a_port=1, b=edge, b_port=port, capacity_bps=10**8)
        for n, edge, port in ((1, "edge1", 3), (2, "edge1", 4), (3, "edge2", 3), (4, "edge2", 4))
    ]
    return Topology.build("square", hosts, switches, links)


def build(ovs: Any, topology: Topology) -> None:
    for switch in topology.switches:
        ovs.add_switch(switch.name, switch.dpid)
    for link in topology.switch_links:
        ovs.add_cable(link.a, link.a_port, link.b, link.b_port)
    for host in topology.hosts:
        switch, port = topology.attachment[host.name]
        ovs.add_host(host.name, host.ip, host.mac, switch, port)


class World:
    """A fabric, a controller, and what it has published."""

    def __init__(self, ovs: Any, wait_until: Callable[..., None]) -> None:
        self.ovs, self.wait_until = ovs, wait_until
        self.events: list[Event] = []
        self.controller: InterconnectController | None = None

    def start(self, topology: Topology | None, **arguments: Any) -> InterconnectController:
        options = arguments.pop("options", Options())
        self.controller = InterconnectController(
            self.events.append, ("127.0.0.1", 0), topology, options=options, **arguments
        )
        with self.ovs.within():
            self.controller.start()
        return self.controller

    def connect(self) -> None:
        assert self.controller is not None
        self.ovs.connect("edge1", "edge2", "core1", "core2", port=self.controller.port)

    def ready(self, topology: Topology | None, **arguments: Any) -> InterconnectController:
        controller = self.start(topology, **arguments)
        self.connect()
        self.await_event(PathsChanged)
        return controller

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for event in list(self.events) if isinstance(event, kind)]

    def await_event(
        self, kind: type[Event], test: Callable[[Any], bool] = lambda _: True, s: float = 15
    ) -> Any:
        self.wait_until(lambda: any(test(e) for e in self.of(kind)), f"{kind.__name__}, got {self.events}", s)
        return next(e for e in self.of(kind) if test(e))

    def assign(self, plan: PathPlan) -> PathsChanged:
        assert self.controller is not None
        cause = envelope(StagingStarted(job_id="1"))
        self.controller.apply(AssignPaths(plan=plan), cause)
        return self.await_event(PathsChanged, lambda e: e.cause_id == cause.event_id)  # type: ignore[no-any-return]

    def ping(self, src: int, dst: int, **options: Any) -> bool:
        return bool(self.ovs.ping(f"{self.ovs.name}-h{src}", f"10.9.0.{dst}", **options))


@pytest.fixture
def world(ovs: Any, wait_until: Callable[..., None], caplog: pytest.LogCaptureFixture) -> Iterator[World]:
    world = World(ovs, wait_until)
    yield world
    if world.controller is not None:
        world.controller.stop()
    errors = [r.getMessage() for r in caplog.get_records("call") if r.levelname == "ERROR"]
    assert not errors, "the controller must meet nothing unforeseen"


class Stream:
    """Pings every 10 ms in the background; counts what was lost between the first and the last answer."""

    def __init__(self, world: World, src: int, dst: int) -> None:
        namespace = f"{world.ovs.name}-h{src}"
        self._command = ["ip", "netns", "exec", namespace, "ping", "-i", "0.01", f"10.9.0.{dst}"]

    def __enter__(self) -> Stream:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        time.sleep(0.2)
        return self

    def __exit__(self, *_: object) -> None:
        time.sleep(0.2)
        self._process.send_signal(signal.SIGINT)
        said, _ = self._process.communicate(timeout=10)
        answered = [int(number) for number in re.findall(r"icmp_seq=(\d+) ttl", said)]
        assert len(answered) == len(set(answered)), "an answer came twice"
        self.sent = max(answered)
        self.lost = self.sent - len(answered)


def test_every_pair_talks_and_learns_labels_not_addresses(world: World) -> None:
    topology = fabric_topology()
    build(world.ovs, topology)
    controller = world.ready(topology)
    for src in (1, 2, 3, 4):
        for dst in (1, 2, 3, 4):
            assert src == dst or world.ping(src, dst), f"h{src} to h{dst}"
    label = labels.format_mac(labels.label_of(topology, "h3"))
    neighbours = world.ovs.run("ip", "-n", f"{world.ovs.name}-h1", "neigh", inside=False)
    assert f"10.9.0.3 dev eth0 lladdr {label}" in neighbours
    assert controller.arp_counts.answered >= 12
    assert not world.of(CablingError)
    assert not world.of(LinkDown)
    assert world.of(TopologyChanged)[0].topology == topology


def test_a_request_for_nobody_is_dropped_and_reaches_no_other_host(world: World) -> None:
    topology = fabric_topology()
    build(world.ovs, topology)
    controller = world.ready(topology, options=Options(announce_s=60, poll_s=0))

    def received() -> list[str]:
        path = "/sys/class/net/eth0/statistics/rx_packets"
        return [
            world.ovs.run("ip", "netns", "exec", f"{world.ovs.name}-h{n}", "cat", path, inside=False)
            for n in (2, 3, 4)
        ]

    def is_quiet() -> bool:
        before = received()
        time.sleep(0.5)  # longer than between the first announcements
        return received() == before

    world.wait_until(is_quiet, "the first announcements to end")
    before = received()
    assert not world.ping(1, 77, timeout_s=1)
    assert controller.arp_counts.unknown >= 1
    assert received() == before


def test_switch_overs_lose_no_packet_and_report_their_parts(world: World) -> None:
    topology = fabric_topology()
    build(world.ovs, topology)
    world.ready(topology)
    assert world.ping(1, 3)
    assert world.ping(4, 1)
    with Stream(world, 1, 3) as mpi, Stream(world, 4, 1) as staging:
        changes = [world.assign(plan) for _ in range(10) for plan in (SEPARATED, TOGETHER)]
    assert (mpi.lost, staging.lost) == (0, 0)
    assert mpi.sent > 20
    first = changes[0]
    assert first.plan == SEPARATED
    assert 0 < first.messages <= 2 * 4 * 12
    assert first.switches == 2
    assert min(first.processor_ns, first.planner_ns, first.install_ns) > 0
    assert sorted(c.install_ns for c in changes)[10] < 100e6, "a median switch-over is far below a second"


def test_a_failed_link_is_routed_around_and_used_again_when_it_returns(world: World) -> None:
    topology = fabric_topology()
    build(world.ovs, topology)
    world.ready(topology)
    world.assign(PathPlan(cores={"mpi": ("core1",)}))
    assert world.ping(1, 3)
    with Stream(world, 1, 3) as stream:
        world.ovs.run("ip", "link", "set", "edge2-1", "down")
        world.await_event(LinkDown, lambda e: e.link == "edge2:1-core1:2")
        time.sleep(0.5)
    assert stream.lost < 50, "half a second at most"
    assert world.ping(1, 3)
    world.ovs.run("ip", "link", "set", "edge2-1", "up")
    world.await_event(LinkUp, lambda e: e.link == "edge2:1-core1:2")
    world.wait_until(lambda: through(world, "core1", 1, 3), "the link to be used again")


def through(world: World, core: str, src: int, dst: int) -> bool:
    """Whether pings from src to dst pass a core switch."""
    counters = re.compile(r"rx pkts=(\d+)")

    def received() -> int:
        return sum(
            map(
                int,
                counters.findall(
                    world.ovs.run("ovs-ofctl", "-O", "OpenFlow13,OpenFlow14", "dump-ports", core)
                ),
            )
        )

    before = received()
    assert world.ping(src, dst, count=20, timeout_s=5)
    return received() - before >= 30


def test_a_controller_that_restarts_changes_nothing_and_interrupts_nothing(world: World) -> None:
    topology = fabric_topology()
    build(world.ovs, topology)
    world.ready(topology)
    world.assign(SEPARATED)
    assert world.ping(1, 3)
    with Stream(world, 1, 3) as stream:
        assert world.controller is not None
        world.controller.stop()
        world.events.clear()
        world.start(fabric_topology(addresses=True), plan=SEPARATED)
        world.connect()
        changed = world.await_event(PathsChanged)
    assert stream.lost == 0
    assert (changed.messages, changed.plan) == (0, SEPARATED)


def test_addresses_are_learnt_back_from_the_rules(world: World) -> None:
    known = fabric_topology()
    build(world.ovs, known)
    world.ready(known)
    assert world.ping(1, 3)
    held = {switch.name: world.ovs.flows(switch.name) for switch in known.switches}
    assert world.controller is not None
    world.controller.stop()
    world.events.clear()
    world.start(fabric_topology(addresses=False))
    world.connect()
    assert world.await_event(PathsChanged).messages == 0
    time.sleep(0.3)  # what is no longer wanted is removed a little later
    assert {switch.name: world.ovs.flows(switch.name) for switch in known.switches} == held
    assert world.ping(1, 3)


CONTROLLER = """
import sys, time
from waystage.interconnect.controller import InterconnectController
from waystage.interconnect.graphml import read_topology
from waystage.events import PathPlan, PathsChanged
import msgspec
plan = msgspec.json.decode(sys.argv[2], type=PathPlan)
def publish(event):
    if isinstance(event, PathsChanged):
        print(event.messages, flush=True)
with InterconnectController(publish, ("127.0.0.1", 6653), read_topology(sys.argv[1]), plan=plan):
    time.sleep(3600)
"""


def test_a_controller_killed_at_any_moment_is_replaced_without_a_packet_lost(
    world: World, tmp_path: Path
) -> None:
    topology = fabric_topology()
    build(world.ovs, topology)
    write_topology(topology, tmp_path / "square.graphml")
    world.ovs.connect("edge1", "edge2", "core1", "core2", port=6653)

    def start() -> subprocess.Popen[str]:
        arguments = (str(tmp_path / "square.graphml"), msgspec.json.encode(SEPARATED).decode())
        return subprocess.Popen(
            ["ip", "netns", "exec", world.ovs.name, sys.executable, "-c", CONTROLLER, *arguments],
            stdout=subprocess.PIPE,
            text=True,
        )

    processes = [start()]
    try:
        assert processes[0].stdout is not None
        assert int(processes[0].stdout.readline()) > 50, "an empty fabric is filled"
        assert world.ping(1, 3)
        assert world.ping(4, 1)
        with Stream(world, 1, 3) as mpi, Stream(world, 4, 1) as staging:
            for _ in range(2):
                processes[-1].kill()
                processes[-1].wait()
                processes.append(start())
                assert processes[-1].stdout is not None
                assert int(processes[-1].stdout.readline()) == 0, "nothing had to be changed"
        assert (mpi.lost, staging.lost) == (0, 0)
        assert mpi.sent > 50
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_a_switch_that_refuses_a_rule_is_named_and_the_plan_in_force_stays(world: World) -> None:
    topology = fabric_topology()
    build(world.ovs, topology)
    controller = world.ready(topology)
    held = world.ovs.flows("core1")
    table = ("flow_limit=1", "overflow_policy=refuse")
    world.ovs.vsctl(
        "--", "--id=@t", "create", "Flow_Table", *table, "--", "set", "bridge", "core1", "flow_tables:8=@t"
    )
    pairs = [("h1", "edge1", "core1", "edge2", "h3"), ("h3", "edge2", "core1", "edge1", "h1")]
    plan = PathPlan(style="per-pair", base_pairs=tuple(PairPath(path=p) for p in pairs))
    cause = envelope(StagingStarted(job_id="1"))
    controller.apply(AssignPaths(plan=plan), cause)
    refused = world.await_event(PathsRefused)
    assert (refused.cause_id, refused.switch) == (cause.event_id, "core1")
    assert re.search(
        r"it refused add rule table=8,priority=100,eth_dst=.*: OFPET_FLOW_MOD_FAILED.*TABLE_FULL",
        refused.reason,
    )
    assert world.ping(1, 3)
    assert world.ovs.flows("core1") == held
    world.assign(SEPARATED)


def test_a_lost_control_channel_is_no_reason_to_route_around(world: World) -> None:
    topology = fabric_topology()
    build(world.ovs, topology)
    controller = world.ready(topology)
    assert world.ping(1, 3)
    with Stream(world, 1, 3) as stream:
        world.ovs.disconnect("core1")
        world.wait_until(lambda: "core1" not in controller.connected_switches(), "the loss")
        changed = world.assign(SEPARATED)
    assert stream.lost == 0
    assert changed.switches == 2, "only the edges change, so the core switch is not needed"
    assert not world.of(LinkDown)
    world.ovs.connect("core1", port=controller.port)
    world.wait_until(lambda: "core1" in controller.connected_switches(), "the return")


def test_an_edge_switch_that_is_away_is_named_and_catches_up_when_it_returns(world: World) -> None:
    topology = fabric_topology()
    build(world.ovs, topology)
    controller = world.ready(topology)
    assert world.ping(1, 3)  # from now on both know each other's label
    world.ovs.disconnect("edge1")
    world.wait_until(lambda: "edge1" not in controller.connected_switches(), "the loss")
    cause = envelope(StagingStarted(job_id="1"))
    controller.apply(AssignPaths(plan=SEPARATED), cause)
    refused = world.await_event(PathsRefused)
    assert (refused.switch, refused.cause_id) == ("edge1", cause.event_id)
    assert world.ping(1, 3)
    world.ovs.connect("edge1", port=controller.port)
    changed = world.await_event(PathsChanged, lambda e: e.cause_id == cause.event_id)
    assert changed.switches == 1
    assert world.ping(1, 3)


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


def test_use_is_counted_by_port_and_class(world: World) -> None:
    topology = fabric_topology()
    build(world.ovs, topology)
    world.ready(topology, options=Options(poll_s=0.2))
    world.assign(SEPARATED)
    assert world.ping(1, 3)
    with Stream(world, 1, 3), Stream(world, 4, 1):
        world.events.clear()
        world.await_event(LinkUse, lambda e: used(e, "edge1", 1, "mpi") and used(e, "edge2", 2, "staging"))
    assert not any(used(e, "edge1", 2, "mpi") for e in world.of(LinkUse))
    assert any(used(e, "edge2", 3, "mpi") and used(e, "core1", 2, "mpi") for e in world.of(LinkUse))


def used(event: LinkUse, node: str, port: int, traffic: str) -> int:
    return sum(u.by_class.get(traffic, 0) for u in event.ports if (u.node, u.port) == (node, port))  # type: ignore[call-overload]


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
        world.wait_until(lambda: world.ping(1, 3) and world.ping(4, 2), "pings to pass")
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
    done.wait(60)
    for process in processes:
        process.kill()
        process.wait()


def test_envelopes_time_the_first_part(world: World) -> None:
    topology = fabric_topology()
    build(world.ovs, topology)
    controller = world.ready(topology)
    cause = Envelope(event=StagingStarted(job_id="1"), event_id="e", time_ns=time.time_ns() - 10**9)
    controller.apply(AssignPaths(plan=SEPARATED), cause)
    changed = world.await_event(PathsChanged, lambda e: e.cause_id == "e")
    assert 1e9 <= changed.processor_ns < 10e9
