"""The interconnect controller on a real Open vSwitch: links, switches and controllers that fail and return."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from harness import measuring, wait_until
from openflow_square import SEPARATED, Stream, World, build, fabric_topology
from waystage.events import (
    AssignPaths,
    LinkDown,
    LinkUp,
    PairPath,
    PathPlan,
    PathsChanged,
    PathsRefused,
    StagingStarted,
    envelope,
)
from waystage.interconnect.graphml import write_topology

pytestmark = pytest.mark.lab


def test_a_failed_link_is_routed_around_and_used_again_when_it_returns(world: World) -> None:
    world.square()
    world.assign(PathPlan(cores={"mpi": ("core1",)}))
    assert world.ping(1, 3)
    with measuring():
        with Stream(world, 1, 3) as stream:
            world.ovs.run("ip", "link", "set", "edge2-1", "down")
            world.await_event(LinkDown, lambda e: e.link == "edge2:1-core1:2")
            time.sleep(0.5)
        assert stream.lost < 50, "half a second at most"
    assert world.ping(1, 3)
    world.ovs.run("ip", "link", "set", "edge2-1", "up")
    world.await_event(LinkUp, lambda e: e.link == "edge2:1-core1:2")
    wait_until(lambda: through(world, "core1", 1, 3), what="the link's use")


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
    assert world.ping(src, dst, count=20)
    return received() - before >= 30


def test_a_controller_that_restarts_changes_nothing_and_interrupts_nothing(world: World) -> None:
    world.square()
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
    world.square()
    assert world.ping(1, 3)
    held = {switch.name: world.ovs.flows(switch.name) for switch in world.topology.switches}
    assert world.controller is not None
    world.controller.stop()
    world.events.clear()
    world.start(fabric_topology(addresses=False))
    world.connect()
    assert world.await_event(PathsChanged).messages == 0
    time.sleep(0.3)  # what is no longer wanted is removed a little later
    assert {switch.name: world.ovs.flows(switch.name) for switch in world.topology.switches} == held
    assert world.ping(1, 3)


CONTROLLER = """
import sys, time
from waystage.interconnect.controller import InterconnectController
from waystage.interconnect.graphml import read_topology
from waystage.interconnect.watch import Options
from waystage.events import PathPlan, PathsChanged
import msgspec
plan = msgspec.json.decode(sys.argv[2], type=PathPlan)
def publish(event):
    if isinstance(event, PathsChanged):
        print(event.messages, flush=True)
options = Options(gather_s=90)
with InterconnectController(publish, ("127.0.0.1", 6653), read_topology(sys.argv[1]), plan=plan, options=options):
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
    controller = world.square()
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
    controller = world.square()
    assert world.ping(1, 3)
    with Stream(world, 1, 3) as stream:
        world.ovs.disconnect("core1")
        wait_until(lambda: "core1" not in controller.connected_switches(), what="the loss")
        changed = world.assign(SEPARATED)
    assert stream.lost == 0
    assert changed.switches == 2, "only the edges change, so the core switch is not needed"
    assert not world.of(LinkDown)
    world.ovs.connect("core1", port=controller.port)
    wait_until(lambda: "core1" in controller.connected_switches(), what="the return")


def test_an_edge_switch_that_is_away_is_named_and_catches_up_when_it_returns(world: World) -> None:
    controller = world.square()
    assert world.ping(1, 3)  # from now on both know each other's label
    world.ovs.disconnect("edge1")
    wait_until(lambda: "edge1" not in controller.connected_switches(), what="the loss")
    cause = envelope(StagingStarted(job_id="1"))
    controller.apply(AssignPaths(plan=SEPARATED), cause)
    refused = world.await_event(PathsRefused)
    assert (refused.switch, refused.cause_id) == ("edge1", cause.event_id)
    assert world.ping(1, 3)
    world.ovs.connect("edge1", port=controller.port)
    changed = world.await_event(PathsChanged, lambda e: e.cause_id == cause.event_id)
    assert changed.switches == 1
    assert world.ping(1, 3)
