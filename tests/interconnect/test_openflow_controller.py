"""The interconnect controller on a real Open vSwitch: paths, switch-overs, use."""

from __future__ import annotations

import contextlib
import select
import socket
import time

import pytest

from harness import WAIT_S, measuring, wait_until
from openflow_square import SEPARATED, TOGETHER, Stream, World
from waystage.events import (
    AssignPaths,
    CablingError,
    Envelope,
    LinkDown,
    LinkUse,
    PathsChanged,
    StagingStarted,
    TopologyChanged,
)
from waystage.interconnect import labels
from waystage.interconnect.watch import Options

pytestmark = pytest.mark.lab

ETH_P_ARP = 0x0806


def test_every_pair_talks_and_learns_labels_not_addresses(world: World) -> None:
    controller = world.square()
    for src in (1, 2, 3, 4):
        for dst in (1, 2, 3, 4):
            assert src == dst or world.ping(src, dst), f"h{src} to h{dst}"
    label = labels.format_mac(labels.label_of(world.topology, "h3"))
    neighbours = world.ovs.run("ip", "-n", f"{world.ovs.name}-h1", "neigh", inside=False)
    assert f"10.9.0.3 dev eth0 lladdr {label}" in neighbours
    assert controller.arp_counts.answered >= 12
    assert not world.of(CablingError)
    assert not world.of(LinkDown)
    assert world.of(TopologyChanged)[0].topology == world.topology


def test_a_request_for_an_unknown_host_is_dropped_and_reaches_no_other_host(world: World) -> None:
    controller = world.square(options=Options(poll_s=0))
    with contextlib.ExitStack() as stack:
        others = []
        for number in (2, 3, 4):
            with world.ovs.within(f"h{number}"):
                others.append(stack.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_RAW)))
                others[-1].bind(("eth0", ETH_P_ARP))
        assert not world.ping(1, 77, timeout_s=1)
        wait_until(lambda: controller.arp_counts.unknown >= 1, what="the request at the controller")
        assert select.select(others, [], [], 0)[0] == []


def test_switch_overs_lose_no_packet_and_report_their_parts(world: World) -> None:
    world.square()
    assert world.ping(1, 3)
    assert world.ping(4, 1)
    with measuring():
        with Stream(world, 1, 3) as mpi, Stream(world, 4, 1) as staging:
            changes = [world.assign(plan) for _ in range(10) for plan in (SEPARATED, TOGETHER)]
        median_ns = sorted(change.install_ns for change in changes)[10]
        assert median_ns < 100e6, "a median switch-over is far below a second"
    assert (mpi.lost, staging.lost) == (0, 0)
    assert mpi.sent > 20
    first = changes[0]
    assert first.plan == SEPARATED
    assert 0 < first.messages <= 2 * 4 * 12
    assert first.switches == 2
    assert min(first.processor_ns, first.planner_ns, first.install_ns) > 0


def test_use_is_counted_by_port_and_class(world: World) -> None:
    world.square(options=Options(poll_s=0.2))
    world.assign(SEPARATED)
    assert world.ping(1, 3)
    with Stream(world, 1, 3), Stream(world, 4, 1):
        world.events.clear()
        for node, port, traffic in (
            ("edge1", 1, "mpi"),
            ("edge2", 3, "mpi"),
            ("core1", 2, "mpi"),
            ("edge2", 2, "staging"),
        ):
            world.await_event(LinkUse, lambda e: used(e, node, port, traffic))  # noqa: B023
    assert not any(used(e, "edge1", 2, "mpi") for e in world.of(LinkUse))


def test_readings_within_a_second_are_parts_of_its_use(world: World) -> None:
    world.square(options=Options(poll_s=2, part_s=0.05))
    world.assign(SEPARATED)
    assert world.ping(1, 3)
    with Stream(world, 1, 3):
        world.events.clear()
        event = world.await_event(LinkUse, lambda e: used(e, "edge1", 1, "mpi") and len(e.parts) > 1)
    assert sum(part.interval_ns for part in event.parts) == event.interval_ns
    for use in event.ports:
        parts = [u for part in event.parts for u in part.ports if (u.node, u.port) == (use.node, use.port)]
        assert use.bytes == sum(u.bytes for u in parts)
        assert use.by_class == {c: sum(u.by_class.get(c, 0) for u in parts) for c in use.by_class}


def used(event: LinkUse, node: str, port: int, traffic: str) -> int:
    return sum(u.by_class.get(traffic, 0) for u in event.ports if (u.node, u.port) == (node, port))  # type: ignore[call-overload]


def test_envelopes_time_the_first_part(world: World) -> None:
    controller = world.square()
    cause = Envelope(event=StagingStarted(job_id="1"), event_id="e", time_ns=time.time_ns() - 10**9)
    controller.apply(AssignPaths(plan=SEPARATED), cause)
    changed = world.await_event(PathsChanged, lambda e: e.cause_id == "e")
    assert 1e9 <= changed.processor_ns < (1 + WAIT_S) * 1e9
