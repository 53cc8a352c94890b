"""Topology discovery by LLDP, and the state of links and switches.

Arrives: switches and ports that come and go, LLDP frames heard, the time.
Leaves: events (`HostSeen`, `LinkDown`, `LinkUp`, `SwitchDown`, `SwitchUp`, `CablingError`,
`TopologyChanged`) and the view that rules are planned from.
Must not know: connections, rules, plans, clocks; each call passes the time.

A cable between switches is up while both ports have carrier and receive each other's LLDP frames. That needs both
control channels, so a lost channel says nothing about the cable: a switch without its controller still forwards. Such
a switch is considered dead only when every connected neighbour has lost carrier towards it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

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
from waystage.interconnect.cabling import Port, assemble, host_named
from waystage.interconnect.lldp import Neighbour
from waystage.topology import Link, Topology

SILENCE_S = 5.0
"""Silence after which a cable is down: five lost announcements."""

SETTLE_S = 2.0
"""Without a given topology, a discovered one is used after this time without changes."""


class View(msgspec.Struct, frozen=True, kw_only=True):
    """`live` is `topology` without failures; `macs` and `ips` are the hosts' addresses."""

    topology: Topology
    live: Topology
    macs: dict[str, str]
    ips: dict[str, str]


class _Seen(msgspec.Struct, kw_only=True):
    """A switch: its ports with carrier or without, and since when its control channel is open."""

    ports: dict[int, Port]
    connected: bool = True


