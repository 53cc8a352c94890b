"""The state of the control plane, folded from events alone.

Arrives: envelopes, in the order the controller journals them.
Leaves: a `State` that policies read; snapshots of it as bytes.
Must not know: the origin of events, which policy runs, how actuators carry out actions.

The same events in the same order give an equal state in every process, so a snapshot and the events after it
replace all events. Duplicate, late and inconsistent events (an end before its start, a repeated start) are defined
below, one method each, and never raise; of a start and an end of one object, the later time stamp wins. Policies read
the state and must not change it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import msgspec

from waystage.events import (
    CLASSES,
    AssignPaths,
    Decided,
    DemandDeclared,
    Envelope,
    Event,
    EventError,
    FileSystemDeclared,
    FlowAction,
    FlowFinished,
    FlowProgress,
    FlowRequested,
    FlowsListed,
    FlowStarted,
    HostSeen,
    IoAction,
    IoApplicationStarted,
    IoFinished,
    IoStarted,
    JobFinished,
    JobStarted,
    LinkDown,
    LinkUp,
    LinkUse,
    MpiRanksReported,
    PathPlan,
    PathsChanged,
    StagingFinished,
    StagingStarted,
    SwitchDown,
    SwitchUp,
    TopologyChanged,
    TrafficClass,
    WidePathDeclared,
    agent_of,
    decode_action,
)
from waystage.io_state import IO_EVENTS, IoApplication, IoState
from waystage.job_state import FlowInfo, JobInfo, changed, forget_staging, may_serve
from waystage.mpi_state import MPI_EVENTS, MpiProgram, MpiState
from waystage.topology import Topology

__all__ = ["FlowInfo", "HostLocation", "JobInfo", "State"]

FINISHED_KEPT = 4096
"""Finished job ids remembered, so that a start that arrives after its end does not revive the job."""

FORGOTTEN = FINISHED_KEPT // 8
"""Of the oldest of them, at once, where there would be more."""


class HostLocation(msgspec.Struct, frozen=True, kw_only=True):
    switch: str
    port: int
    mac: str
    ip: str | None = None


class State(msgspec.Struct, kw_only=True):
    """The input of policies. `time_ns` is the time of the last event, `reason` that of the last decision with one."""

    time_ns: int = 0
    events: int = 0
    topology: Topology | None = None
    down_links: dict[str, int] = {}
    down_switches: dict[str, int] = {}
    hosts: dict[str, HostLocation] = {}
    jobs: dict[str, JobInfo] = {}
    flows: dict[str, FlowInfo] = {}
    ended_flows: dict[str, int] = {}
    file_systems: dict[str, FileSystemDeclared] = {}
    wide_paths: dict[str, WidePathDeclared] = {}
    finished: dict[str, int] = {}
    ended_staging: dict[str, int] = {}
    requested: PathPlan | None = None
    requested_ns: int = 0
    in_force: PathPlan | None = None
    class_rate_bps: dict[TrafficClass, float] = {}
    port_rate_bps: dict[str, dict[int, float]] = {}
    reason: str = ""
    reason_ns: int = 0
    io: IoState = msgspec.field(default_factory=IoState)
    mpi: MpiState = msgspec.field(default_factory=MpiState)

    # -- reading ------------------------------------------------------------------------------

    @property
    def live_topology(self) -> Topology | None:
        """The topology without failed switches and links; None before one is known."""
        if self.topology is None:
            return None
        return self.topology.without(self.down_links, self.down_switches)

    @property
    def staging_jobs(self) -> list[str]:
        """Jobs with a staging operation in progress: ON status is defined by one (Fig. 8)."""
        return [job.job_id for job in self.jobs.values() if job.staging]

    @property
    def running_jobs(self) -> list[str]:
        return [job.job_id for job in self.jobs.values() if job.running]

    @property
    def io_jobs(self) -> list[str]:
        return [job.job_id for job in self.jobs.values() if job.io]

    def flows_of(self, job_id: str, traffic: TrafficClass | None = None) -> list[FlowInfo]:
        """Running flows of a job, in order of their start; of one class if one is given."""
        found = [f for f in self.flows.values() if f.job_id == job_id and traffic in (None, f.traffic)]
        return sorted(found, key=lambda flow: (flow.started_ns, flow.flow_id))

    # -- folding ------------------------------------------------------------------------------

    def apply(self, item: Envelope) -> None:
        """Fold one event. An unknown event only increments the counter."""
        event, time_ns = item.event, item.time_ns
        self.events += 1
        if time_ns > self.time_ns:
            self.time_ns = time_ns
        kind = type(event)
        fold = _folds.get(kind)
        if fold is None:
            fold = _folds[kind] = _fold_of(kind)
        fold(self, event, time_ns)

    def record_request(self, action: AssignPaths) -> None:
        """Fold one action of a `Decided` event."""
        self.requested = action.plan
        self.requested_ns = self.time_ns

    def record_flow(self, action: FlowAction) -> None:
        """Fold one action on a flow; one on an unknown flow has no effect."""
        flow = self.flows.get(action.flow_id)
        if flow is None:
            return
        wanted = changed(flow.wanted, action)
        if wanted != flow.wanted:
            flow.wanted = msgspec.structs.replace(wanted, version=flow.wanted.version + 1)

    def record_io(self, action: IoAction) -> None:
        """Fold one action on an application's I/O; one on an unknown application has no effect."""
        self.io.record(action, self.time_ns)

    # -- saving -------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """The state as JSON bytes; `State.restore` gives an equal state."""
        return msgspec.json.encode(self)

    @classmethod
    def restore(cls, data: bytes) -> State:
        """Raises EventError if `data` is not a snapshot."""
        try:
            return msgspec.json.decode(data, type=cls)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise EventError(f"not a state snapshot: {error}") from None

    def difference(self, other: State) -> list[str]:
        """The names of the fields in which the two states differ."""
        return [f for f in self.__struct_fields__ if getattr(self, f) != getattr(other, f)]

    # -- one method an event --------------------------------------------------------------------

    def _io_event(self, event: Event, time_ns: int) -> None:
        self.io.apply(event, time_ns)
        if isinstance(event, IoApplicationStarted):
            self._check_owner(self.io.applications.get(event.app))

    def _mpi_event(self, event: Event, time_ns: int) -> None:
        self.mpi.apply(event)
        if isinstance(event, MpiRanksReported):
            self._check_owner(self.mpi.programs.get(event.app))

    def _job(self, job_id: str) -> JobInfo:
        return self.jobs.setdefault(job_id, JobInfo(job_id=job_id))

    def _job_started(self, event: JobStarted, time_ns: int) -> None:
        if time_ns <= self.finished.get(event.job_id, -1):
            return  # its end, which is later, came first
        self.finished.pop(event.job_id, None)  # requeued under the same id
        job = self._job(event.job_id)
        job.nodes, job.running, job.started_ns = event.nodes, True, time_ns
        if event.user:
            job.owned = True
            self._own(job, event.user)

    def _job_finished(self, event: JobFinished, time_ns: int) -> None:
        job = self.jobs.get(event.job_id)
        if job is not None and job.running and time_ns < job.started_ns:
            return  # the end of an earlier run under the same id
        if job is not None and job.staging:
            job.running, job.io = False, False  # its stage-out goes on; the last end removes it
            job.demand_bps, job.explicit_bps = {}, {}
        else:
            self.jobs.pop(event.job_id, None)
        _remember(self.finished, event.job_id, time_ns)

    def _staging_started(self, event: StagingStarted, time_ns: int) -> None:
        if time_ns <= self.ended_staging.get(_staging_key(event), -1):
            return  # its end, which is later, came first
        job = self._job(event.job_id)
        if job.owned and event.user and not may_serve(event.user, job):
            return  # another user's data is not the job's, though it names the job's id
        if event.user not in ("", "root", job.user):
            self._own(job, event.user)
        job.staging[event.direction] = max(0, event.bytes)
        job.staging_ns[event.direction] = time_ns
        job.staging_user[event.direction] = event.user
        if event.due_ns > 0:
            job.due_ns = event.due_ns
        if event.nodes and not job.nodes:
            job.nodes = event.nodes

    def _staging_finished(self, event: StagingFinished, time_ns: int) -> None:
        _remember(self.ended_staging, _staging_key(event), time_ns)
        job = self.jobs.get(event.job_id)
        if job is None or time_ns < job.staging_ns.get(event.direction, 0):
            return
        if event.user and job.staging_user.get(event.direction, "") not in ("", event.user):
            return  # the end of another user's
        forget_staging(job, event.direction)
        if not job.staging and not job.running and event.job_id in self.finished:
            del self.jobs[event.job_id]

    def _io_started(self, event: IoStarted, time_ns: int) -> None:
        if event.job_id not in self.finished:
            self._job(event.job_id).io = True

    def _io_finished(self, event: IoFinished, time_ns: int) -> None:
        if event.job_id in self.jobs:
            self.jobs[event.job_id].io = False

    def _demand_declared(self, event: DemandDeclared, time_ns: int) -> None:
        if event.job_id in self.finished:
            return
        if event.rate_bps > 0:
            job = self._job(event.job_id)
            if event.measured and event.traffic in job.explicit_bps:
                return
            job.demand_bps[event.traffic] = event.rate_bps
            if not event.measured:
                job.explicit_bps[event.traffic] = event.rate_bps
        elif event.job_id in self.jobs:
            job = self.jobs[event.job_id]
            if not (event.measured and event.traffic in job.explicit_bps):
                job.demand_bps.pop(event.traffic, None)
                job.explicit_bps.pop(event.traffic, None)

    def _own(self, job: JobInfo, user: str) -> None:
        """Note the owner of a job: what other users ascribed to it is no longer its."""
        job.user = user
        for direction, who in list(job.staging_user.items()):
            if who and not may_serve(who, job):
                forget_staging(job, direction)
        for owned in (self.flows, self.io.applications, self.mpi.programs):
            for each in owned.values():
                if each.job_id == job.job_id:
                    self._check_owner(each)

    def _check_owner(self, what: FlowInfo | IoApplication | MpiProgram | None) -> None:
        """A flow or program of another user than the job's owner is of no job."""
        job = self.jobs.get(what.job_id) if what is not None and what.job_id is not None else None
        if what is not None and job is not None and not may_serve(what.user, job):
            what.job_id = None

    def _flow_started(self, event: FlowStarted, time_ns: int) -> None:
        if time_ns <= self.ended_flows.get(event.flow_id, -1) or event.flow_id in self.flows:
            return  # its end came first, or the start is repeated
        job = self.jobs.get(event.job_id) if event.job_id is not None else None
        job_id = event.job_id if job is None or may_serve(event.user, job) else None
        self.flows[event.flow_id] = FlowInfo(
            flow_id=event.flow_id,
            traffic=event.traffic,
            engine=event.engine,
            job_id=job_id,
            user=event.user,
            source=event.source,
            destination=event.destination,
            controls=event.controls,
            loaders=max(0, event.loaders),
            bytes=max(0, event.bytes),
            started_ns=time_ns,
            heard_ns=time_ns,
        )

    def _flow_progress(self, event: FlowProgress, time_ns: int) -> None:
        """Reports of unknown flows are ignored. An engine that keeps to settings newer than any known here, which a
        controller before this one has sent, gets new ones: the version goes on after its own."""
        flows = self.flows
        for use in event.flows:
            flow = flows.get(use.flow_id)
            if flow is None:
                continue
            flow.heard_ns = time_ns
            flow.bytes_done, flow.rate_bps, flow.limited_by = use.bytes_done, use.rate_bps, use.limited_by
            flow.kept = use.version
            if use.bytes > 0:
                flow.bytes = use.bytes
            if use.version > flow.wanted.version:
                flow.wanted = msgspec.structs.replace(flow.wanted, version=use.version + 1)

    def _flow_finished(self, event: FlowFinished, time_ns: int) -> None:
        self.flows.pop(event.flow_id, None)
        _remember(self.ended_flows, event.flow_id, time_ns)

    def _file_system_declared(self, event: FileSystemDeclared, time_ns: int) -> None:
        if event.targets > 0:
            self.file_systems[event.file_system] = event
        else:
            self.file_systems.pop(event.file_system, None)

    def _wide_path_declared(self, event: WidePathDeclared, time_ns: int) -> None:
        if event.rate_bps > 0:
            self.wide_paths[event.peer] = event
        else:
            self.wide_paths.pop(event.peer, None)

    def _flows_listed(self, event: FlowsListed, time_ns: int) -> None:
        running = set(event.flows)
        for flow_id, flow in list(self.flows.items()):
            if agent_of(flow_id) == event.agent and flow_id not in running and flow.started_ns < time_ns:
                del self.flows[flow_id]
                _remember(self.ended_flows, flow_id, time_ns)

    def _flow_requested(self, event: FlowRequested, time_ns: int) -> None:
        """Actions of other flows, and what is no action, are left out."""
        flow = self.flows.get(event.flow_id)
        if flow is None:
            return
        asked = flow.asked
        for raw in event.actions:
            try:
                action = decode_action(raw)
            except EventError:
                continue
            if isinstance(action, FlowAction) and action.flow_id == event.flow_id:
                asked = changed(asked, action)
        if asked != flow.asked:
            flow.asked = asked
            flow.wanted = msgspec.structs.replace(flow.wanted, version=flow.wanted.version + 1)

    def _topology_changed(self, event: TopologyChanged, time_ns: int) -> None:
        self.topology = event.topology
        names = {link.name for link in event.topology.links}
        self.down_links = {n: t for n, t in self.down_links.items() if n in names}
        switches = event.topology.switch_by_name
        self.down_switches = {n: t for n, t in self.down_switches.items() if n in switches}

    def _host_seen(self, event: HostSeen, time_ns: int) -> None:
        self.hosts[event.host] = HostLocation(
            switch=event.switch, port=event.port, mac=event.mac, ip=event.ip
        )

    def _link_down(self, event: LinkDown, time_ns: int) -> None:
        self.down_links.setdefault(event.link, self.time_ns)

    def _link_up(self, event: LinkUp, time_ns: int) -> None:
        self.down_links.pop(event.link, None)

    def _switch_down(self, event: SwitchDown, time_ns: int) -> None:
        self.down_switches.setdefault(event.switch, self.time_ns)

    def _switch_up(self, event: SwitchUp, time_ns: int) -> None:
        self.down_switches.pop(event.switch, None)

    def _link_use(self, event: LinkUse, time_ns: int) -> None:
        """Rate out of every port, and of each class from edge switches towards other switches."""
        if self.topology is None or event.interval_ns <= 0:
            return
        self.port_rate_bps = {}
        for use in event.ports:
            self.port_rate_bps.setdefault(use.node, {})[use.port] = use.bytes * 8e9 / event.interval_ns
        uplinks = self.topology.uplink_ports
        totals: dict[TrafficClass, int] = dict.fromkeys(CLASSES, 0)
        for use in event.ports:
            if (use.node, use.port) in uplinks:
                for traffic, count in use.by_class.items():
                    totals[traffic] += count
        self.class_rate_bps = {c: n * 8e9 / event.interval_ns for c, n in totals.items() if n}

    def _decided(self, event: Decided, time_ns: int) -> None:
        if event.reason:
            self.reason, self.reason_ns = event.reason, time_ns

    def _paths_changed(self, event: PathsChanged, time_ns: int) -> None:
        self.in_force = event.plan


