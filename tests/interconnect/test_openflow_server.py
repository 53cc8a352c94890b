"""The OpenFlow side against a real Open vSwitch: what was asked for lands, refusals are named."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from harness import free_port, wait_until
from openflow_peer import Recorder
from waystage.interconnect.openflow import OpenFlowError, OpenFlowServer
from waystage.interconnect.rules import (
    Bucket,
    Change,
    Field,
    Goto,
    Group,
    Output,
    PopVlan,
    PushVlan,
    Rule,
    SetEthDst,
    SwitchRules,
    ToController,
    ToGroup,
    WriteMetadata,
)

OURS = (0x57 << 56, 0xFF << 56)
COOKIE = OURS[0] | 0x1234


@pytest.fixture
def fabric_server(ovs: Any, seen: Recorder) -> Iterator[OpenFlowServer]:
    server = OpenFlowServer(seen, ("127.0.0.1", 0), ours=OURS)
    with ovs.within():
        server.start()
    yield server
    server.stop()


def rule(priority: int, *match: Field, steps: tuple[Any, ...] = (), table: int = 0) -> Rule:
    return Rule(table=table, priority=priority, match=match, steps=steps, cookie=COOKIE + priority)


EVERY_KIND: list[Rule | Group] = [
    Group(group_id=7, buckets=(Bucket(steps=(PushVlan(101, 3), Output(1))),)),
    Group(
        group_id=8,
        kind="failover",
        buckets=(
            Bucket(steps=(PushVlan(101, 3), Output(1)), watch_port=1),
            Bucket(steps=(PushVlan(102, 3), Output(2)), watch_port=2),
        ),
    ),
    rule(1, steps=(ToController(),)),
    rule(2, Field("eth_type", 0x88CC), steps=(ToController(),)),
    rule(3, Field("in_port", 1), Field("vlan_vid", -1), steps=(WriteMetadata(0x5, 0xFF), Goto(4))),
    rule(4, Field("vlan_pcp", 2), Field("vlan_vid", -1), steps=(PopVlan(), WriteMetadata(1, 1), Goto(2))),
    rule(5, Field("eth_dst", 0x0257_0001_0000, 0xFFFF_FFFF_0000), Field("vlan_vid", 77), steps=(Output(2),)),
    rule(6, Field("metadata", 0x10, 0xF0), steps=(ToGroup(7),), table=4),
    rule(7, Field("eth_dst", 0x0257_0001_0203), steps=(SetEthDst(0x0242_AC11_0002), Output(1)), table=2),
    rule(
        8, Field("eth_type", 0x800), Field("ip_proto", 6), Field("tcp_dst", 8730), steps=(Goto(2),), table=1
    ),
    rule(9, Field("eth_type", 0x800), Field("ip_dscp", 10), steps=(Goto(2),), table=1),
    rule(
        10, Field("eth_type", 0x800), Field("ip_proto", 17), Field("udp_src", 8730), steps=(Goto(2),), table=1
    ),
    rule(11, Field("vlan_vid", 0), table=5),
    rule(12, Field("eth_src", 0x0242_AC11_0002), Field("in_port", 2), steps=(ToGroup(8),)),
]


def added(items: list[Rule | Group]) -> list[Change]:
    return [Change(op="add", item=item) for item in items]


@pytest.mark.lab
@pytest.mark.parametrize("version", ["OpenFlow13", "OpenFlow14", "OpenFlow13,OpenFlow14,OpenFlow15"])
def test_what_is_installed_is_read_back_equal(
    ovs: Any, seen: Recorder, fabric_server: OpenFlowServer, version: str
) -> None:
    ovs.add_switch("s1", 0x11, version)
    ovs.add_switch("s2", 0x12, version)
    ovs.add_cable("s1", 1, "s2", 1)
    ovs.add_cable("s1", 2, "s2", 2)
    ovs.connect("s1", port=fabric_server.port)
    wait_until(lambda: 0x11 in seen.up, what="the switch's connection")
    ports, held = seen.up[0x11]
    assert held == SwitchRules()
    # A cable that has just been made may come up after the switch.
    wait_until(
        lambda: all(state.up for state in fabric_server.connected()[0x11].values()), what="both cables"
    )
    assert set(ports) == {1, 2}
    assert ports[1].name == "s1-1"

    outcome = fabric_server.install({0x11: added(EVERY_KIND)})[0x11]

    assert outcome.error is None
    rules = [item for item in EVERY_KIND if isinstance(item, Rule)]
    groups = [item for item in EVERY_KIND if isinstance(item, Group)]
    assert fabric_server.read_back(0x11) == SwitchRules.of(rules, groups)
    assert len(ovs.flows("s1").strip().splitlines()) == len(rules)
    assert "group_id=7,type=indirect,bucket=actions=push_vlan:0x8100" in ovs.groups("s1")


@pytest.mark.lab
def test_a_refused_rule_is_named_and_nothing_changes_on_any_switch(
    ovs: Any, seen: Recorder, fabric_server: OpenFlowServer
) -> None:
    for name, dpid in (("s1", 1), ("s2", 2)):
        ovs.add_switch(name, dpid)
    ovs.connect("s1", "s2", port=fabric_server.port)
    wait_until(lambda: len(seen.up) == 2, what="both switches")
    good = added([rule(1, steps=(Output(1),)), rule(2, Field("in_port", 1), steps=(Output(2),))])
    to_a_group_that_is_not_there = added(
        [rule(3, steps=(Output(1),)), rule(4, Field("in_port", 3), steps=(ToGroup(99),))]
    )

    outcomes = fabric_server.install({1: good, 2: to_a_group_that_is_not_there})

    assert outcomes[2].error is not None
    assert "table=0,priority=4,in_port=0x3" in outcomes[2].error
    assert fabric_server.read_back(2) == SwitchRules()
    assert "priority" not in ovs.flows("s2")


@pytest.mark.lab
@pytest.mark.parametrize("version", ["OpenFlow13", "OpenFlow14"])
def test_a_rule_refused_while_staged_leaves_all_switches_as_they_were(
    ovs: Any, seen: Recorder, fabric_server: OpenFlowServer, version: str
) -> None:
    for name, dpid in (("s1", 1), ("s2", 2)):
        ovs.add_switch(name, dpid, version)
    ovs.connect("s1", "s2", port=fabric_server.port)
    wait_until(lambda: len(seen.up) == 2, what="both switches")
    good = added([rule(1, steps=(Output(1),)), rule(2, Field("in_port", 1), steps=(Output(2),))])
    bad_port = added([rule(3, steps=(Output(1),)), rule(4, steps=(Output(0xFFFFFF01),))])

    outcomes = fabric_server.install({1: good, 2: bad_port})

    assert outcomes[2].own
    assert outcomes[2].error is not None
    assert "table=0,priority=4,any packet" in outcomes[2].error
    assert not outcomes[1].own
    assert "another switch refused" in (outcomes[1].error or "")
    assert fabric_server.read_back(1) == fabric_server.read_back(2) == SwitchRules()
    # The discarded bundles are no obstacle to the next ones.
    assert all(o.error is None for o in fabric_server.install({1: good, 2: good}).values())


@pytest.mark.lab
def test_a_change_replaces_the_rule_with_its_cookie_and_a_single_change_needs_no_bundle(
    ovs: Any, seen: Recorder, fabric_server: OpenFlowServer
) -> None:
    ovs.add_switch("s1", 1)
    ovs.connect("s1", port=fabric_server.port)
    wait_until(lambda: 1 in seen.up, what="the switch's connection")
    old = rule(5, Field("in_port", 1), steps=(Output(2),))
    new = Rule(table=0, priority=5, match=old.match, steps=(Output(3),), cookie=COOKIE + 99)
    for changes in ([Change(op="add", item=old)], [Change(op="modify", item=new)]):
        assert fabric_server.install({1: changes})[1].error is None
    assert fabric_server.read_back(1) == SwitchRules.of([new], [])
    assert fabric_server.install({1: [Change(op="delete", item=new)]})[1].error is None
    assert fabric_server.read_back(1) == SwitchRules()
    refused = fabric_server.install({1: [Change(op="modify", item=Group(group_id=5))]})[1]
    assert "group 5" in (refused.error or "")
    assert not refused.unknown


@pytest.mark.lab
def test_a_switch_without_bundles_gets_plain_messages_and_its_refusal_leaves_doubt(
    ovs: Any,
    seen: Recorder,
    fabric_server: OpenFlowServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unknown_experiment(version: int, bundle_id: int, kind: int) -> bytes:
        return (
            bytes((version, 4)) + (24).to_bytes(2, "big") + bytes(4) + bytes.fromhex("00beefee") + bytes(12)
        )

    monkeypatch.setattr("waystage.interconnect.openflow_wire.bundle_control", unknown_experiment)
    ovs.add_switch("s1", 1, "OpenFlow13")
    ovs.connect("s1", port=fabric_server.port)
    wait_until(lambda: 1 in seen.up, what="the switch's connection")
    good, bad = rule(1, steps=(Output(1),)), rule(2, Field("in_port", 1), steps=(ToGroup(99),))
    assert fabric_server.install({1: added([good, rule(3, Field("in_port", 2))])})[1].error is None
    assert len(fabric_server.read_back(1).rules) == 2
    outcome = fabric_server.install({1: added([rule(4, Field("in_port", 4)), bad])})[1]
    assert "priority=2,in_port=0x1" in (outcome.error or "")
    assert outcome.unknown
    assert len(fabric_server.read_back(1).rules) == 3


@pytest.mark.lab
def test_ports_packets_and_reconnection_are_reported(
    ovs: Any, seen: Recorder, fabric_server: OpenFlowServer
) -> None:
    ovs.add_switch("s1", 1)
    ovs.add_switch("s2", 2)
    ovs.add_cable("s1", 1, "s2", 1)
    ovs.connect("s1", "s2", port=fabric_server.port)
    wait_until(lambda: len(seen.up) == 2, what="both switches")
    to_controller = [Change(op="add", item=rule(1, Field("eth_type", 0x88CC), steps=(ToController(),)))]
    assert fabric_server.install({2: to_controller})[2].error is None
    frame = bytes.fromhex("0180c200000e 025700000001 88cc") + bytes(46)
    assert fabric_server.packet_out(1, 1, frame)
    wait_until(lambda: (2, 1, frame) in seen.packets, what="the frame's arrival")
    ovs.run("ip", "link", "set", "s1-1", "down")
    wait_until(
        lambda: {(d, p) for d, p, s in seen.ports if s and not s.up} == {(1, 1), (2, 1)},
        what="both ports down",
    )

    flows, ports = fabric_server.count(2, *OURS)
    assert [count.cookie for count in flows] == [COOKIE + 1]
    assert flows[0].bytes == len(frame)
    assert next(p for p in ports if p.port == 1).rx_packets >= 1

    seen.up.clear()
    ovs.disconnect("s2")
    wait_until(lambda: seen.down == [2], what="the loss of a switch")
    assert fabric_server.install({2: to_controller})[2].error == "it is not connected"
    ovs.connect("s2", port=fabric_server.port)
    wait_until(lambda: 2 in seen.up, what="the switch's return")
    assert len(seen.up[2][1].rules) == 1


@pytest.mark.lab
def test_a_switch_that_stops_answering_is_cut_off_and_named(
    ovs: Any, seen: Recorder, fabric_server: OpenFlowServer
) -> None:
    ovs.add_switch("s1", 1)
    ovs.connect("s1", port=fabric_server.port)
    wait_until(lambda: 1 in seen.up, what="the switch's connection")
    ovs.pause()
    try:
        outcome = fabric_server.install({1: added([rule(1), rule(2)])}, timeout_s=0.3)[1]
    finally:
        ovs.resume()
    assert "did not answer within 0.3 s" in (outcome.error or "")
    assert outcome.unknown
    wait_until(lambda: seen.down == [1], what="the loss's report")


def test_a_port_in_use_gives_one_clear_error(server: OpenFlowServer) -> None:
    second = OpenFlowServer(Recorder(), ("127.0.0.1", server.port))
    with pytest.raises(
        OpenFlowError, match=r"cannot listen for switches on 127.0.0.1:\d+ .*: stop the other"
    ):
        second.start()
    second.stop()


def test_stopping_ends_every_thread_and_frees_the_port(seen: Recorder) -> None:
    before = set(threading.enumerate())
    for _ in range(3):
        port = free_port()  # no other process is given it between the two
        server = OpenFlowServer(seen, ("127.0.0.1", port))
        server.start()
        with socket.create_connection(("127.0.0.1", port)) as idle:
            idle.recv(8)
            server.stop()
        again = OpenFlowServer(seen, ("127.0.0.1", port))
        again.start()
        again.stop()
    wait_until(lambda: set(threading.enumerate()) <= before, what="the end of each thread")
