"""Folds events into the rows that a page shows, and tells which of them have changed.

Arrives: envelopes in order; snapshots of the state; which publishers are there.
Leaves: frames: a whole one at any time, and deltas since the last one.
Must not know: sockets, clocks, HTTP, HTML.

The state is that of the controllers (`waystage.state`). Beside it are kept what it forgets and a page needs: phases of
ended jobs, ended flows, decisions with their causes. All of it is bounded: what is not shown is counted.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from waystage import events
from waystage.events import Envelope, Event, agent_of
from waystage.state import FlowInfo, State
from waystage.view import rows
from waystage.view.describe import action_text, event_text, plan_text
from waystage.view.frames import EVENTS_SHOWN, Frame, Row
from waystage.view.jobs import Jobs
from waystage.view.links import COLLAPSE_ABOVE, Links
from waystage.view.publishers import Publishers

FLOWS_SHOWN, ENDED_FLOWS = 500, 100
DECISIONS_SHOWN = 200
CAUSES = 4096
"""Events remembered as causes of decisions."""


class ViewModel:
    """`sets`: topologies of new sources begin a new set of a run, with a state that knows nothing."""

    def __init__(self, *, collapse_above: int = COLLAPSE_ABOVE, sets: bool = False) -> None:
        self.state = State()
        self.counts: dict[str, int] = {"events": 0, "lost": 0, "dropped": 0, "jobs": 0, "flows": 0}
        self.time_ns = 0
        self._sets = sets
        self._links = Links(collapse_above)
        self._jobs = Jobs()
        self._publishers = Publishers(lambda key: self._mark("publishers", key))
        self._flows: dict[str, FlowInfo] = {}
        self._ended_flows: OrderedDict[str, Row] = OrderedDict()
        self._decisions: dict[str, Row] = {}
        self._of_cause: dict[str, list[str]] = {}
        self._causes: dict[str, Envelope] = {}
        self._new_causes: list[Envelope] = []
        self._lines: deque[Envelope] = deque(maxlen=EVENTS_SHOWN // 4)
        self._shown_lines: deque[Row] = deque(maxlen=EVENTS_SHOWN)
        self._dirty: defaultdict[str, dict[str, None]] = defaultdict(dict)
        self._dirty_flows: dict[str, bool] = {}
        """Whether no frame has shown it."""
        self._topology_changed = False
        self._set_source = ""
        self._seq = 0
        self._touched = False

    # -- folding ----------------------------------------------------------------------------------------

    def apply(self, item: Envelope, *, known: bool = False) -> None:
        """Fold one event; one that the adopted state has already, `known`, is only shown."""
        self.apply_all((item,), known=known)

    def apply_all(self, items: Sequence[Envelope], *, known: bool = False) -> None:
        """Fold events in their order."""
        if not items:
            return
        self.counts["events"] += len(items)
        self._touched = True
        fold, of_cause, shown = self.state.apply, self._of_cause, self._new_causes
        lines = self._lines
        for item in items:
            event = item.event
            kind = type(event)
            if self._sets and kind is events.TopologyChanged and item.source != self._set_source:
                self._set_source = item.source
                self._forget_set()
                fold = self.state.apply
            if not known:
                fold(item)
            show = _shows.get(kind)
            if show is None:
                show = _shows[kind] = _show_of(kind)
            show(self, event, item)
            if not kind.telemetry:
                lines.append(item)
                shown.append(item)
                if of_cause and item.event_id in of_cause:
                    # A decision can overtake its cause: events of a publisher that has just appeared may wait for a
                    # replay.
                    self._outcome(item.event_id, {"cause": _cause(item)})
        self.time_ns = self.state.time_ns
        if len(shown) > 2 * CAUSES:
            del shown[:-CAUSES]

    def adopt(self, state: State, sources: Iterable[tuple[str, Iterable[str]]] = ()) -> None:
        """Go on from a controller's snapshot. `sources`: publishers and the types of their events."""
        self.state, self._touched = state, True
        self._topology()
        self._jobs.adopt(state)
        for flow_id in list(self._flows):
            if flow_id not in self._ended_flows and flow_id not in state.flows:
                self._flow_ended(flow_id, "lost", None, state.time_ns)
        for flow in state.flows.values():
            self._admit(flow)
        for app in state.io.applications:
            self._mark("io", app)
        for name in state.file_systems:
            self._mark("storage", name)
        for name in state.wide_paths:
            self._mark("wide", name)
        for source, types in sources:
            for name in types:
                self._publishers.published(source, name)

    def publisher(self, source: str, present: bool, time_ns: int) -> None:
        """A publisher has appeared or is gone."""
        self._publishers.seen(source, present, time_ns)
        self.time_ns, self._touched = max(self.time_ns, time_ns), True

    def lost(self, control: int, telemetry: int) -> None:
        """How many gaps of control events there were so far, and how much telemetry was dropped."""
        if (control, telemetry) != (self.counts["lost"], self.counts["dropped"]):
            self.counts |= {"lost": control, "dropped": telemetry}
            self._touched = True

    @property
    def controllers(self) -> set[str]:
        """Names of publishers that are controllers."""
        return self._publishers.controllers

    def hosts_at(self, switch: str) -> list[Row]:
        """The hosts of an edge switch with the use of their links, also where hosts are collapsed."""
        return self._links.hosts_at(switch)

    @property
    def rates_bps(self) -> dict[str, float]:
        """Load of each class from edge switches into the core."""
        return {name: rate for name, rate in self.state.class_rate_bps.items()}  # noqa: C416

    # -- frames -----------------------------------------------------------------------------------------

    def take(self, time_ns: int) -> Frame | None:
        """What has changed since the last call; None for nothing."""
        if not self._touched:
            return None
        self._seq += 1
        frame = Frame(seq=self._seq, t=_ms(time_ns))
        if self._topology_changed:
            frame.topology = self._links.shape()
        self._dirty["flows"] = dict.fromkeys(self._dirty_flows)
        self._dirty["jobs"], self._jobs.changed = self._jobs.changed, {}
        for section, keys in self._dirty.items():
            for key in keys:
                row = self._row(section, key)
                if row is None:
                    frame.gone.setdefault(section, []).append(key)
                else:
                    frame.set.setdefault(section, {})[key] = row
        frame.set["status"] = {"now": self._status()}
        frame.events = [_line(item) for item in self._lines]
        self._shown_lines.extend(frame.events)
        frame.counts = dict(self.counts)
        self._lines.clear()
        self._dirty, self._dirty_flows = defaultdict(dict), {}
        self._topology_changed = self._touched = False
        return frame

    def whole(self, time_ns: int) -> Frame:
        """Everything as of the last delta."""
        self._dirty_flows = dict.fromkeys(self._dirty_flows, False)
        found: dict[str, dict[str, Row]] = {"status": {"now": self._status()}}
        keys: dict[str, Iterable[str]] = {
            "links": self._links.rows,
            "switches": self.state.down_switches,
            "jobs": self._jobs.lines,
            "flows": self._flows,
            "io": self.state.io.applications,
            "storage": self.state.file_systems,
            "wide": self.state.wide_paths,
            "decisions": self._decisions,
            "publishers": self._publishers.known,
        }
        for section, names in keys.items():
            shown = {key: row for key in list(names) if (row := self._row(section, key)) is not None}
            if shown:
                found[section] = shown
        return Frame(
            seq=self._seq,
            t=_ms(time_ns),
            whole=True,
            topology=self._links.shape(),
            set=found,
            events=list(self._shown_lines),
            counts=dict(self.counts),
        )

    def _status(self) -> Row:
        state = self.state
        found: Row = {
            "rates": {name: round(rate) for name, rate in state.class_rate_bps.items()},
            "use_t": self._links.time,
            "running": len(state.running_jobs),
            "staging": len(state.staging_jobs),
            "flows": len(state.flows),
        }
        if state.in_force is not None:
            found["plan"] = plan_text(state.in_force)
            found["separated"] = state.in_force.separated
        if state.reason:
            found["reason"] = state.reason
        return found

    def _row(self, section: str, key: str) -> Row | None:
        match section:
            case "links":
                return self._links.rows.get(key)
            case "switches":
                down = self.state.down_switches.get(key)
                return None if down is None else {"down": _ms(down)}
            case "jobs":
                line = self._jobs.lines.get(key)
                return None if line is None else rows.job(line.user, line.nodes, line.phases, line.ended)
            case "flows":
                flow = self._flows.get(key)
                return None if flow is None else rows.flow(flow) | self._ended_flows.get(key, {})
            case "io":
                app = self.state.io.applications.get(key)
                return None if app is None else rows.application(app)
            case "storage":
                found = self.state.file_systems.get(key)
                return None if found is None else rows.file_system(found)
            case "wide":
                path = self.state.wide_paths.get(key)
                return None if path is None else {"host": path.host, "rate": path.rate_bps, "rtt": path.rtt_s}
            case "decisions":
                return self._decisions.get(key)
            case "publishers":
                return self._publishers.row(key)
        raise AssertionError(section)

    # -- one method an event ----------------------------------------------------------------------------

    def _mark(self, section: str, key: str) -> None:
        self._dirty[section][key] = None

    def _job(self, event: Event, item: Envelope) -> None:
        self._jobs.fold(event, item.time_ns, self.state)
        self.counts["jobs"] = self._jobs.seen

    def _admit(self, flow: FlowInfo) -> None:
        """Show a running flow while there is room; its row is made when a frame is taken."""
        flow_id = flow.flow_id
        new = flow_id not in self._flows
        if new and len(self._flows) - len(self._ended_flows) >= FLOWS_SHOWN:
            return
        self._flows[flow_id] = flow
        self._ended_flows.pop(flow_id, None)
        self._dirty_flows.setdefault(flow_id, new)

    def _flow_started(self, event: events.FlowStarted, item: Envelope) -> None:
        self.counts["flows"] += 1
        flow = self.state.flows.get(event.flow_id)
        if flow is not None:
            self._admit(flow)

    def _flow_progress(self, event: events.FlowProgress, item: Envelope) -> None:
        running = self.state.flows
        shown, ended, dirty = self._flows, self._ended_flows, self._dirty_flows
        for use in event.flows:
            flow_id = use.flow_id
            flow = running.get(flow_id)
            if flow is None:
                continue
            if shown.get(flow_id) is flow and flow_id not in ended:
                dirty.setdefault(flow_id, False)
            else:
                self._admit(flow)

    def _flow_changed(self, event: Any, item: Envelope) -> None:
        if event.flow_id in self._flows:
            self._dirty_flows.setdefault(event.flow_id, False)

    def _flow_finished(self, event: events.FlowFinished, item: Envelope) -> None:
        if event.flow_id in self._flows:
            self._flow_ended(event.flow_id, event.outcome, event.bytes_done, item.time_ns)

    def _flow_ended(self, flow_id: str, outcome: str, size: int | None, time_ns: int) -> None:
        """The state has forgotten it; what it knew last is shown for a while."""
        end: Row = {"outcome": outcome, "ended": _ms(time_ns), "rate": 0}
        if size is not None:
            end["done"] = size
        self._ended_flows[flow_id] = end
        dirty = self._dirty_flows
        dirty.setdefault(flow_id, False)
        if len(self._ended_flows) > ENDED_FLOWS:
            oldest, _ = self._ended_flows.popitem(last=False)
            del self._flows[oldest]
            if dirty.get(oldest, False):  # no frame has shown it
                del dirty[oldest]
            else:
                dirty[oldest] = False

    def _flows_listed(self, event: events.FlowsListed, item: Envelope) -> None:
        self._publishers.published(item.source, "FlowsListed")
        for flow_id in list(self._flows):
            if (
                agent_of(flow_id) == event.agent
                and flow_id not in self._ended_flows
                and flow_id not in self.state.flows
            ):
                self._flow_ended(flow_id, "lost", None, item.time_ns)

    def _topology(self, event: object = None, item: Envelope | None = None) -> None:
        topology = self.state.topology
        if topology is not None and self._links.show(topology):
            self._topology_changed = True
            self._dirty.pop("links", None)
        self._downs()
        if item is not None:
            self._publishers.published(item.source, "TopologyChanged")

    def _downs(self, event: object = None, item: Envelope | None = None) -> None:
        for key in self._links.set_down(self.state.down_links):
            self._mark("links", key)
        name = getattr(event, "switch", None)
        for switch in self.state.down_switches if name is None else (name,):
            self._mark("switches", switch)

    def _link_use(self, event: events.LinkUse, item: Envelope) -> None:
        for key in self._links.use(event, _ms(item.time_ns)):
            self._mark("links", key)

    def _note_causes(self) -> None:
        """Make those that came since the last decision known by their ids."""
        causes = self._causes
        causes.update((item.event_id, item) for item in self._new_causes)
        self._new_causes.clear()
        if len(causes) > 2 * CAUSES:
            for oldest in list(itertools.islice(causes, len(causes) - CAUSES)):
                del causes[oldest]

    def _decided(self, event: events.Decided, item: Envelope) -> None:
        self._publishers.published(item.source, "Decided")
        if event.cause_id not in self._causes:
            self._note_causes()
        cause = self._causes.get(event.cause_id)
        row: Row = {
            "t": _ms(item.time_ns),
            "policy": event.policy,
            "actions": [action_text(action) for action in event.actions[:8]],
            "more": max(0, len(event.actions) - 8),
        }
        if event.reason:
            row["reason"] = event.reason
        if cause is not None:
            row["cause"] = _cause(cause)
        self._decisions[item.event_id] = row
        self._of_cause.setdefault(event.cause_id, []).append(item.event_id)
        self._mark("decisions", item.event_id)
        while len(self._decisions) > DECISIONS_SHOWN:
            oldest = next(iter(self._decisions))
            del self._decisions[oldest]
            self._mark("decisions", oldest)
        while len(self._of_cause) > DECISIONS_SHOWN:
            del self._of_cause[next(iter(self._of_cause))]

    def _paths_changed(self, event: events.PathsChanged, item: Envelope) -> None:
        """The rules of a decision are in force: those of the same cause."""
        self._publishers.published(item.source, "PathsChanged")
        took = (event.processor_ns + event.planner_ns + event.install_ns) / 1e6
        rules = {"messages": event.messages, "switches": event.switches, "ms": round(took, 3)}
        self._outcome(event.cause_id, {"rules": rules})

    def _paths_refused(self, event: events.PathsRefused, item: Envelope) -> None:
        self._outcome(event.cause_id, {"refused": f"{event.switch}: {event.reason}"})

    def _outcome(self, cause_id: str, change: Row) -> None:
        for key in self._of_cause.get(cause_id, ()):
            if key in self._decisions:
                self._decisions[key] = self._decisions[key] | change
                self._mark("decisions", key)

    def _file_system(self, event: events.FileSystemDeclared, item: Envelope) -> None:
        self._mark("storage", event.file_system)

    def _wide_path(self, event: events.WidePathDeclared, item: Envelope) -> None:
        self._mark("wide", event.peer)

    def _aggregators(self, event: events.AggregatorReport, item: Envelope) -> None:
        for use in event.servers:
            self._mark("io", use.app)

    def _forget_set(self) -> None:
        """What ran in the set before has ended with it."""
        time_ns = self.state.time_ns
        self._jobs.end_all(time_ns)
        for flow_id in [f for f in self._flows if f not in self._ended_flows]:
            self._flow_ended(flow_id, "lost", None, time_ns)
        for app in self.state.io.applications:
            self._mark("io", app)
        for section, names in (
            ("switches", self.state.down_switches),
            ("storage", self.state.file_systems),
            ("wide", self.state.wide_paths),
        ):
            for name in names:
                self._mark(section, name)
        self.state = State(time_ns=time_ns)
        self._links.idle()
        for key in self._links.rows:
            self._mark("links", key)


