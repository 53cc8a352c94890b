"""Rows: parts of the state as a page shows them.

Arrives: parts of the state.
Leaves: plain values for JSON; times in ms, rates in bit/s, sizes in bytes.
Must not know: events, frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from waystage.events import FileSystemDeclared, FlowEndpoint, FlowSettings
from waystage.io_state import IoApplication
from waystage.state import FlowInfo
from waystage.view.describe import settings_text
from waystage.view.frames import Row

NAMES_SHOWN = 64
"""Nodes of a job, targets of a flow and aggregators of an application in a row; the others are counted."""

TROUBLES = frozenset(
    {
        "AggregatorLost",
        "CablingError",
        "FlowRefused",
        "LinkDown",
        "Missed",
        "PathsRefused",
        "PolicyFailed",
        "SwitchDown",
        "SwitchRefused",
    }
)
"""Types that a reader should notice."""


_AS_IT_LIKES = FlowSettings()


def job(user: str, nodes: Sequence[str], phases: list[list[Any]], ended: bool) -> Row:
    row: Row = {"nodes": list(nodes[:NAMES_SHOWN]), "phases": [list(phase) for phase in phases]}
    if len(nodes) > NAMES_SHOWN:
        row["count"] = len(nodes)
    if user:
        row["user"] = user
    if ended:
        row["ended"] = True
    return row


def flow(info: FlowInfo) -> Row:
    row: Row = {
        "class": info.traffic,
        "engine": info.engine,
        "from": _end(info.source),
        "to": _end(info.destination),
        "started": info.started_ns // 1_000_000,
        "bytes": info.bytes,
        "done": info.bytes_done,
        "rate": info.rate_bps,
    }
    for name, value in (("job", info.job_id), ("user", info.user), ("limit", info.limited_by)):
        if value:
            row[name] = value
    if info.wanted != _AS_IT_LIKES or info.asked != _AS_IT_LIKES:
        settings = settings_text(info.settings)
        if settings != "-":
            row["asked"] = settings
            if info.kept < info.wanted.version:
                row["pending"] = True
    if targets := info.source.targets + info.destination.targets:
        row["targets"] = list(targets[:NAMES_SHOWN])
    return row


def application(app: IoApplication) -> Row:
    row: Row = {
        "ranks": sum(app.hosts.values()),
        "hosts": len(app.hosts),
        "op": app.op,
        "op_bytes": app.op_bytes,
        "doing": "waits for a grant"
        if app.in_io and not app.going_on
        else "in I/O"
        if app.in_io
        else "computes",
        "waited": round(app.waited_ns / 1e9, 3),
        "weight": app.wanted.weight,
        "servers": [
            {
                "name": name,
                "host": server.host,
                "lost": server.lost,
                "bytes": server.bytes,
                "busy": round(server.busy_ns / 1e9, 3),
                "queue": server.queue_bytes,
                "used": name in app.map,
            }
            for name, server in list(app.servers.items())[:NAMES_SHOWN]
        ],
    }
    if len(app.servers) > NAMES_SHOWN:
        row["count"] = len(app.servers)
    for name, value in (("job", app.job_id), ("user", app.user), ("storage", app.storage)):
        if value:
            row[name] = value
    return row


def file_system(found: FileSystemDeclared) -> Row:
    return {"targets": found.targets, "rate": found.target_bps, "hosts": list(found.hosts[:NAMES_SHOWN])}


def _end(endpoint: FlowEndpoint) -> str:
    if endpoint.peer:
        return f"{endpoint.peer} (far)"
    if endpoint.host:
        return endpoint.host
    return f"{len(endpoint.targets)} targets" if endpoint.targets else "?"
