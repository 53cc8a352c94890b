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

from collections.abc import Callable
from typing import Any

import msgspec

from waystage.events import (
    CLASSES,
    AssignPaths,
    Control,
    Decided,
    DemandDeclared,
    Direction,
    Envelope,
    Event,
    EventError,
    FileSystemDeclared,
    FlowAction,
    FlowEndpoint,
    FlowFinished,
    FlowProgress,
    FlowRequested,
    FlowSettings,
    FlowsListed,
    FlowStarted,
    HostSeen,
    IoAction,
    IoFinished,
    IoStarted,
    JobFinished,
    JobStarted,
    LinkDown,
    LinkUp,
    LinkUse,
    PathPlan,
    PathsChanged,
    Pause,
    Resume,
    SetLoaders,
    SetMode,
    SetRate,
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
from waystage.io_state import IO_EVENTS, IoState
from waystage.mpi_state import MPI_EVENTS, MpiState
from waystage.topology import Topology

FINISHED_KEPT = 4096
"""Finished job ids remembered, so that a start that arrives after its end does not revive the job."""


class JobInfo(msgspec.Struct, kw_only=True):
    """The known facts of a job. `staging` and `io` hold declared bytes by direction or use;
    `explicit_bps` is the demand that a user declared, where it is not measured."""

    job_id: str
    user: str = ""
    nodes: tuple[str, ...] = ()
    running: bool = False
    started_ns: int = 0
    staging: dict[Direction, int] = {}
    staging_ns: dict[Direction, int] = {}
    io: bool = False
    demand_bps: dict[TrafficClass, int] = {}
    explicit_bps: dict[TrafficClass, int] = {}
    due_ns: int = 0


class FlowInfo(msgspec.Struct, kw_only=True):
    """The known facts of a running flow.

    `wanted` is what policies asked for, and its version counts changes of `asked` too, which is what its user or an
    operator asked for; `kept` is the version that the engine reports.
    """

    flow_id: str
    traffic: TrafficClass
    engine: str
    job_id: str | None = None
    user: str = ""
    source: FlowEndpoint = FlowEndpoint()
    destination: FlowEndpoint = FlowEndpoint()
    controls: tuple[Control, ...] = ()
    loaders: int = 0
    started_ns: int = 0
    heard_ns: int = 0
    bytes: int = 0
    bytes_done: int = 0
    rate_bps: int = 0
    limited_by: str = ""
    wanted: FlowSettings = FlowSettings()
    asked: FlowSettings = FlowSettings()
    kept: int = 0

    @property
    def settings(self) -> FlowSettings:
        """What the engine is to keep to: both together, the lower rate, paused where either says so."""
        wanted, asked = self.wanted, self.asked
        rates = [rate for rate in (wanted.rate_bps, asked.rate_bps) if rate is not None]
        return FlowSettings(
            version=wanted.version,
            rate_bps=min(rates, default=None),
            mode=wanted.mode if asked.mode is None else asked.mode,
            loaders=wanted.loaders if asked.loaders is None else asked.loaders,
            paused=wanted.paused or asked.paused,
        )


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
        self.events += 1
        self.time_ns = max(self.time_ns, item.time_ns)
        handler = _handlers.get(type(item.event))
        if handler is not None:
            handler(self, item.event, item.time_ns)
        if isinstance(item.event, IO_EVENTS):
            self.io.apply(item.event, item.time_ns)
        if isinstance(item.event, MPI_EVENTS):
            self.mpi.apply(item.event)

    def record_request(self, action: AssignPaths) -> None:
        """Fold one action of a `Decided` event."""
        self.requested = action.plan
        self.requested_ns = self.time_ns

    def record_flow(self, action: FlowAction) -> None:
        """Fold one action on a flow; one on an unknown flow has no effect."""
        flow = self.flows.get(action.flow_id)
        if flow is None:
            return
        wanted = _changed(flow.wanted, action)
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

    def _job(self, job_id: str) -> JobInfo:
        return self.jobs.setdefault(job_id, JobInfo(job_id=job_id))

    def _job_started(self, event: JobStarted, time_ns: int) -> None:
        if time_ns <= self.finished.get(event.job_id, -1):
            return  # its end, which is later, came first
        self.finished.pop(event.job_id, None)  # requeued under the same id
        job = self._job(event.job_id)
        job.nodes, job.running, job.started_ns = event.nodes, True, time_ns
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
        job.staging[event.direction] = max(0, event.bytes)
        job.staging_ns[event.direction] = time_ns
        if event.due_ns > 0:
            job.due_ns = event.due_ns
        if event.nodes and not job.nodes:
            job.nodes = event.nodes
        self._own(job, event.user)

    def _staging_finished(self, event: StagingFinished, time_ns: int) -> None:
        _remember(self.ended_staging, _staging_key(event), time_ns)
        job = self.jobs.get(event.job_id)
        if job is None or time_ns < job.staging_ns.get(event.direction, 0):
            return
        job.staging.pop(event.direction, None)
        job.staging_ns.pop(event.direction, None)
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
        """Note the owner of a job; flows that other users ascribed to it are no longer its."""
        if not user:
            return
        job.user = user
        for flow in self.flows.values():
            if flow.job_id == job.job_id and not _may_serve(flow.user, job):
                flow.job_id = None

    def _flow_started(self, event: FlowStarted, time_ns: int) -> None:
        if time_ns <= self.ended_flows.get(event.flow_id, -1) or event.flow_id in self.flows:
            return  # its end came first, or the start is repeated
        job = self.jobs.get(event.job_id) if event.job_id is not None else None
        job_id = event.job_id if job is None or _may_serve(event.user, job) else None
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
                asked = _changed(asked, action)
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
        """Rate of each class from edge switches towards other switches."""
        if self.topology is None or event.interval_ns <= 0:
            return
        edges, uplinks = set(self.topology.edge_switches), set()
        for link in self.topology.switch_links:
            uplinks |= {(link.a, link.a_port), (link.b, link.b_port)}
        totals: dict[TrafficClass, int] = dict.fromkeys(CLASSES, 0)
        for use in event.ports:
            if use.node in edges and (use.node, use.port) in uplinks:
                for traffic, count in use.by_class.items():
                    totals[traffic] += count
        self.class_rate_bps = {c: n * 8e9 / event.interval_ns for c, n in totals.items() if n}

    def _decided(self, event: Decided, time_ns: int) -> None:
        if event.reason:
            self.reason, self.reason_ns = event.reason, time_ns

    def _paths_changed(self, event: PathsChanged, time_ns: int) -> None:
        self.in_force = event.plan


def _changed(settings: FlowSettings, action: FlowAction) -> FlowSettings:
    change: dict[str, Any]
    match action:
        case SetRate():
            change = {"rate_bps": action.rate_bps}
        case SetMode():
            change = {"mode": action.mode}
        case SetLoaders():
            change = {"loaders": action.loaders}
        case Pause():
            change = {"paused": True}
        case Resume():
            change = {"paused": False}
    return msgspec.structs.replace(settings, **change)


def _may_serve(user: str, job: JobInfo) -> bool:
    """Whether a flow of `user` can be one of the job's: its owner's, the system's, or any if the owner is unknown."""
    return not job.user or user in (job.user, "root")


def _staging_key(event: StagingStarted | StagingFinished) -> str:
    return f"{event.direction}:{event.job_id}"


def _remember(kept: dict[str, int], key: str, time_ns: int) -> None:
    kept.pop(key, None)
    kept[key] = time_ns
    while len(kept) > FINISHED_KEPT:
        del kept[next(iter(kept))]


_handlers: dict[type[Event], Callable[[State, Any, int], None]] = {
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