def _staging_key(event: StagingStarted | StagingFinished) -> str:
    """By user too: the end of one user's says nothing of another's."""
    return f"{event.direction}:{event.job_id}" + (f":{event.user}" if event.user else "")


def _remember(kept: dict[str, int], key: str, time_ns: int) -> None:
    kept.pop(key, None)
    kept[key] = time_ns
    if (
        len(kept) > FINISHED_KEPT
    ):  # many at once: a dictionary is slow to find its first key after each that has gone
        for oldest in list(itertools.islice(kept, FORGOTTEN)):
            del kept[oldest]


_Fold = Callable[["State", Any, int], None]


def _fold_of(kind: type[Event]) -> _Fold:
    """What folds events of this type into every part of the state."""
    found = [_handlers[kind]] if kind in _handlers else []
    if issubclass(kind, IO_EVENTS):
        found.append(State._io_event)
    if issubclass(kind, MPI_EVENTS):
        found.append(State._mpi_event)

    def each(state: State, event: Any, time_ns: int) -> None:
        for fold in found:
            fold(state, event, time_ns)

    return found[0] if len(found) == 1 else each


_folds: dict[type[Event], _Fold] = {}

_handlers: dict[type[Event], _Fold] = {
    JobStarted: State._job_started,
    JobFinished: State._job_finished,
    StagingStarted: State._staging_started,
    StagingFinished: State._staging_finished,
    IoStarted: State._io_started,
    IoFinished: State._io_finished,
    DemandDeclared: State._demand_declared,
    FlowStarted: State._flow_started,
    FlowProgress: State._flow_progress,
    FlowFinished: State._flow_finished,
    FileSystemDeclared: State._file_system_declared,
    WidePathDeclared: State._wide_path_declared,
    FlowsListed: State._flows_listed,
    FlowRequested: State._flow_requested,
    TopologyChanged: State._topology_changed,
    HostSeen: State._host_seen,
    LinkUp: State._link_up,
    LinkDown: State._link_down,
    SwitchUp: State._switch_up,
    SwitchDown: State._switch_down,
    LinkUse: State._link_use,
    PathsChanged: State._paths_changed,
    Decided: State._decided,
}