class Discovery:
    """Not thread-safe. Methods that process input return the events to publish."""

    def __init__(self, given: Topology | None, *, storage_hosts: Iterable[str] = ()) -> None:
        self._given = given
        self._topology = given
        self._storage = frozenset(storage_hosts)
        self._switches: dict[int, _Seen] = {}
        self._heard: dict[tuple[int, int], tuple[int, int]] = {}
        self._alive_s: dict[tuple[int, int], float] = {}
        self._hosts: dict[str, HostSeen] = {}
        self._down_links: set[str] = set()
        self._down_switches: set[str] = set()
        self._wrong: dict[tuple[str, int], str] = {}
        self._news_s = 0.0
        self._tick_s = 0.0

    # -- what came in -------------------------------------------------------------------------

    def announce(self) -> list[Event]:
        """The initial view: the given topology."""
        return [] if self._given is None else [TopologyChanged(topology=self._given)]

    def switch_connected(self, dpid: int, ports: Mapping[int, Port], now_s: float) -> list[Event]:
        self._switches[dpid] = _Seen(ports=dict(ports))
        self._news_s = now_s
        for port in ports:
            self._allow_silence(dpid, port, now_s)
        return self._changes(now_s)

    def switch_lost(self, dpid: int, now_s: float) -> list[Event]:
        seen = self._switches.get(dpid)
        if seen is not None:
            seen.connected = False
        return self._changes(now_s)

    def port_changed(self, dpid: int, port: int, state: Port | None, now_s: float) -> list[Event]:
        seen = self._switches.get(dpid)
        if seen is None:
            return []
        if state is None:
            seen.ports.pop(port, None)
        else:
            was_up = port in seen.ports and seen.ports[port].up
            seen.ports[port] = state
            if state.up and not was_up:
                self._heard.pop((dpid, port), None)
                self._allow_silence(dpid, port, now_s)
        return self._changes(now_s)

    def heard(self, dpid: int, port: int, neighbour: Neighbour, now_s: float) -> list[Event]:
        """An LLDP frame came in by a port."""
        if dpid not in self._switches:
            return []
        if neighbour.switch is None:
            return self._heard_host(dpid, port, neighbour, now_s)
        if neighbour.switch == (dpid, port):
            return []  # a host played our own frame back
        self._alive_s[dpid, port] = now_s
        if self._heard.get((dpid, port)) == neighbour.switch:
            return self._changes(now_s) if self._down_links else []
        self._heard[dpid, port] = neighbour.switch
        self._news_s = now_s
        return self._changes(now_s)

    def traffic(self, dpid: int, ports: Iterable[int], now_s: float) -> None:
        """Ports that received packets: on a saturated cable LLDP frames are lost, but packets prove it is up."""
        for port in ports:
            if (dpid, port) in self._heard:
                self._alive_s[dpid, port] = now_s

    def tick(self, now_s: float, interval_s: float) -> list[Event]:
        """Call every `interval_s`. After a late call, silence is not counted: this process was suspended."""
        late_s = now_s - self._tick_s - interval_s
        if self._tick_s and late_s > interval_s:
            self._alive_s = {end: heard_s + late_s for end, heard_s in self._alive_s.items()}
        self._tick_s = now_s
        return self._discovered(now_s) + self._changes(now_s)

    # -- what is known ------------------------------------------------------------------------

    @property
    def topology(self) -> Topology | None:
        return self._topology

    def view(self) -> View | None:
        """The view; None before a topology is known."""
        topology = self._topology
        if topology is None:
            return None
        macs = {host.name: host.mac for host in topology.hosts if host.mac is not None}
        ips = {host.name: host.ip for host in topology.hosts if host.ip is not None}
        for name, seen in self._hosts.items():
            macs.setdefault(name, seen.mac)
            if seen.ip is not None:
                ips.setdefault(name, seen.ip)
        live = topology.without(self._down_links)
        return View(topology=topology, live=live, macs=macs, ips=ips)

    # -- hosts --------------------------------------------------------------------------------

    def _heard_host(self, dpid: int, port: int, said: Neighbour, now_s: float) -> list[Event]:
        switch = self._name(dpid)
        name = said.name
        if self._given is not None:
            host = host_named(self._given, said.name, said.mac)
            expected = self._expected(switch, port)
            found = f"{host or said.name or said.mac}:1"
            if expected != found:
                return self._wrongly_cabled(switch, port, expected, found)
            self._wrong.pop((switch, port), None)
            name = host or said.name
        if not name:
            return []
        seen = HostSeen(host=name, switch=switch, port=port, mac=said.mac, ip=said.ip)
        if self._hosts.get(name) == seen:
            return []
        self._hosts[name] = seen
        self._news_s = now_s
        return [seen]

    # -- links and switches -------------------------------------------------------------------

    def _changes(self, now_s: float) -> list[Event]:
        """Events for changes of failed links and switches since the last call."""
        topology = self._topology
        if topology is None:
            return []
        events: list[Event] = self._cabling(topology, now_s)
        down = {link.name for link in topology.links if self._is_down(link, now_s)}
        events += [LinkDown(link=name) for name in sorted(down - self._down_links)]
        events += [LinkUp(link=name) for name in sorted(self._down_links - down)]
        self._down_links = down
        dead = {switch.name for switch in topology.switches if self._is_dead(topology, switch.name)}
        events += [SwitchDown(switch=name) for name in sorted(dead - self._down_switches)]
        events += [SwitchUp(switch=name) for name in sorted(self._down_switches - dead)]
        self._down_switches = dead
        return events

    def _is_down(self, link: Link, now_s: float) -> bool:
        ends = self._switch_ends(link)
        for dpid, port in ends:
            seen = self._switches.get(dpid)
            if seen is not None and not (port in seen.ports and seen.ports[port].up):
                return True
        if len(ends) < 2:
            return False  # a host's cable: hosts need not speak
        for end, peer in (ends, ends[::-1]):
            if self._heard.get(end, peer) != peer:
                return True
        both_speak = all(d in self._switches and self._switches[d].connected for d, _ in ends)
        return both_speak and any(self._is_silent(end, now_s) for end in ends)

    def _is_silent(self, end: tuple[int, int], now_s: float) -> bool:
        return now_s - self._alive_s.get(end, now_s) > SILENCE_S

    def _is_dead(self, topology: Topology, switch: str) -> bool:
        seen = self._switches.get(topology.switch_by_name[switch].dpid)
        if seen is None or seen.connected:
            return False
        asked = [
            link.name in self._down_links
            for link in topology.adjacency[switch]
            if link.other(switch) in topology.switch_by_name and self._connected(link.other(switch))
        ]
        return bool(asked) and all(asked)

    # -- cabling ------------------------------------------------------------------------------

    def _cabling(self, topology: Topology, now_s: float) -> list[Event]:
        """Cabling errors of a switch: discovered neighbours that contradict the topology."""
        events: list[Event] = []
        for (dpid, port), peer in self._heard.items():
            switch, found = self._name(dpid), f"{self._name(peer[0])}:{peer[1]}"
            expected = self._expected(switch, port)
            if expected == found:
                self._wrong.pop((switch, port), None)
            else:
                events += self._wrongly_cabled(switch, port, expected, found)
        for link in topology.switch_links:
            for (dpid, port), peer in _both_ways(self._switch_ends(link)):
                if (dpid, port) not in self._heard and self._never_heard(dpid, port, peer, now_s):
                    expected = self._expected(self._name(dpid), port)
                    events += self._wrongly_cabled(self._name(dpid), port, expected, "")
        return events

    def _never_heard(self, dpid: int, port: int, peer: tuple[int, int], now_s: float) -> bool:
        """Both ports have carrier and a control channel, but this one has never received a frame."""
        for end_dpid, end_port in ((dpid, port), peer):
            seen = self._switches.get(end_dpid)
            if (
                seen is None
                or not seen.connected
                or end_port not in seen.ports
                or not seen.ports[end_port].up
            ):
                return False
        return self._is_silent((dpid, port), now_s)

    def _wrongly_cabled(self, switch: str, port: int, expected: str, found: str) -> list[Event]:
        """Report each finding at a port once."""
        if self._given is None or self._wrong.get((switch, port)) == found:
            return []
        self._wrong[switch, port] = found
        return [CablingError(switch=switch, port=port, expected=expected, found=found)]

    def _expected(self, switch: str, port: int) -> str:
        """`NODE:PORT` of the port's neighbour, or an empty string."""
        topology = self._topology
        for link in () if topology is None else topology.adjacency.get(switch, ()):
            if link.port_at(switch) == port:
                other = link.other(switch)
                return f"{other}:{link.port_at(other)}"
        return ""

    # -- without a given topology ---------------------------------------------------------------

    def _discovered(self, now_s: float) -> list[Event]:
        if self._given is not None or not self._hosts or now_s - self._news_s < SETTLE_S:
            return []
        switches = {dpid: seen.ports for dpid, seen in self._switches.items()}
        found = assemble(switches, self._heard, self._hosts.values(), self._storage, self._topology)
        if found is None or found == self._topology:
            return []
        self._topology = found
        return [TopologyChanged(topology=found)]

    # -- helpers ------------------------------------------------------------------------------

    def _name(self, dpid: int) -> str:
        known = None if self._given is None else self._given.switch_by_dpid.get(dpid)
        return f"s{dpid:x}" if known is None else known.name

    def _switch_ends(self, link: Link) -> tuple[tuple[int, int], ...]:
        assert self._topology is not None
        switches = self._topology.switch_by_name
        ends = ((link.a, link.a_port), (link.b, link.b_port))
        return tuple((switches[node].dpid, port) for node, port in ends if node in switches)

    def _connected(self, switch: str) -> bool:
        assert self._topology is not None
        seen = self._switches.get(self._topology.switch_by_name[switch].dpid)
        return seen is not None and seen.connected

    def _allow_silence(self, dpid: int, port: int, now_s: float) -> None:
        """Restart the silence timers of this port and of its neighbour, which receives LLDP frames only from now on."""
        self._alive_s[dpid, port] = now_s
        if self._topology is None:
            return
        for link in self._topology.switch_links:
            ends = self._switch_ends(link)
            if (dpid, port) in ends:
                for end in ends:
                    self._alive_s[end] = now_s


def _both_ways(
    ends: tuple[tuple[int, int], ...],
) -> tuple[tuple[tuple[int, int], tuple[int, int]], ...]:
    return ((ends[0], ends[1]), (ends[1], ends[0]))
