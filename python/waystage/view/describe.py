"""Events, actions and settings as one line of text.

Arrives: events and actions.
Leaves: text, from names that may be hostile: it is shown as text only.
Must not know: where it is shown.
"""

from __future__ import annotations

from typing import Any

import msgspec

from waystage import events
from waystage.events import Action, Event, EventError, FlowSettings, PathPlan, UnknownEvent, decode_action
from waystage.topology import format_rate

SHOWN_NAMES = 6
"""Names of a list that a line shows; the others are counted."""


def some(names: Any) -> str:
    """`a, b, c and 5 more`."""
    found = list(names)
    shown = ", ".join(map(str, found[:SHOWN_NAMES]))
    return f"{shown} and {len(found) - SHOWN_NAMES} more" if len(found) > SHOWN_NAMES else shown


def settings_text(settings: FlowSettings) -> str:
    """What a flow is asked to keep to, in words."""
    words = ["paused"] if settings.paused else []
    if settings.rate_bps is not None:
        words.append(f"{settings.rate_bps / 8e6:,.1f} MB/s")
    if settings.mode is not None:
        words.append(settings.mode)
    if settings.loaders is not None:
        words.append(f"{settings.loaders} loaders")
    return ", ".join(words) or "-"


def flow_text(event: Event) -> str | None:
    """Events of flows as words; None for others."""
    match event:
        case events.FlowStarted():
            ways = [end.peer or end.host or "?" for end in (event.source, event.destination)]
            job = f"job {event.job_id}" if event.job_id else "no job"
            return f"{event.flow_id} {event.traffic} {job} {event.user} {event.engine} {ways[0]} -> {ways[1]}"
        case events.FlowProgress():
            rate = sum(use.rate_bps for use in event.flows) / 8e6
            return f"{event.agent}: {len(event.flows)} flows, {rate:,.1f} MB/s"
        case events.FlowFinished():
            return f"{event.flow_id} {event.outcome}, {event.bytes_done / 1e6:,.1f} MB"
        case events.FlowAdjusted():
            return f"{event.flow_id} version {event.settings.version}: {settings_text(event.settings)}"
        case events.FlowRequested():
            return f"{event.flow_id} by {event.user}: {', '.join(bytes(a).decode() for a in event.actions)}"
        case events.FlowRefused():
            return f"{event.flow_id}: {event.reason}"
        case events.AggregatorReport():
            queued = sum(use.queue_bytes for use in event.servers) / 1e6
            return f"{event.agent}: {len(event.servers)} aggregators, {queued:,.1f} MB queued"
        case events.IoCompleted():
            times = f"waited {event.waited_ns / 1e9:.3f} s, took {event.took_ns / 1e9:.3f} s"
            return f"{event.app} operation {event.op}: {event.bytes / 1e6:,.1f} MB, {times}"
    return None


def event_text(event: Event) -> str:
    """Any event as words."""
    match event:
        case events.JobStarted():
            user = f" of {event.user}" if event.user else ""
            return f"job {event.job_id}{user} on {some(event.nodes)}"
        case events.JobFinished():
            return f"job {event.job_id}"
        case events.StagingStarted():
            size = f", {event.bytes / 1e6:,.1f} MB" if event.bytes else ""
            return f"job {event.job_id} {event.direction}{size}"
        case events.StagingFinished():
            return f"job {event.job_id} {event.direction}"
        case events.DemandDeclared():
            return f"job {event.job_id} {event.traffic} {format_rate(event.rate_bps)}"
        case events.TopologyChanged():
            topology = event.topology
            return f"{topology.name}: {len(topology.hosts)} hosts, {len(topology.switches)} switches"
        case events.Decided():
            words = some(action_text(action) for action in event.actions)
            return f"{event.policy}: {words or 'no action'}{f' ({event.reason})' if event.reason else ''}"
        case events.PathsChanged():
            return f"{plan_text(event.plan)}: {event.messages} messages to {event.switches} switches"
        case events.PathsRefused():
            return f"{event.switch}: {event.reason}"
        case events.PolicyFailed():
            return f"{event.policy} on {event.event}: {event.error}"
        case UnknownEvent():
            return msgspec.json.encode(event.body).decode()
    return flow_text(event) or " ".join(
        f"{name} {_short(getattr(event, name))}"
        for name in event.__struct_fields__
        if getattr(event, name) not in ("", (), None)
    )


def action_text(raw: msgspec.Raw | bytes | Action) -> str:
    """An action, as in `Decided`, as words; what cannot be read is quoted."""
    try:
        action = raw if isinstance(raw, Action) else decode_action(raw)
    except EventError:
        return f"unreadable action {ascii(bytes(raw))[:60] if not isinstance(raw, Action) else ''}"
    match action:
        case events.AssignPaths():
            return f"paths: {plan_text(action.plan)}"
        case events.SetRate():
            limit = "no limit" if action.rate_bps is None else format_rate(action.rate_bps)
            return f"rate of {action.flow_id}: {limit}"
        case events.SetMode():
            return f"mode of {action.flow_id}: {action.mode or 'the user’s'}"
        case events.SetLoaders():
            return f"loaders of {action.flow_id}: {action.loaders or 'the engine’s'}"
        case events.Pause():
            return f"pause {action.flow_id}"
        case events.Resume():
            return f"resume {action.flow_id}"
        case events.SetServerMap():
            return f"aggregators of {action.app}: {some(action.aggregators) or 'all'}"
        case events.GrantIo():
            return f"I/O of {action.app}: {'wait' if action.weight <= 0 else f'weight {action.weight:g}'}"
    return type(action).__name__


def plan_text(plan: PathPlan) -> str:
    """How a plan routes, in words."""
    words = ["classes apart" if plan.separated else "classes share the core"]
    words += [f"{traffic} over {some(cores)}" for traffic, cores in plan.cores.items()]
    if plan.spread == "destination":
        words.append("spread by destination")
    placed = sum(len(at) for at in plan.placed.values())
    steered = sum(map(len, plan.steered.values()))
    for count, what in (
        (placed, "edge switches placed"),
        (steered, "pairs steered"),
        (len(plan.pairs), "pairs"),
    ):
        if count:
            words.append(f"{count} {what}")
    return ", ".join(words)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else str(msgspec.to_builtins(value, str_keys=True))
    return text if len(text) <= 80 else f"{text[:77]}..."