def _ms(time_ns: int) -> int:
    return time_ns // 1_000_000


def _type(event: Event) -> str:
    return event.type if isinstance(event, events.UnknownEvent) else type(event).__name__


def _cause(item: Envelope) -> Row:
    return {"type": _type(item.event), "text": event_text(item.event)[:200]}


def _line(item: Envelope) -> Row:
    name = _type(item.event)
    row: Row = {
        "t": _ms(item.time_ns),
        "type": name,
        "source": item.source,
        "text": event_text(item.event)[:300],
    }
    if name in rows.TROUBLES or getattr(item.event, "outcome", "done") in ("failed", "lost"):
        row["bad"] = True
    return row


_Show = Callable[[ViewModel, Any, Envelope], None]


def _show_of(kind: type[Event]) -> _Show:
    """What an event of this type changes on a page."""
    handler = _handlers.get(kind)
    of_application = "app" in kind.__struct_fields__

    def show(model: ViewModel, event: Any, item: Envelope) -> None:
        if handler is not None:
            handler(model, event, item)
        if of_application and event.app is not None:
            model._mark("io", event.app)

    return show if handler is None or of_application else handler


_shows: dict[type[Event], _Show] = {}

_handlers: dict[type[Event], _Show] = {
    events.JobStarted: ViewModel._job,
    events.JobFinished: ViewModel._job,
    events.StagingStarted: ViewModel._job,
    events.StagingFinished: ViewModel._job,
    events.IoStarted: ViewModel._job,
    events.IoFinished: ViewModel._job,
    events.FlowStarted: ViewModel._flow_started,
    events.FlowProgress: ViewModel._flow_progress,
    events.FlowRequested: ViewModel._flow_changed,
    events.FlowAdjusted: ViewModel._flow_changed,
    events.FlowFinished: ViewModel._flow_finished,
    events.FlowsListed: ViewModel._flows_listed,
    events.TopologyChanged: ViewModel._topology,
    events.LinkUp: ViewModel._downs,
    events.LinkDown: ViewModel._downs,
    events.SwitchUp: ViewModel._downs,
    events.SwitchDown: ViewModel._downs,
    events.LinkUse: ViewModel._link_use,
    events.Decided: ViewModel._decided,
    events.PathsChanged: ViewModel._paths_changed,
    events.PathsRefused: ViewModel._paths_refused,
    events.FileSystemDeclared: ViewModel._file_system,
    events.WidePathDeclared: ViewModel._wide_path,
    events.AggregatorReport: ViewModel._aggregators,
}
