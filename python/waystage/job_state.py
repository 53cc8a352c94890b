"""Jobs and flows, as far as the control plane knows them: a part of the state.

Arrives: facts that `state.State` folds from events.
Leaves: what policies read of a job and of a flow; whose data counts as a job's.
Must not know: policies, the backplane, where events come from.
"""

from __future__ import annotations

from typing import Any

import msgspec

from waystage.events import (
    Control,
    Direction,
    FlowAction,
    FlowEndpoint,
    FlowSettings,
    Pause,
    Resume,
    SetLoaders,
    SetMode,
    SetRate,
    TrafficClass,
)

NOTHING_ASKED = FlowSettings()


class JobInfo(msgspec.Struct, kw_only=True):
    """The known facts of a job. `staging` and `io` hold declared bytes by direction or use;
    `explicit_bps` is the demand that a user declared, where it is not measured.

    `user` is the owner: as the scheduler says where `owned`, else the one who stages for it. `staging_user` has who
    moves the data of each direction.
    """

    job_id: str
    user: str = ""
    owned: bool = False
    nodes: tuple[str, ...] = ()
    running: bool = False
    started_ns: int = 0
    staging: dict[Direction, int] = {}
    staging_ns: dict[Direction, int] = {}
    staging_user: dict[Direction, str] = {}
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
    asked: FlowSettings = NOTHING_ASKED
    kept: int = 0

    @property
    def settings(self) -> FlowSettings:
        """What the engine is to keep to: both together, the lower rate, paused where either says so."""
        wanted, asked = self.wanted, self.asked
        if asked == NOTHING_ASKED:
            return wanted
        rates = [rate for rate in (wanted.rate_bps, asked.rate_bps) if rate is not None]
        return FlowSettings(
            version=wanted.version,
            rate_bps=min(rates, default=None),
            mode=wanted.mode if asked.mode is None else asked.mode,
            loaders=wanted.loaders if asked.loaders is None else asked.loaders,
            paused=wanted.paused or asked.paused,
        )


def changed(settings: FlowSettings, action: FlowAction) -> FlowSettings:
    """The settings after an action on the flow."""
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


def may_serve(user: str, job: JobInfo) -> bool:
    """Whether a flow of `user` can be one of the job's: its owner's, the system's, or any if the owner is unknown."""
    return not job.user or user in (job.user, "root")


def forget_staging(job: JobInfo, direction: Direction) -> None:
    """The job no longer stages in this direction."""
    for facts in (job.staging, job.staging_ns, job.staging_user):
        facts.pop(direction, None)
