"""Events of flows: what every engine moves, how far it is, and what it is asked to keep to.

Arrives: facts from flow agents; settings from controllers.
Leaves: typed structs.
Must not know: engines, policies.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from waystage.events.base import Event, TrafficClass

Outcome = Literal["done", "failed", "cancelled", "lost"]
"""`lost`: the engine ended without a word, for example killed."""

Control = Literal["rate", "mode", "loaders", "pause"]
"""What an engine obeys while it runs: see `SetRate`, `SetMode`, `SetLoaders`, `Pause`."""


class FlowEndpoint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One end of a flow: its host, its storage targets as `FILE_SYSTEM:NUMBER`, or the wide-area peer's name."""

    host: str = ""
    targets: tuple[str, ...] = ()
    peer: str = ""


class FlowSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a running flow is asked to keep to: complete, so that repeating it is idempotent.

    None leaves a setting to the engine: `rate_bps` in bit/s, a wide-area `mode`, `loaders` for each storage target.
    A later `version` replaces an earlier one.
    """

    version: int = 0
    rate_bps: int | None = None
    mode: str | None = None
    loaders: int | None = None
    paused: bool = False


class FlowStarted(Event, frozen=True, kw_only=True):
    """An engine begins to move data. `bytes` is the total, 0 where unknown; `controls`, what the engine obeys.

    The flow agent fills in `user` from the credentials of the engine's process.
    """

    flow_id: str
    traffic: TrafficClass
    engine: str
    job_id: str | None = None
    user: str = ""
    source: FlowEndpoint = FlowEndpoint()
    destination: FlowEndpoint = FlowEndpoint()
    bytes: int = 0
    controls: tuple[Control, ...] = ()


class FlowUse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Progress of one flow: totals since its start, and the rate since the last report.

    `limited_by` is `rate`, `source`, `destination`, `network`, `paused`, or empty where unknown; `version`, the
    settings that it keeps to.
    """

    flow_id: str
    bytes_done: int = 0
    bytes: int = 0
    rate_bps: int = 0
    limited_by: str = ""
    version: int = 0


class FlowProgress(Event, frozen=True, kw_only=True):
    """Progress of the flows of one agent, at most once a second: one message whatever their number."""

    telemetry: ClassVar[bool] = True

    flows: tuple[FlowUse, ...]


class FlowFinished(Event, frozen=True, kw_only=True):
    flow_id: str
    bytes_done: int = 0
    outcome: Outcome = "done"


class FlowAdjusted(Event, frozen=True, kw_only=True):
    """The controller asks the agent of this flow for `settings`. Sent again until progress reports their version."""

    flow_id: str
    settings: FlowSettings
