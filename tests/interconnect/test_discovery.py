"""Discovery without a network: what is reported about cables, hosts and switches, and when."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from waystage.events import (
    CablingError,
    Event,
    HostSeen,
    LinkDown,
    LinkUp,
    SwitchDown,
    SwitchUp,
    TopologyChanged,
)
from waystage.interconnect.cabling import Port
from waystage.interconnect.discovery import SETTLE_S, SILENCE_S, Discovery
from waystage.interconnect.generate import paper
from waystage.interconnect.lldp import Neighbour
from waystage.topology import Topology

UP, DOWN = Port(up=True, speed_bps=10**9), Port(up=False)


class Fabric:
    """Drives a Discovery as a fabric cabled like `topology` would."""

    def __init__(self, given: Topology | None, cabled: Topology) -> None:
        self.discovery = Discovery(given, storage_hosts=("storage1",))
        self.cabled = cabled
        self.now = 100.0
        self.quiet: set[tuple[str, int]] = set()
        self.away: set[str] = set()
        self.events: list[Event] = self.discovery.announce()
        for switch in cabled.switches:
            self.connect(switch.name)

    def take(self, events: Iterable[Event]) -> list[Event]:
        new = list(events)
        self.events += new
        return new

    def dpid(self, switch: str) -> int:
        return self.cabled.switch_by_name[switch].dpid

    def connect(self, switch: str) -> list[Event]:
        self.away.discard(switch)
        ports = {link.port_at(switch): UP for link in self.cabled.adjacency[switch]}
        return self.take(self.discovery.switch_connected(self.dpid(switch), ports, self.now))

    def lose(self, switch: str) -> list[Event]:
        self.away.add(switch)
        return self.take(self.discovery.switch_lost(self.dpid(switch), self.now))

    def port(self, switch: str, port: int, state: Port | None) -> list[Event]:
        return self.take(self.discovery.port_changed(self.dpid(switch), port, state, self.now))

    def announce(self) -> list[Event]:
        """Every connected switch announces its ports; its connected neighbours hear it."""
        new: list[Event] = []
        for link in self.cabled.switch_links:
            for a, a_port, b, b_port in (
                (link.a, link.a_port, link.b, link.b_port),
                (link.b, link.b_port, link.a, link.a_port),
            ):
                if not self.away & {a, b} and (b, b_port) not in self.quiet:
                    said = Neighbour(switch=(self.dpid(a), a_port))
                    new += self.take(self.discovery.heard(self.dpid(b), b_port, said, self.now))
        return new

    def run(self, seconds: float) -> list[Event]:
        new: list[Event] = []
        for _ in range(round(seconds)):
            self.now += 1.0
            new += self.announce()
            new += self.take(self.discovery.tick(self.now, 1.0))
        return new

    def hosts_speak(self) -> list[Event]:
        new: list[Event] = []
        for host, (switch, port) in self.cabled.attachment.items():
            number = self.cabled.host_index[host] + 1
            said = Neighbour(name=host, mac=f"02:42:00:00:00:{number:02x}", ip=f"10.0.0.{number}")
            new += self.take(self.discovery.heard(self.dpid(switch), port, said, self.now))
        return new

    def live_links(self) -> set[str]:
        view = self.discovery.view()
        assert view is not None
        return {link.name for link in view.live.links}


@pytest.fixture
def fabric() -> Fabric:
    """Cabled as given, and known to be."""
    fabric = Fabric(paper(), paper())
    fabric.run(3)
    return fabric


@pytest.fixture
def unknown() -> Fabric:
    """Without a given topology; each host has been heard once."""
    fabric = Fabric(None, paper())
    fabric.announce()
    fabric.hosts_speak()
    return fabric


def told(events: Iterable[Event], kind: type[Event]) -> list[Event]:
    return [event for event in events if isinstance(event, kind)]


def uplink(topology: Topology) -> tuple[str, str, int, str, int]:
    link = topology.switch_links[0]
    return link.name, link.a, link.a_port, link.b, link.b_port


def test_a_fabric_cabled_as_given_is_reported_once_and_then_nothing() -> None:
    fabric = Fabric(paper(), paper())
    assert fabric.events == [TopologyChanged(topology=paper())]
    assert fabric.run(60) == []
    assert fabric.live_links() == {link.name for link in paper().links}


def test_a_port_that_loses_carrier_takes_its_link_down_at_once_and_up_when_it_returns(fabric: Fabric) -> None:
    name, a, a_port, *_ = uplink(paper())
    assert fabric.port(a, a_port, DOWN) == [LinkDown(link=name)]
    assert name not in fabric.live_links()
    fabric.quiet.add((a, a_port))
    assert fabric.run(20) == []
    fabric.quiet.clear()
    assert fabric.port(a, a_port, UP) == [LinkUp(link=name)]
    assert fabric.run(20) == []


def test_a_link_that_goes_silent_in_one_direction_is_down_and_up_when_heard_again(fabric: Fabric) -> None:
    name, a, a_port, *_ = uplink(paper())
    fabric.quiet.add((a, a_port))
    assert fabric.run(SILENCE_S - 1) == []
    assert fabric.run(3) == [LinkDown(link=name)]
    fabric.quiet.clear()
    assert fabric.run(1) == [LinkUp(link=name)]


def test_traffic_proves_that_a_full_cable_works(fabric: Fabric) -> None:
    _, a, a_port, *_ = uplink(paper())
    fabric.quiet.add((a, a_port))
    for _ in range(20):
        fabric.discovery.traffic(fabric.dpid(a), [a_port], fabric.now)
        assert fabric.run(1) == []


def test_a_controller_that_slept_does_not_take_its_sleep_for_silence(fabric: Fabric) -> None:
    fabric.now += 60.0
    assert told(fabric.take(fabric.discovery.tick(fabric.now, 1.0)), LinkDown) == []
    assert fabric.run(20) == []


def test_a_lost_control_channel_alone_takes_nothing_down(fabric: Fabric) -> None:
    core = paper().core_switches[0]
    assert fabric.lose(core) == []
    assert fabric.run(60) == []
    assert fabric.live_links() == {link.name for link in paper().links}
    assert fabric.connect(core) == []
    assert fabric.run(20) == []


def test_a_switch_is_down_when_its_channel_and_every_neighbours_carrier_are_gone(fabric: Fabric) -> None:
    core = paper().core_switches[0]
    fabric.lose(core)
    ends = [(link.other(core), link.port_at(link.other(core))) for link in paper().adjacency[core]]
    for switch, port in ends[:-1]:
        assert told(fabric.port(switch, port, DOWN), SwitchDown) == []
    assert SwitchDown(switch=core) in fabric.port(*ends[-1], DOWN)
    for switch, port in ends:
        fabric.port(switch, port, UP)
    assert SwitchUp(switch=core) in fabric.events
    fabric.connect(core)
    assert fabric.run(20) == []


def test_swapped_cables_are_named_at_all_four_ends_and_only_once() -> None:
    given = paper()
    edge = given.edge_switches[0]
    first, second = [link for link in given.adjacency[edge] if link in given.switch_links][:2]
    swapped = Topology.build(
        "swapped",
        given.hosts,
        given.switches,
        [
            *(link for link in given.links if link not in (first, second)),
            type(first)(a=first.a, a_port=first.a_port, b=second.b, b_port=second.b_port, capacity_bps=1),
            type(first)(a=second.a, a_port=second.a_port, b=first.b, b_port=first.b_port, capacity_bps=1),
        ],
    )
    fabric = Fabric(given, swapped)
    errors = told(fabric.run(20), CablingError)
    assert len(errors) == 4
    expected = f"{first.other(edge)}:{first.port_at(first.other(edge))}"
    found = f"{second.other(edge)}:{second.port_at(second.other(edge))}"
    assert CablingError(switch=edge, port=first.port_at(edge), expected=expected, found=found) in errors
    down = told(fabric.events, LinkDown)
    assert sorted(event.link for event in down) == sorted((first.name, second.name))  # type: ignore[attr-defined]


def test_a_cable_that_is_missing_from_the_start_is_named_with_nothing_found() -> None:
    fabric = Fabric(paper(), paper())
    name, a, a_port, b, b_port = uplink(paper())
    fabric.quiet |= {(a, a_port), (b, b_port)}
    events = fabric.run(SILENCE_S + 3)
    assert CablingError(switch=a, port=a_port, expected=f"{b}:{b_port}", found="") in events
    assert LinkDown(link=name) in events


def test_hosts_are_seen_once_by_name_or_address_and_a_host_in_the_wrong_port_is_named() -> None:
    given = paper()
    fabric = Fabric(given, given)
    seen = told(fabric.hosts_speak(), HostSeen)
    assert [event.host for event in seen] == [host.name for host in given.hosts]  # type: ignore[attr-defined]
    assert fabric.hosts_speak() == []
    view = fabric.discovery.view()
    assert view is not None
    assert view.macs.keys() == view.ips.keys() == given.host_by_name.keys()
    first, other = given.hosts[0].name, given.hosts[-1].name
    switch, port = given.attachment[first]
    said = Neighbour(name=f"{other}.cluster.example", mac="02:42:00:00:00:99", ip=None)
    wrong = fabric.take(fabric.discovery.heard(fabric.dpid(switch), port, said, fabric.now))
    assert wrong == [CablingError(switch=switch, port=port, expected=f"{first}:1", found=f"{other}:1")]
    assert fabric.discovery.heard(fabric.dpid(switch), port, said, fabric.now) == []


def test_without_a_given_topology_the_heard_one_is_used_once_it_has_settled() -> None:
    cabled = paper()
    fabric = Fabric(None, cabled)
    assert fabric.discovery.view() is None
    fabric.announce()
    fabric.hosts_speak()
    assert told(fabric.events, TopologyChanged) == []
    found = told(fabric.run(SETTLE_S + 1), TopologyChanged)
    assert len(found) == 1
    topology: Topology = found[0].topology  # type: ignore[attr-defined]
    assert topology.host_by_name.keys() == cabled.host_by_name.keys()
    assert {s.dpid for s in topology.switches} == {s.dpid for s in cabled.switches}
    assert len(topology.links) == len(cabled.links)
    assert len(topology.core_switches) == len(cabled.core_switches)
    assert told(fabric.run(30), TopologyChanged) == []


def test_a_discovered_link_that_fails_stays_in_the_topology_as_down(unknown: Fabric) -> None:
    fabric = unknown
    fabric.run(SETTLE_S + 1)
    _, a, a_port, *_ = uplink(paper())
    events = fabric.port(a, a_port, DOWN)
    assert len(told(events, LinkDown)) == 1
    assert told(fabric.run(30), TopologyChanged) == []


def test_two_hosts_with_one_address_do_not_keep_the_others_from_being_used(unknown: Fabric) -> None:
    fabric, cabled = unknown, paper()
    last = cabled.hosts[-1].name
    switch, port = cabled.attachment[last]
    said = Neighbour(name=last, mac="02:42:00:00:00:ff", ip="10.0.0.1")
    fabric.take(fabric.discovery.heard(fabric.dpid(switch), port, said, fabric.now))
    found = told(fabric.run(SETTLE_S + 1), TopologyChanged)
    hosts = found[0].topology.host_by_name  # type: ignore[attr-defined]
    assert hosts[cabled.hosts[0].name].ip == "10.0.0.1"
    assert hosts[last].ip is None
