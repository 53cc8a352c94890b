"""The interconnect controller: keeps the rules of the switches as the current plan requires.

Arrives: plans, as actions; switches, ports, LLDP and ARP frames, from the OpenFlow side.
Leaves: rules in force; events about hosts, links, switches, cabling, link use and paths.
Must not know: jobs, policies, the backplane (it receives a publish function), os_ken.

One worker thread owns discovery and installer. It drains its queue of inputs, then plans once, so that of several
requests queued meanwhile only the last is carried out.
ARP is answered in the thread of the requesting switch; `watch.py` runs in a separate thread.
"""

from __future__ import annotations

import logging
import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterable

import msgspec

from waystage.events import (
    Action,
    AssignPaths,
    Envelope,
    Event,
    LinkUse,
    PathPlan,
    PathsChanged,
    PathsRefused,
    SwitchDown,
    SwitchRefused,
    SwitchUp,
    TopologyChanged,
)
from waystage.interconnect import arp, cookies, labels, lldp
from waystage.interconnect.cabling import Port
from waystage.interconnect.discovery import Discovery, View
from waystage.interconnect.installer import DRAIN_S, Changes, Installer, Refused, Result
from waystage.interconnect.labelled import control_rules
from waystage.interconnect.openflow import Access, OpenFlowError, OpenFlowServer, PortState
from waystage.interconnect.outcome import Outcome
from waystage.interconnect.planner import PlanError
from waystage.interconnect.port_rate import PortRate
from waystage.interconnect.rules import Change, SwitchRules
from waystage.interconnect.watch import Options, Watcher
from waystage.topology import Topology

log = logging.getLogger(__name__)

ASK_AGAIN_S = 5.0
"""Delay before a plan is retried that failed because a switch did not answer."""

OURS = (cookies.MAGIC << 56, 0xFF << 56)

LLDP_PER_S = 20
"""LLDP frames inspected per port and second: four times what an honest neighbour sends after a cable is plugged in."""

MAX_INPUTS = 20_000
"""Above this queue length, received LLDP frames are dropped; they are repeated every second."""

