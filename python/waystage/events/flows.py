"""Events of flows: what every engine moves, how far it is, and what it is asked to keep to.

Arrives: facts from flow agents; settings from controllers.
Leaves: typed structs.
Must not know: engines, policies.

A flow belongs to the agent that its id begins with (`AGENT:REST`), and its events travel under that agent's name as
their scope: so access rules say who may speak of it, and settings reach one agent only.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from waystage.events.base import Event, EventError, OfAgent, TrafficClass

Outcome = Literal["done", "failed", "cancelled", "lost"]
"""`lost`: the engine ended without a word, for example killed."""

Control = Literal["rate", "mode", "loaders", "pause"]
"""What an engine obeys while it runs: see `SetRate`, `SetMode`, `SetLoaders`, `Pause`."""


def agent_of(flow_id: str) -> str:
    """The agent that a flow belongs to; empty where its id names none."""
    return flow_id.rpartition(":")[0]


class FlowEndpoint(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """One end of a flow: its host, its storage targets as `FILE_SYSTEM:NUMBER`, or the wide-area peer's name."""

    host: str = ""
    targets: tuple[str, ...] = ()
    peer: str = ""


class FlowSettings(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
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

    `loaders` is the engine's own number for each storage target, 0 where unknown.

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
    loaders: int = 0

    def belongs_to(self) -> str | None:
        return agent_of(self.flow_id) or None


class FlowUse(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
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
    """Progress of all flows of `agent`, at most once a second: one message whatever their number."""

    telemetry: ClassVar[bool] = True
    journalled: ClassVar[bool] = False

    flows: tuple[FlowUse, ...]
    agent: str = ""

    def belongs_to(self) -> str | None:
        agent = self.agent
        for use in self.flows:
            if use.flow_id.rpartition(":")[0] != agent:
                raise EventError(
                    f"progress of agent {self.agent!r} names {ascii(use.flow_id)[:60]}, which is not its own"
                )
        return self.agent or None


class FlowFinished(Event, frozen=True, kw_only=True):
    flow_id: str
    bytes_done: int = 0
    outcome: Outcome = "done"

    def belongs_to(self) -> str | None:
        return self.flow_id.rpartition(":")[0] or None


class FlowsListed(OfAgent, Event, frozen=True, kw_only=True):
    """All running flows of `agent`: any other of its flows that started earlier is lost.

    An agent sends it at its start, when it knows nothing of the flows of the agent before it.
    """

    agent: str
    flows: tuple[str, ...] = ()


class FlowRequested(Event, frozen=True, kw_only=True):
    """`user`, to whom the flow belongs, or an operator, asks for these actions on it (encoded as in `Decided`).

    The flow agent has checked the user. What is asked for holds beside what policies ask for: of two rates the lower.
    """

    flow_id: str
    user: str
    actions: tuple[msgspec.Raw, ...]

    def belongs_to(self) -> str | None:
        return agent_of(self.flow_id) or None


class FlowAdjusted(Event, frozen=True, kw_only=True):
    """The controller asks the agent of this flow for `settings`.

    Sent again until progress reports their version, and from time to time while they are not the default.
    """

    telemetry: ClassVar[bool] = True
    journalled: ClassVar[bool] = False

    flow_id: str
    settings: FlowSettings

    def belongs_to(self) -> str | None:
        return agent_of(self.flow_id) or None


class FlowRefused(Event, frozen=True, kw_only=True):
    """A policy asked for a setting of `control` that the flow's engine does not obey. Said once for each."""

    flow_id: str
    control: Control
    reason: str
