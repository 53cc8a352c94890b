"""A site under one policy, and stage-ins from its file system, for tests of policies of flows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from waystage.controllers.engine import PolicyEngine
from waystage.events import (
    Action,
    Decided,
    Envelope,
    Event,
    FileSystemDeclared,
    FlowEndpoint,
    FlowStarted,
    TopologyChanged,
    WidePathDeclared,
    encode_action,
)
from waystage.interconnect.generate import paper
from waystage.policies.base import load_policy
from waystage.state import State

SECOND = 10**9


class Site:
    """Folds events as a controller does, with its decisions; `see` returns what the policy asked for."""

    def __init__(self, name: str, **options: Any) -> None:
        self.engine = PolicyEngine(load_policy(name, **options))
        self.now = SECOND
        self.count = 0
        self.see(TopologyChanged(topology=paper()))
        self.see(
            FileSystemDeclared(
                file_system="fs",
                targets=4,
                target_bps=8 * 10**6,
                slowdown=((1.0, 1.0), (4.0, 2.0), (64.0, 200.0)),
                hosts=("storage",),
            )
        )
        self.see(WidePathDeclared(peer="far", host="storage", rate_bps=10**8, rtt_s=0.05))

    @property
    def state(self) -> State:
        return self.engine.state

    def see(self, event: Event, after_s: float = 0.1) -> list[Action]:
        self.now += round(after_s * SECOND)
        actions = self._fold(event)
        assert self.engine.failure is None, self.engine.failure
        if actions or self.engine.reason:
            encoded = tuple(encode_action(action) for action in actions)
            reason = self.engine.reason
            self._fold(Decided(policy=self.engine.policy.name, cause_id="", actions=encoded, reason=reason))
        return actions

    def _fold(self, event: Event) -> list[Action]:
        self.count += 1
        return self.engine.handle(Envelope(event=event, event_id=str(self.count), time_ns=self.now))


def stage_in(
    flow_id: str, job: str, size: int = 10**8, targets: Sequence[int] = (0,), **about: Any
) -> FlowStarted:
    names = tuple(f"fs:{target}" for target in targets)
    about = {"traffic": "staging", "engine": "staging", "controls": ("rate", "loaders", "pause")} | about
    return FlowStarted(
        flow_id=flow_id,
        job_id=job,
        source=FlowEndpoint(host="storage", targets=names),
        destination=FlowEndpoint(host="c1"),
        bytes=size,
        **about,
    )
