"""The interconnect's clock: announcements and counters.

Arrives: which switches are connected; what they have counted.
Leaves: LLDP frames out of every port; `LinkUse`; the controller's ticks.
Must not know: plans, rules, how what was heard is judged.

It runs in a separate thread, because a switch may take seconds to return its counters.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import Protocol

import msgspec

from waystage.events import LinkUse, UsePart
from waystage.interconnect import cookies, lldp
from waystage.interconnect.counters import Counters, Sample, together
from waystage.interconnect.marks import DEFAULT_MARKS, Mark
from waystage.interconnect.openflow import OpenFlowError, OpenFlowServer, PortState
from waystage.topology import Topology

log = logging.getLogger(__name__)

OURS = (cookies.MAGIC << 56, 0xFF << 56)
"""Cookie and mask of Waystage's own flow entries."""

COUNT_TIMEOUT_S = 2.0
"""Longest wait for a switch's counters: nothing is announced meanwhile."""

SHARE = 0.2
"""Most of the time that counting takes where it is asked for in parts: many switches are counted less often then."""

NEARLY = 0.95
"""Parts end a little early or late: this much of the interval counts as the whole of it."""

FIRST_ANNOUNCEMENTS, FIRST_INTERVAL_S = 5, 0.2
"""A new switch is announced quickly a few times, so that its cables are known within a second."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How the interconnect is controlled; the defaults suit a fabric of tens of switches.

    `announce_s` is the LLDP interval; `poll_s` the interval of counters, 0 for never; `part_s` a shorter one in which
    they are read, so that `LinkUse` holds its parts, 0 for none; `gather_s` how long
    after the first switch the others of a given topology are awaited before a plan is made without them. `failover`
    lets edge switches turn to another uplink by themselves. `storage_hosts` names hosts of that role where no
    topology is given.
    """

    announce_s: float = 1.0
    poll_s: float = 1.0
    part_s: float = 0.0
    gather_s: float = 5.0
    marks: tuple[Mark, ...] = DEFAULT_MARKS
    failover: bool = True
    storage_hosts: tuple[str, ...] = ()


class Watched(Protocol):
    """What the watcher tells; called in its thread."""

    def topology(self) -> Topology | None: ...

    def name_of(self, dpid: int) -> str | None: ...

    def announced(self) -> None: ...

    def arrived(self, dpid: int, ports: list[int]) -> None: ...

    def used(self, use: LinkUse) -> None: ...


class Watcher:
    """`start` and `stop` in pairs; `announce_soon` may be called from any thread."""

    def __init__(self, server: OpenFlowServer, watched: Watched, key: bytes, options: Options) -> None:
        self._server = server
        self._watched = watched
        self._key = key
        self._options = options
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = False
        self._bursts: dict[int, int] = {}
        self._counters: tuple[Topology, Counters] | None = None
        self._parts: list[UsePart] = []
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="interconnect-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=10)

    def announce_soon(self, dpid: int) -> None:
        """The switch is new, or one of its ports is up again."""
        with self._lock:
            self._bursts[dpid] = FIRST_ANNOUNCEMENTS
        self._wake.set()

    def _run(self) -> None:
        announce_s = poll_s = time.monotonic()
        while not self._stopping:
            self._wake.clear()
            now_s = time.monotonic()
            try:
                if now_s >= announce_s:
                    announce_s = max(announce_s + self._options.announce_s, now_s)
                    self._announce(self._server.connected())
                    self._watched.announced()
                else:
                    self._announce(self._bursting())
                if self._options.poll_s and now_s >= poll_s:
                    part_s = self._options.part_s
                    poll_s = max(poll_s + (part_s or self._options.poll_s), now_s)
                    self._poll()
                    if part_s:
                        done_s = time.monotonic()
                        poll_s = max(poll_s, done_s + (done_s - now_s) * (1 / SHARE - 1))
            except Exception:  # the next round may fare better; without it, silence would go unnoticed
                log.exception("announcing or counting failed")
            wake_s = min(announce_s, poll_s) if self._options.poll_s else announce_s
            if self._bursts:
                wake_s = min(wake_s, now_s + FIRST_INTERVAL_S)
            self._wake.wait(max(0.001, wake_s - time.monotonic()))

    def _bursting(self) -> dict[int, dict[int, PortState]]:
        """Switches that are new, with their ports; each is counted down."""
        with self._lock:
            now = set(self._bursts)
            self._bursts = {dpid: left - 1 for dpid, left in self._bursts.items() if left > 1}
        return {dpid: ports for dpid, ports in self._server.connected().items() if dpid in now}

    def _announce(self, switches: Mapping[int, Mapping[int, PortState]]) -> None:
        for dpid, ports in switches.items():
            name = self._watched.name_of(dpid) or f"s{dpid:x}"
            for port, state in ports.items():
                if state.up:
                    self._server.packet_out(dpid, port, lldp.build(dpid, port, name, self._key))

    def _poll(self) -> None:
        topology = self._watched.topology()
        if topology is None:
            return
        if self._counters is None or self._counters[0] != topology:
            self._counters, self._parts = (topology, Counters(topology)), []
        counters = self._counters[1]
        samples: dict[str, Sample] = {}
        for dpid in self._server.connected():
            name = self._watched.name_of(dpid)
            if name is None:
                continue
            try:
                flows, ports = self._server.count(dpid, *OURS, timeout_s=COUNT_TIMEOUT_S)
            except OpenFlowError as error:
                log.info("%s", error)
                continue
            samples[name] = (flows, ports)
            # Where a cable is full, LLDP is lost first; packets that came in prove that it works.
            self._watched.arrived(dpid, counters.arrived(name, ports))
        part = counters.sample(time.time_ns(), samples)
        if part is None:
            return
        self._parts.append(part)
        counted_ns = sum(each.interval_ns for each in self._parts)
        if not self._options.part_s or counted_ns >= NEARLY * self._options.poll_s * 1e9:
            self._watched.used(together(self._parts))
            self._parts = []
