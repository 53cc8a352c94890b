"""Flows on the links of a topology: where they go, when they move, what is counted."""

from __future__ import annotations

import numpy as np
import pytest

from waystage.events import LinkUse, PathPlan, TrafficClass
from waystage.interconnect.graphml import read_topology
from waystage.interconnect.planner import path_of
from waystage.worlds.sim.network import Network
from waystage.worlds.sim.programs import Loop, Program, Step, Transfers
from waystage.worlds.sim.wire import Wire

RATE = 100e6 / 8


def transfer(traffic: TrafficClass, src: str, dst: str, size: float, back: float = 0.0) -> Program:
    return (Loop((Step(0.0, Transfers(traffic, [src], [dst], np.array([size]), np.array([back]))),)),)


def sent(use: LinkUse | None) -> dict[tuple[str, str], int]:
    """(node, class) -> bytes that left the node."""
    assert use is not None
    found: dict[tuple[str, str], int] = {}
    for port in use.ports:
        for traffic, count in port.by_class.items():
            found[port.node, traffic] = found.get((port.node, traffic), 0) + count
    return found


def test_a_new_plan_moves_flows_in_progress_with_what_they_have_left() -> None:
    topology = read_topology("paper")
    network = Network(topology)
    plans = [PathPlan(cores={"staging": (core,)}, separated=True) for core in ("core1", "core2")]
    network.route(plans[0])
    number = network.start(transfer("staging", "storage", "c4", 3 * RATE))
    assert network.run_until(1.0) == [] and network.now == 1.0
    network.route(plans[1])
    assert network.run_until(10.0) == [(pytest.approx(3.0), number)]
    left = sent(network.use())
    assert left["core1", "staging"] == pytest.approx(RATE)
    assert left["core2", "staging"] == pytest.approx(2 * RATE)
    assert left["storage", "staging"] == pytest.approx(3 * RATE)


def test_classes_on_one_pair_of_hosts_go_their_own_ways() -> None:
    topology = read_topology("paper")
    network = Network(topology)
    network.route(PathPlan(cores={"staging": ("core1",), "io": ("core2",)}, separated=True))
    network.start(transfer("staging", "storage", "c4", RATE))
    network.start(transfer("io", "storage", "c4", RATE))
    network.run_until(10.0)
    left = sent(network.use())
    assert left["core1", "staging"] == pytest.approx(RATE) and left["core2", "io"] == pytest.approx(RATE)
    assert ("core1", "io") not in left and ("core2", "staging") not in left


@pytest.mark.parametrize("name", ["paper", "sixteen", "fat-tree-4"])
def test_bytes_are_counted_on_the_planners_path_and_nowhere_else(name: str) -> None:
    topology = read_topology(name)
    plan = PathPlan(seed=5)
    network = Network(topology)
    network.route(plan)
    hosts = list(topology.compute_hosts)[:5]
    expected: dict[str, float] = {}
    for number, src in enumerate(hosts):
        for dst in hosts:
            if src == dst:
                continue
            size, back = 1000.0 * (number + 1), 100.0 * (number + 1)
            network.start(transfer("mpi", src, dst, size, back))
            for nodes, amount in (
                (path_of(topology, topology, plan, src, dst), size),
                (path_of(topology, topology, plan, dst, src), back),
            ):
                for node in nodes[:-1]:
                    expected[node] = expected.get(node, 0.0) + amount
    while network.run_until(1000.0):
        pass
    assert {node: float(count) for (node, _), count in sent(network.use()).items()} == pytest.approx(expected)


def test_use_is_what_came_since_the_last_reading() -> None:
    network = Network(read_topology("paper"))
    network.route(PathPlan())
    network.start(transfer("mpi", "c1", "c2", 3 * RATE))
    counts = []
    for second in (1.0, 2.0, 5.0):
        network.run_until(second)
        while network.now < second:
            network.run_until(second)
        use = network.use()
        assert use is not None
        counts.append((use.interval_ns, sent(use).get(("c1", "mpi"), 0)))
    assert counts == [(10**9, int(RATE)), (10**9, int(RATE)), (3 * 10**9, int(RATE))]
    assert network.use() is None  # no time has passed


def test_a_stopped_program_frees_its_links() -> None:
    network = Network(read_topology("paper"))
    network.route(PathPlan())
    first = network.start(transfer("mpi", "c1", "c3", 100 * RATE))
    second = network.start(transfer("mpi", "c2", "c3", RATE))
    network.run_until(1.0)
    network.stop(first)
    assert network.run_until(10.0) == [(pytest.approx(1.5), second)]


def test_a_message_waits_in_a_queue_that_others_fill() -> None:
    """Ten messages of next to nothing, one after the other, beside a transfer that fills their first link."""
    topology = read_topology("paper")
    message: Program = (
        Loop((Step(0.01, Transfers("mpi", ["c1"], ["c2"], np.array([1.0]), np.zeros(1))),), 10),
    )
    for beside, wanted in ((None, 0.1), ("c3", 10 * 0.11), ("c2", 10 * 0.11)):
        network = Network(topology, queue_s=0.1)
        network.route(PathPlan())
        if beside is not None:
            network.start(transfer("io", "c1", beside, 100 * RATE))
        network.run_until(1.0)
        number = network.start(message)
        assert network.run_until(50.0) == [(pytest.approx(1.0 + wanted, rel=1e-3), number)]


def test_a_link_that_others_use_and_do_not_fill_holds_no_queue() -> None:
    """Two transfers share the link to c3: each leaves half of the other link free."""
    network = Network(read_topology("paper"), queue_s=0.1)
    network.route(PathPlan())
    for src in ("c4", "c5"):
        network.start(transfer("mpi", src, "c3", 100 * RATE))
    network.run_until(1.0)
    number = network.start(transfer("mpi", "c4", "c6", RATE / 10))
    assert network.run_until(50.0) == [(pytest.approx(1.2), number)]


def test_headers_follow_from_the_mtu() -> None:
    wire = Wire(9000)
    assert wire.payload_share == pytest.approx(8948 / 9014)
    assert wire.data(8948.0, 1.0) == 9014 and wire.data(8949.0, 1.0) == 8949 + 2 * 66
    assert wire.acknowledgements(2 * 8948.0, 1.0) == 66
    # A thousand messages of one byte are a thousand packets; standard Ethernet carries 94 % payload.
    assert wire.data(1000.0, 1000.0) == 67_000
    assert Wire(1500).payload_share == pytest.approx(1448 / 1514)