Publish = Callable[[Event], object]


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A requested plan; times are wall-clock ns, as in envelopes."""

    plan: PathPlan
    cause_id: str = ""
    caused_ns: int = 0


class InterconnectController:
    """The actuator of `AssignPaths`. `start` it once and `stop` it once; also a context manager.

    `plan` is in force until the first action: after a restart, the last plan requested. `access` restricts the
    switches; without it, only loopback addresses are accepted. Switches that are not in a given topology are refused.
    """

    def __init__(
        self,
        publish: Publish,
        listen: tuple[str, int] = ("127.0.0.1", 6653),
        topology: Topology | None = None,
        *,
        plan: PathPlan | None = None,
        options: Options | None = None,
        access: Access | None = None,
    ) -> None:
        self._publish_event = publish
        self._options = options or Options()
        known = None if topology is None else frozenset(topology.switch_by_dpid)
        self._server = OpenFlowServer(self, listen, ours=OURS, access=access, known=known)
        self._given = topology
        self._discovery = Discovery(topology, storage_hosts=self._options.storage_hosts)
        self._installer = Installer(
            self._send, self._read, marks=self._options.marks, failover=self._options.failover
        )
        self._responder = arp.Responder()
        self._lldp_rate = PortRate(LLDP_PER_S)
        self._key = secrets.token_bytes(32)
        self._inputs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._watcher = Watcher(self._server, self, self._key, self._options)
        self._worker: threading.Thread | None = None
        self._wanted = Request(plan=plan or PathPlan())
        self._in_force: PathPlan | None = None
        self._not_copied: PathPlan | None = None
        self._reported: set[tuple[str, str, str]] = set()
        self._names: dict[int, str] = {}
        self._dead: set[str] = set()
        self._dirty = False
        self._never_planned = True
        self._first_came_s = 0.0
        self._clean_due_s = 0.0
        self._again_due_s = 0.0
        self._planned_view: View | None = None

    # -- life ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Listen for switches. Raises OpenFlowError."""
        self._server.start()
        self._inputs.put(lambda: self._tell(self._discovery.announce()))
        self._worker = threading.Thread(target=self._work, name="interconnect", daemon=True)
        self._worker.start()
        self._watcher.start()

    def stop(self) -> None:
        """Stop. The switches keep their rules and continue to forward. No effect if not started."""
        if self._worker is None:
            return
        self._watcher.stop()
        self._inputs.put(None)
        self._server.stop()  # also ends what the worker waits for
        self._worker.join(timeout=10)
        self._worker = None

    def __enter__(self) -> InterconnectController:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def port(self) -> int:
        """The TCP port on which switches are awaited."""
        return self._server.port

    @property
    def arp_counts(self) -> arp.Counts:
        return self._responder.counts

    def connected_switches(self) -> list[str]:
        """Names of the switches whose control channel is open."""
        return sorted(self._names[dpid] for dpid in self._server.connected() if dpid in self._names)

    # -- the actuator -------------------------------------------------------------------------

    def accepts(self, action: Action) -> bool:
        return isinstance(action, AssignPaths)

    def apply(self, action: Action, cause: Envelope) -> None:
        """Request a plan; returns immediately. `PathsChanged` or `PathsRefused` reports the result."""
        assert isinstance(action, AssignPaths)
        request = Request(plan=action.plan, cause_id=cause.event_id, caused_ns=cause.time_ns)
        self._inputs.put(lambda: self._ask(request))

    # -- called in the switches' threads --------------------------------------------------------

    def switch_up(self, dpid: int, ports: dict[int, PortState], held: SwitchRules) -> None:
        self._inputs.put(lambda: self._switch_came(dpid, ports, held))

    def switch_down(self, dpid: int) -> None:
        self._inputs.put(lambda: self._switch_went(dpid))

    def port_changed(self, dpid: int, port: int, state: PortState | None) -> None:
        known = None if state is None else Port(up=state.up, speed_bps=state.speed_bps)
        self._inputs.put(
            lambda: self._tell(self._discovery.port_changed(dpid, port, known, time.monotonic()))
        )
        if known is not None and known.up:
            self._watcher.announce_soon(dpid)

    def packet_in(self, dpid: int, port: int, data: bytes) -> None:
        if data[12:14] == arp.ETHERTYPE.to_bytes(2, "big"):
            reply = self._responder.answer(dpid, port, data, time.monotonic())
            if reply is not None:
                self._server.packet_out(dpid, port, reply)
            return
        if self._inputs.qsize() > MAX_INPUTS or not self._lldp_rate.allows(dpid, port, time.monotonic()):
            return
        heard = lldp.parse(data, self._key)
        if heard is not None:
            self._inputs.put(lambda: self._tell(self._discovery.heard(dpid, port, heard, time.monotonic())))

    def switch_refused(self, dpid: int, address: str, certificate: str, reason: str, times: int) -> None:
        event = SwitchRefused(
            switch=self._name(dpid), address=address, certificate=certificate, reason=reason, times=times
        )
        self._inputs.put(lambda: self._publish(event))

    # -- the worker ---------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            handle: Callable[[], None] | None
            try:
                handle = self._inputs.get(timeout=self._patience_s())
                while True:
                    if handle is None:
                        return
                    handle()
                    handle = self._inputs.get_nowait()
            except queue.Empty:
                pass
            except Exception:  # one bad input must not end the control of the whole interconnect
                log.exception("an input could not be handled")
            try:
                self._bring_up_to_date()
            except Exception:
                log.exception("the switches could not be updated; retrying")
                self._again_due_s = time.monotonic() + ASK_AGAIN_S

    def _patience_s(self) -> float:
        due = [t for t in (self._clean_due_s, self._again_due_s) if t]
        if self._dirty and self._never_planned and self._installer.held and self._discovery.topology:
            due.append(self._first_came_s + self._options.gather_s)
        return max(0.0, min(due, default=time.monotonic() + 3600) - time.monotonic())

    def _bring_up_to_date(self) -> None:
        now_s = time.monotonic()
        if self._again_due_s and now_s >= self._again_due_s:
            self._again_due_s, self._dirty = 0.0, True
        if self._dirty and self._gathered(now_s):
            self._dirty = False
            self._plan()
        elif self._clean_due_s and now_s >= self._clean_due_s:
            self._clean_due_s = 0.0
            self._clean()

    def _gathered(self, now_s: float) -> bool:
        """Whether to plan: all switches are connected, or the wait is over."""
        topology = self._discovery.topology
        if topology is None:
            return False
        if not self._installer.held:
            return False
        if not self._never_planned or now_s - self._first_came_s >= self._options.gather_s:
            return True
        return all(switch.name in self._installer.held for switch in topology.switches)

    def _ask(self, request: Request) -> None:
        self._wanted = request
        self._dirty = True

    def _switch_came(self, dpid: int, ports: dict[int, PortState], held: SwitchRules) -> None:
        name = self._name(dpid)
        self._names[dpid] = name
        self._first_came_s = self._first_came_s or time.monotonic()
        self._installer.connected(name, held)
        log.info("switch %s is connected and holds %d rules", name, len(held.rules))
        if self._given is None:
            self._let_announcements_in(name, held)
        known = {port: Port(up=state.up, speed_bps=state.speed_bps) for port, state in ports.items()}
        self._tell(self._discovery.switch_connected(dpid, known, time.monotonic()))
        self._dirty = True
        self._watcher.announce_soon(dpid)

    def _switch_went(self, dpid: int) -> None:
        if dpid in self._names:
            log.warning("the control channel of switch %s is lost", self._names[dpid])
            self._installer.disconnected(self._names[dpid])
            self._tell(self._discovery.switch_lost(dpid, time.monotonic()))

    def _let_announcements_in(self, name: str, held: SwitchRules) -> None:
        """Before a topology is known, LLDP must already reach the controller."""
        missing = [rule for rule in control_rules() if held.rules.get(rule.key) != rule]
        if missing:
            outcome = self._send({name: [Change(op="add", item=rule) for rule in missing]})[name]
            if outcome.error is None:
                rules = held.rules | {rule.key: rule for rule in missing}
                self._installer.connected(name, msgspec.structs.replace(held, rules=rules))

    def _tell(self, events: list[Event]) -> None:
        """Publish, and plan again if the view has changed."""
        if not events:
            return
        for event in events:
            if isinstance(event, SwitchDown):
                self._dead.add(event.switch)
            elif isinstance(event, SwitchUp):
                self._dead.discard(event.switch)
            if isinstance(event, TopologyChanged):
                self._names = {s.dpid: s.name for s in event.topology.switches} | self._names
            self._publish(event)
        view = self._discovery.view()
        if view is not None and view != self._planned_view:
            self._dirty = True

    def _publish(self, event: Event) -> None:
        try:
            self._publish_event(event)
        except Exception:  # what carries events may be closing; the switches still need control
            log.exception("%s could not be published", type(event).__name__)

    # -- called in the watcher's thread -----------------------------------------------------------

    def topology(self) -> Topology | None:
        return self._discovery.topology

    def name_of(self, dpid: int) -> str | None:
        """The name of a switch that is under control."""
        return self._names.get(dpid)

    def announced(self) -> None:
        """The ports were announced again: check for silent neighbours."""
        interval_s = self._options.announce_s
        self._inputs.put(lambda: self._tell(self._discovery.tick(time.monotonic(), interval_s)))

    def arrived(self, dpid: int, ports: list[int]) -> None:
        """Packets came in by these ports."""
        self._inputs.put(lambda: self._discovery.traffic(dpid, ports, time.monotonic()))

    def used(self, use: LinkUse) -> None:
        self._publish(use)

    # -- planning -----------------------------------------------------------------------------

    def _plan(self) -> None:
        view = self._discovery.view()
        if view is None:
            return
        request = self._wanted
        begun_ns = time.time_ns()
        try:
            self._answer_for(view)
            plan = request.plan
            if plan == self._not_copied:  # a switch has no groups of type all: the rest of the plan holds
                plan = msgspec.structs.replace(plan, multicast={})
            result = self._installer.apply(view, plan, frozenset(self._dead))
        except (PlanError, ValueError) as error:
            self._refused(request, (Refused(switch="", reason=str(error), lasting=True),))
            return
        first, self._never_planned = self._never_planned, False
        self._planned_view = view
        self._clean_due_s = time.monotonic() + DRAIN_S if result.unclean else 0.0
        if result.refused:
            self._refused(request, result.refused)
        elif first or result.messages or request.plan != self._in_force or request.cause_id:
            self._changed(request, result, begun_ns)

    def _changed(self, request: Request, result: Result, begun_ns: int) -> None:
        self._in_force = request.plan
        self._reported.clear()
        # What follows by itself, after a failure for example, is no answer to the request again.
        self._wanted = Request(plan=request.plan)
        self._publish(
            PathsChanged(
                plan=request.plan,
                cause_id=request.cause_id,
                processor_ns=max(0, begun_ns - request.caused_ns) if request.caused_ns else 0,
                planner_ns=result.planner_ns,
                install_ns=result.install_ns,
                messages=result.messages,
                switches=result.switches,
            )
        )

    def _refused(self, request: Request, refused: Iterable[Refused]) -> None:
        """Report once. A plan that a switch will never accept is replaced by the one in force."""
        items = tuple(refused)
        for item in items:
            key = (request.cause_id, item.switch, item.reason)
            if key not in self._reported:
                self._reported.add(key)
                log.warning("the plan is not in force: switch %s: %s", item.switch or "-", item.reason)
                self._publish(
                    PathsRefused(
                        cause_id=request.cause_id,
                        switch=item.switch,
                        reason=item.reason,
                        copies=item.copies,
                    )
                )
        if any(item.copies for item in items) and request.plan != self._not_copied:
            self._not_copied = request.plan
            self._dirty = True
        elif any(item.lasting for item in items):
            if self._in_force is not None and self._in_force != request.plan:
                self._wanted = Request(plan=self._in_force)
                self._dirty = True
        elif any(item.switch in self._installer.held for item in items):
            self._again_due_s = time.monotonic() + ASK_AGAIN_S

    def _clean(self) -> None:
        result = self._installer.clean()
        if result.refused:
            self._refused(Request(plan=self._wanted.plan), result.refused)

    def _answer_for(self, view: View) -> None:
        """Let ARP answer with the labels of this topology."""
        entries: dict[int, arp.Entry] = {}
        reachable = self._installer.macs(view)  # without a MAC rule, packets to a host are not delivered
        for name, ip in view.ips.items():
            if name in view.topology.attachment and name in reachable:
                switch, port = view.topology.attachment[name]
                dpid = view.topology.switch_by_name[switch].dpid
                label = labels.label_of(view.topology, name)
                entries[arp.ipv4(ip)] = arp.Entry(label=label, dpid=dpid, port=port)
        self._responder.entries = entries

    # -- towards the switches -------------------------------------------------------------------

    def _send(self, changes: Changes) -> dict[str, Outcome]:
        dpids = {name: dpid for dpid, name in self._names.items()}
        outcomes = self._server.install({dpids[switch]: items for switch, items in changes.items()})
        return {self._names[dpid]: outcome for dpid, outcome in outcomes.items()}

    def _read(self, switch: str) -> SwitchRules | None:
        dpids = {name: dpid for dpid, name in self._names.items()}
        try:
            return self._server.read_back(dpids[switch])
        except OpenFlowError:
            return None

    def _name(self, dpid: int) -> str:
        known = None if self._given is None else self._given.switch_by_dpid.get(dpid)
        return f"s{dpid:x}" if known is None else known.name
