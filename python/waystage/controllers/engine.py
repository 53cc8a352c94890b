"""The pure core of a controller: an event in, actions out.

Arrives: envelopes in the order of folding.
Leaves: the actions of the policy.
Must not know: the backplane, actuators, threads, clocks. The simulator uses it unchanged.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from waystage.events import Action, AssignPaths, Decided, Envelope, FlowAction, IoAction, PolicyFailed
from waystage.policies.base import Policy, reason_of
from waystage.state import State

log = logging.getLogger(__name__)


@runtime_checkable
class Follower(Protocol):
    """A policy with a state elsewhere, which follows that of the engine. `failure`, of the last event, may come with
    actions; it is that of the policy `failed_name`."""

    failure: Exception | None
    failed_name: str

    def follow(self, item: Envelope) -> None:
        """`item` has been folded."""

    def record(self, actions: Sequence[Action]) -> None:
        """`actions` have been recorded."""


class PolicyEngine:
    """Folds each event into `state`, then asks `policy`. A policy that raises is logged and counted.

    `failure` is what it raised on the last event, None where it did not; `reason`, what it says of its last answer.
    """

    def __init__(self, policy: Policy, state: State | None = None) -> None:
        self.policy = policy
        self.state = state if state is not None else State()
        self.policy_errors = 0
        self.failure: Exception | None = None
        self.failed_name = policy.name
        self.reason = ""
        self._follower = policy if isinstance(policy, Follower) else None

    def handle(self, item: Envelope) -> list[Action]:
        """The policy's actions on this event, already recorded in the state; `[]` where it raised."""
        self.state.apply(item)
        if self._follower is not None:
            self._follower.follow(item)
        self.failure, self.reason = None, ""
        if isinstance(item.event, (Decided, PolicyFailed)):
            return []  # its own answer: nothing to answer
        try:
            answer = self.policy(item.event, self.state)
            actions = list(answer)
            for action in actions:
                if not isinstance(action, Action):
                    raise TypeError(f"it returned a {type(action).__name__}, which is no action")
        except Exception as error:
            self.policy_errors += 1
            self.failure = error
            log.exception("policy %s failed on %s", self.policy.name, type(item.event).__name__)
            return []
        if self._follower is not None:
            self.failure, self.failed_name = self._follower.failure, self._follower.failed_name
            self.policy_errors += self.failure is not None
            self._follower.record(actions)
        self.record(actions)
        self.reason = reason_of(answer)
        return actions

    def fold(self, item: Envelope, decided: tuple[Action, ...]) -> None:
        """Replay: fold the event and its recorded decision, without calling the policy."""
        self.state.apply(item)
        self.record(decided)

    def record(self, actions: tuple[Action, ...] | list[Action]) -> None:
        for action in actions:
            if isinstance(action, AssignPaths):
                self.state.record_request(action)
            elif isinstance(action, FlowAction):
                self.state.record_flow(action)
            elif isinstance(action, IoAction):
                self.state.record_io(action)
