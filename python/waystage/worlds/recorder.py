"""What happened during a run, from the events of its controller.

Arrives: envelopes, from the backplane in the lab, from the simulated controller in the simulator.
Leaves: switch-overs, link use and the events themselves, each under its policy and set.
Must not know: how jobs run, files.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

import msgspec

from waystage.events import (
    CLASSES,
    AggregatorReport,
    CablingError,
    Envelope,
    EventError,
    FlowProgress,
    LinkUse,
    PathsChanged,
    PathsRefused,
    PolicyFailed,
    TopologyChanged,
    UsePart,
    encode,
    new_event_id,
)
from waystage.experiment.results import PortSample, SwitchOver
from waystage.topology import Topology
from waystage.worlds.bins import Bins
from waystage.worlds.late_counts import redistribute

CAUSES_KEPT = 4096
"""Times of recent events remembered, to measure from a switch-over's cause; a set has some dozens."""


class Watcher(Protocol):
    """Sees a run while it goes on: each set as it begins, each event."""

    def begin(self, policy: str, set_index: int) -> None: ...

    def __call__(self, item: Envelope) -> None: ...


class Recorder:
    """A subscriber's callback. `begin` names the policy and set that what follows belongs to.

    `problems` are what a reader should know; `broken`, why the figures are none of the policy's.

    A live controller may have published its topology before anyone subscribed: where the first event of a set is
    another one, the topology goes before it.

    Link use is summed over at least `interval_s`; None lets bins be as short as their number allows (`Bins`).
    """

    def __init__(self, topology: Topology, start_ns: int, interval_s: float | None = None) -> None:
        self._sets: list[tuple[str, int, Bins]] = []
        self.switch_overs: list[SwitchOver] = []
        self.events: list[bytes] = []
        self.problems: list[str] = []
        self.broken: list[str] = []
        cores = set(topology.core_switches)
        ends = [(link.a, link.a_port, link.b) for link in topology.switch_links]
        ends += [(link.b, link.b_port, link.a) for link in topology.switch_links]
        self._capacity_bps = {(link.a, link.a_port): link.capacity_bps for link in topology.switch_links}
        self._capacity_bps |= {(link.b, link.b_port): link.capacity_bps for link in topology.switch_links}
        self._ports = {(node, port): (peer, node in cores) for node, port, peer in ends}
        self._topology, self._topology_due = topology, False
        self._start_ns = start_ns
        self._interval_s = interval_s
        self._bins = Bins(interval_s)
        self._known_ns = 0
        self._policy, self._set = "", 0
        self._causes: OrderedDict[str, int] = OrderedDict()
        self._lock = threading.Lock()
        self.watcher: Watcher | None = None

    @property
    def samples(self) -> list[PortSample]:
        """Link use so far, what was counted late in its own interval."""
        with self._lock:
            found = [
                PortSample(
                    policy=policy,
                    set=number,
                    at_s=self._seconds(each.end_ns),
                    interval_s=each.took_ns / 1e9,
                    node=node,
                    port=port,
                    peer=self._ports[node, port][0],
                    traffic=traffic,
                    bytes=count,
                    core=self._ports[node, port][1],
                )
                for policy, number, bins in self._sets
                for each in bins
                for (node, port, traffic), count in each.counts.items()
            ]
        return redistribute(found, self._capacity_bps)

    @property
    def part_s(self) -> float:
        """The shortest interval in which it is of use to read counters now."""
        return self._bins.interval_s

    def begin(self, policy: str, set_index: int, *, live: bool = False) -> None:
        if self.watcher is not None:
            self.watcher.begin(policy, set_index)
        with self._lock:
            self._policy, self._set = policy, set_index
            self._topology_due = live
            self._bins = Bins(self._interval_s)
            self._sets.append((policy, set_index, self._bins))

    def finish(self) -> None:
        """A set has ended: what was counted since the last sample becomes one."""
        with self._lock:
            self._bins.close()

    def wait_for_use_after(self, time_ns: int, timeout_s: float) -> None:
        """Until link use is known up to `time_ns`, or the timeout: counters are read after what they count."""
        deadline = time.monotonic() + timeout_s
        while self._known_ns < time_ns and time.monotonic() < deadline:
            time.sleep(0.05)

    def __call__(self, item: Envelope) -> None:
        event = item.event
        if self._topology_due:
            self._topology_due = False
            if not isinstance(event, TopologyChanged):
                topology = TopologyChanged(topology=self._topology)
                self(msgspec.structs.replace(item, event=topology, event_id=new_event_id(), seq=0))
        if self.watcher is not None:
            self.watcher(item)
        with self._lock:
            self._keep(item)
            if isinstance(event, PathsChanged):
                self._paths_changed(item, event)
            elif isinstance(event, LinkUse):
                self._link_use(item, event)
            elif isinstance(event, PathsRefused):
                self.problems.append(f"switch {event.switch} refused a rule: {event.reason}")
            elif isinstance(event, PolicyFailed):
                self.broken.append(f"policy {event.policy} failed on {event.event}: {event.error}")
            elif isinstance(event, CablingError):
                self.problems.append(
                    f"port {event.port} of {event.switch}: expected {event.expected}, found {event.found or 'nothing'}"
                )

    def _keep(self, item: Envelope) -> None:
        if not isinstance(item.event, LinkUse | FlowProgress | AggregatorReport):  # telemetry, one a second
            try:
                self.events.append(encode(item))
            except EventError:
                pass  # larger than may travel: it cannot have come over the backplane
        if not isinstance(item.event, PathsChanged | LinkUse | FlowProgress | TopologyChanged):
            self._causes[item.event_id] = item.time_ns
            while len(self._causes) > CAUSES_KEPT:
                self._causes.popitem(last=False)

    def _paths_changed(self, item: Envelope, event: PathsChanged) -> None:
        caused_ns = self._causes.get(event.cause_id)
        if caused_ns is None:
            return  # at start-up, or by the topology: no switch-over in the paper's sense
        self.switch_overs.append(
            SwitchOver(
                policy=self._policy,
                set=self._set,
                at_s=self._seconds(item.time_ns),
                to="on" if event.plan.separated else "off",
                total_ms=(item.time_ns - caused_ns) / 1e6,
                processor_ms=event.processor_ns / 1e6,
                planner_ms=event.planner_ns / 1e6,
                install_ms=event.install_ns / 1e6,
                messages=event.messages,
                switches=event.switches,
            )
        )

    def _link_use(self, item: Envelope, event: LinkUse) -> None:
        """Ports between switches: each class that was seen there, and the port's own count."""
        if event.interval_ns <= 0:
            return
        self._known_ns = item.time_ns
        parts = event.parts or (UsePart(interval_ns=event.interval_ns, ports=event.ports),)
        self._add(parts, item.time_ns)

    def count(self, parts: Sequence[UsePart], end_ns: int) -> None:
        """Link use that no event told of: consecutive intervals, the last of which ends at `end_ns`."""
        with self._lock:
            self._add(parts, end_ns)

    def _add(self, parts: Sequence[UsePart], time_ns: int) -> None:
        end_ns = time_ns - sum(part.interval_ns for part in parts)
        for part in parts:
            end_ns += part.interval_ns
            counts: dict[tuple[str, int, str], int] = {}
            for use in part.ports:
                if (use.node, use.port) not in self._ports:
                    continue
                counts[use.node, use.port, "all"] = use.bytes
                for traffic in CLASSES:
                    if traffic in use.by_class:
                        counts[use.node, use.port, traffic] = use.by_class[traffic]
            self._bins.add(end_ns, part.interval_ns, counts)

    def _seconds(self, time_ns: int) -> float:
        return (time_ns - self._start_ns) / 1e9
