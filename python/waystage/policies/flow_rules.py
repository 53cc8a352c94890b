"""What the policies of flows share: actions only where they change something, and what flows have in common.

Arrives: flows, the state. Leaves: actions; the resources that a flow crosses.
Must not know: when a flow should be changed, worlds.
"""

from __future__ import annotations

from collections.abc import Iterator

from waystage.events import (
    Action,
    FlowEndpoint,
    FlowFinished,
    FlowProgress,
    FlowStarted,
    JobFinished,
    JobStarted,
    Pause,
    Resume,
    SetLoaders,
    SetMode,
    SetRate,
    StagingFinished,
    StagingStarted,
)
from waystage.state import FlowInfo, JobInfo, State
from waystage.topology import Topology

FLOW_EVENTS = (
    FlowStarted,
    FlowFinished,
    FlowProgress,
    JobStarted,
    JobFinished,
    StagingStarted,
    StagingFinished,
)
"""Events after which flows or the jobs that wait for them have changed."""


def set_rate(flow: FlowInfo, rate_bps: int | None) -> Iterator[Action]:
    """At most one action: none where the flow is asked for it already, or cannot obey."""
    if "rate" in flow.controls and flow.wanted.rate_bps != rate_bps:
        yield SetRate(flow_id=flow.flow_id, rate_bps=rate_bps)


def set_mode(flow: FlowInfo, mode: str | None) -> Iterator[Action]:
    """As `set_rate`."""
    if "mode" in flow.controls and flow.wanted.mode != mode:
        yield SetMode(flow_id=flow.flow_id, mode=mode)


def set_loaders(flow: FlowInfo, loaders: int | None) -> Iterator[Action]:
    """As `set_rate`."""
    if "loaders" in flow.controls and flow.wanted.loaders != loaders:
        yield SetLoaders(flow_id=flow.flow_id, loaders=loaders)


def set_paused(flow: FlowInfo, paused: bool) -> Iterator[Action]:
    """As `set_rate`."""
    if "pause" in flow.controls and flow.wanted.paused != paused:
        yield (Pause if paused else Resume)(flow_id=flow.flow_id)


def is_stage_in_of_waiting_job(flow: FlowInfo, state: State) -> bool:
    """Whether a job waits for it: a job that stages in does not compute, whichever engine moves its data."""
    if flow.job_id is None or flow.traffic not in ("staging", "wan"):
        return False
    job = state.jobs.get(flow.job_id)
    return flow.traffic == "staging" if job is None else is_waited_for(flow, job)


def is_waited_for(flow: FlowInfo, job: JobInfo) -> bool:
    """Whether the job, which is the flow's, waits for it."""
    traffic = flow.traffic
    if traffic == "staging":
        return "in" in job.staging or not (job.staging or job.running)
    return traffic == "wan" and "in" in job.staging


def shared_resources(flow: FlowInfo, state: State) -> set[str]:
    """Names of what the flow uses and others may: its storage targets, and its links by direction.

    Of links across the core the edge switch and direction are named, not the core switch, which a plan chooses.
    """
    names = set(flow.source.targets) | set(flow.destination.targets)
    topology = state.topology
    if topology is None:
        return names
    source, target = _host(flow.source, state), _host(flow.destination, state)
    if not source or not target or source == target:
        return names
    names |= {f"from {source}", f"to {target}"}
    edges = _edge(topology, source), _edge(topology, target)
    if edges[0] != edges[1]:
        names |= {f"out of {edges[0]}", f"into {edges[1]}"}
    return names


def _host(end: FlowEndpoint, state: State) -> str:
    """The host at which this end meets the interconnect; empty where it is unknown."""
    topology = state.topology
    host = end.host
    if not host and end.peer in state.wide_paths:
        host = state.wide_paths[end.peer].host
    return host if topology is not None and host in topology.attachment else ""


def _edge(topology: Topology, host: str) -> str:
    return topology.attachment[host][0]
