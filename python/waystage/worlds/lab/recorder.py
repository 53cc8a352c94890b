"""What happened during a run, from the events on the backplane.

Arrives: envelopes, from a subscriber's thread.
Leaves: switch-overs, link use and the events themselves, each under its policy and set.
Must not know: how jobs run, files.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from waystage.events import (
    CLASSES,
    CablingError,
    Envelope,
    EventError,
    LinkUse,
    PathsChanged,
    PathsRefused,
    TopologyChanged,
    encode,
)
from waystage.experiment.results import PortSample, SwitchOver
from waystage.topology import Topology

CAUSES_KEPT = 4096
"""Times of recent events remembered, to measure from a switch-over's cause; a set has some dozens."""


class Recorder:
    """A subscriber's callback. `begin` names the policy and set that what follows belongs to."""

    def __init__(self, topology: Topology, start_ns: int) -> None:
        self.samples: list[PortSample] = []
        self.switch_overs: list[SwitchOver] = []
        self.events: list[bytes] = []
        self.problems: list[str] = []
        self._topology = topology
        self._start_ns = start_ns
        self._policy, self._set = "", 0
        self._causes: OrderedDict[str, int] = OrderedDict()
        self._lock = threading.Lock()

    def begin(self, policy: str, set_index: int) -> None:
        with self._lock:
            self._policy, self._set = policy, set_index

    def __call__(self, item: Envelope) -> None:
        event = item.event
        with self._lock:
            self._keep(item)
            if isinstance(event, PathsChanged):
                self._paths_changed(item, event)
            elif isinstance(event, LinkUse):
                self._link_use(item, event)
            elif isinstance(event, PathsRefused):
                self.problems.append(f"switch {event.switch} refused a rule: {event.reason}")
            elif isinstance(event, CablingError):
                self.problems.append(
                    f"port {event.port} of {event.switch}: expected {event.expected}, found {event.found or 'nothing'}"
                )

    def _keep(self, item: Envelope) -> None:
        if not isinstance(item.event, LinkUse):  # these are in the timelines
            try:
                self.events.append(encode(item))
            except EventError:
                pass  # larger than may travel: it cannot have come over the backplane
        if not isinstance(item.event, PathsChanged | LinkUse | TopologyChanged):
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
        """Ports between switches, each class that was seen there and the port's own count."""
        if event.interval_ns <= 0:
            return
        cores = set(self._topology.core_switches)
        peers = {(link.a, link.a_port): link.b for link in self._topology.switch_links}
        peers |= {(link.b, link.b_port): link.a for link in self._topology.switch_links}
        for use in event.ports:
            peer = peers.get((use.node, use.port))
            if peer is None:
                continue
            counts: dict[str, int] = {"all": use.bytes}
            counts |= {c: use.by_class[c] for c in CLASSES if c in use.by_class}
            for traffic, count in counts.items():
                self.samples.append(
                    PortSample(
                        policy=self._policy,
                        set=self._set,
                        at_s=self._seconds(item.time_ns),
                        interval_s=event.interval_ns / 1e9,
                        node=use.node,
                        port=use.port,
                        peer=peer,
                        traffic=traffic,
                        bytes=count,
                        core=use.node in cores,
                    )
                )

    def _seconds(self, time_ns: int) -> float:
        return (time_ns - self._start_ns) / 1e9
