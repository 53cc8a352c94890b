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
import numpy as np

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
from waystage.experiment.results import SwitchOver
from waystage.experiment.timelines import Timelines
from waystage.topology import Topology
from waystage.worlds.bins import I64, Bin, Bins
from waystage.worlds.counted_ports import TRAFFIC, CountedPort, timelines
from waystage.worlds.late_counts import WHOLE

Reading = tuple[int, I64, I64]
"""The time that it covers, ns; numbers of ports; bytes, shape (classes, ports), by the order of CLASSES."""

CLASS_PLACES = np.array([TRAFFIC.index(traffic) for traffic in CLASSES], dtype=np.int64)

# Tuples: a union of types is made anew in each call that names it.
TELEMETRY = (LinkUse, FlowProgress, AggregatorReport)
"""One a second: not kept."""

NO_CAUSES = (PathsChanged, LinkUse, FlowProgress, TopologyChanged)

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
        ends = [(link.a, link.a_port, link.b, link.capacity_bps) for link in topology.switch_links]
        ends += [(link.b, link.b_port, link.a, link.capacity_bps) for link in topology.switch_links]
        self._ports = [CountedPort(*end[:3], end[0] in cores, end[3]) for end in sorted(ends)]
        self._numbers = {(port.node, port.port): number for number, port in enumerate(self._ports)}
        self._topology, self._topology_due = topology, False
        self._start_ns = start_ns
        self._interval_s = interval_s
        self._bins = self._new_bins()
        self._known_ns = 0
        self._policy, self._set = "", 0
        self._causes: OrderedDict[str, int] = OrderedDict()
        self._lock = threading.Lock()
        self.watcher: Watcher | None = None

    @property
    def samples(self) -> Timelines:
        """Link use so far, what was counted late in its own interval."""
        counted: dict[tuple[str, int], list[Bin]] = {}
        with self._lock:
            for policy, number, bins in self._sets:
                counted.setdefault((policy, number), []).extend(bins)
        return timelines(counted, self._ports, self._start_ns)

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
            self._bins = self._new_bins()
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
        if not isinstance(item.event, TELEMETRY):
            try:
                self.events.append(encode(item))
            except EventError:
                pass  # larger than may travel: it cannot have come over the backplane
        if not isinstance(item.event, NO_CAUSES):
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

    def numbers(self, ports: Sequence[tuple[str, int]]) -> I64:
        """The number of each of these ports in what `count` takes; -1 of one that is not between switches."""
        return np.array([self._numbers.get(end, -1) for end in ports], dtype=np.int64)

    def count(self, readings: Sequence[Reading], end_ns: int) -> None:
        """Link use that no event told of: consecutive intervals, the last of which ends at `end_ns`."""
        at_ns = end_ns - sum(interval_ns for interval_ns, _, _ in readings)
        with self._lock:
            for interval_ns, numbers, by_class in readings:
                at_ns += interval_ns
                between = numbers >= 0
                counts = by_class[:, between]
                classes, at = np.nonzero(counts)
                keys = numbers[between] * len(TRAFFIC)
                every = np.concatenate((keys + TRAFFIC.index(WHOLE), keys[at] + CLASS_PLACES[classes]))
                self._bins.add(
                    at_ns, interval_ns, every, np.concatenate((counts.sum(axis=0), counts[classes, at]))
                )

    def _add(self, parts: Sequence[UsePart], time_ns: int) -> None:
        end_ns = time_ns - sum(part.interval_ns for part in parts)
        for part in parts:
            end_ns += part.interval_ns
            counts: dict[int, int] = {}
            for use in part.ports:
                number = self._numbers.get((use.node, use.port))
                if number is None:
                    continue
                key = number * len(TRAFFIC)
                counts[key + TRAFFIC.index(WHOLE)] = use.bytes
                for traffic, place in zip(CLASSES, CLASS_PLACES.tolist(), strict=True):
                    if traffic in use.by_class:
                        counts[key + place] = use.by_class[traffic]
            keys = np.fromiter(counts.keys(), np.int64, len(counts))
            self._bins.add(
                end_ns, part.interval_ns, keys, np.fromiter(counts.values(), np.int64, len(counts))
            )

    def _new_bins(self) -> Bins:
        return Bins(len(self._ports) * len(TRAFFIC), self._interval_s)

    def _seconds(self, time_ns: int) -> float:
        return (time_ns - self._start_ns) / 1e9
