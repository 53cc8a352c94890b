"""A real Open vSwitch of two core and two edge switches with four hosts, for tests of the controller on it."""

from __future__ import annotations

import re
import signal
import subprocess
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from harness import WAIT_S, wait_until
from waystage.events import (
    AssignPaths,
    Event,
    PathPlan,
    PathsChanged,
    StagingStarted,
    envelope,
)
from waystage.interconnect.controller import InterconnectController
from waystage.interconnect.watch import Options
from waystage.topology import Host, Link, Switch, Topology

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

    def __init__(self, ovs: Any) -> None:
        self.ovs = ovs
        self.topology = fabric_topology()
        self.events: list[Event] = []
        self.controller: InterconnectController | None = None

    def start(self, topology: Topology | None, **arguments: Any) -> InterconnectController:
        # Each switch is connected by a program: on a slow machine the last may come long after the first.
        options = msgspec.structs.replace(arguments.pop("options", Options()), gather_s=WAIT_S)
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

    def square(self, **arguments: Any) -> InterconnectController:
        """Build the square fabric, and have it under control."""
        build(self.ovs, self.topology)
        return self.ready(self.topology, **arguments)

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for event in list(self.events) if isinstance(event, kind)]

    def await_event(self, kind: type[Event], test: Callable[[Any], bool] = lambda _: True) -> Any:
        wait_until(lambda: any(test(e) for e in self.of(kind)), what=kind.__name__)
        return next(e for e in self.of(kind) if test(e))

    def assign(self, plan: PathPlan) -> PathsChanged:
        assert self.controller is not None
        cause = envelope(StagingStarted(job_id="1"))
        self.controller.apply(AssignPaths(plan=plan), cause)
        return self.await_event(PathsChanged, lambda e: e.cause_id == cause.event_id)  # type: ignore[no-any-return]

    def ping(self, src: int, dst: int, **options: Any) -> bool:
        return bool(self.ovs.ping(f"{self.ovs.name}-h{src}", f"10.9.0.{dst}", **options))


class Stream:
    """Pings every 10 ms in the background; counts what was lost between the first and the last answer."""

    def __init__(self, world: World, src: int, dst: int) -> None:
        namespace = f"{world.ovs.name}-h{src}"
        self._command = ["ip", "netns", "exec", namespace, "ping", "-i", "0.01", f"10.9.0.{dst}"]
        self._answered: list[int] = []

    def __enter__(self) -> Stream:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._more_answers()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._more_answers()
        finally:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(WAIT_S)
            self._reader.join(WAIT_S)
        if kind is not None:
            return
        assert len(self._answered) == len(set(self._answered)), "an answer came twice"
        self.sent = max(self._answered)
        self.lost = self.sent - len(self._answered)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answered += (int(number) for number in re.findall(r"icmp_seq=(\d+) ttl", line))

    def _more_answers(self) -> None:
        """What happens between two of these calls happens between answers, however slow the machine is."""
        wanted = len(self._answered) + 20
        wait_until(lambda: len(self._answered) >= wanted, self._process, "more answers to pings")
