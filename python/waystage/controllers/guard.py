"""Runs a user's policy in a process of limited time and memory, and decides by a fallback while that has failed.

Arrives: a policy's name and options; events with the state after them, from the engine.
Leaves: the policy's actions, or the fallback's; what failed, in one sentence.
Must not know: the backplane, actuators, what the policy decides.

A policy that raises does nothing on that event, as everywhere. One that loops, allocates without bound, ends its
process or answers what is no action is ended: the fallback decides at once, and what the policy asked of flows is
lifted, so that no flow stays paused. The process is started again, later each time that it fails; a policy that is up
again has the state of now. A policy is not held for hostile: it has the rights of the controller.
"""

from __future__ import annotations

import json
import logging
import os
import re
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from waystage.controllers import policy_wire as wire
from waystage.events import (
    Action,
    Envelope,
    Event,
    EventError,
    Resume,
    SetLoaders,
    SetMode,
    SetRate,
    decode_action,
    encode,
    encode_action,
)
from waystage.policies.base import SHIPPED, Explained, Policy, PolicyError, load_policy
from waystage.state import State
from waystage.units import UnitError, parse_size

log = logging.getLogger(__name__)

START_S = 60.0
"""For the start of the process, and for reading a snapshot of a large state."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 300.0
"""Before the process is started again; doubled with every failure within `CALM_S`."""

CALM_S = 600.0

RAISES = 10
"""Events in succession on which a policy may raise, before it is taken to have failed."""

_OWN = re.compile(r"[\w.]+:\w+")
"""A policy by its dotted path."""


class GuardConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`run`: which policies run in a process, those that are not shipped (`own`), `all` or `none`."""

    run: Literal["own", "all", "none"] = "own"
    answer_s: float = 10.0
    memory: int | str = "1 GiB"
    fallback: str = "ecmp"


class _Answer(msgspec.Struct, frozen=True):
    actions: list[msgspec.Raw]
    reason: str = ""


class PolicyTrouble(Exception):
    """What went wrong with a policy; the message names the remedy in force."""


def build(name: str, options: Mapping[str, Any], config: GuardConfig) -> Policy:
    """The policy, in a process where `config` says so. Raises PolicyError."""
    if config.run == "all" or (config.run == "own" and (name not in SHIPPED or _has_own(options))):
        return GuardedPolicy(name, options, config)
    return load_policy(name, **options)


def _has_own(value: object) -> bool:
    """Whether options name a policy that is not shipped, as a member or candidate."""
    if isinstance(value, str):
        return _OWN.fullmatch(value) is not None
    if isinstance(value, Mapping):
        return any(_has_own(each) for each in value.values())
    return isinstance(value, list | tuple) and any(_has_own(each) for each in value)


class GuardedPolicy:
    """A policy and an `engine.Follower`, for one thread. Starts the process when it is built. Raises PolicyError.

    `name` is that of the policy that decides now.
    """

    def __init__(
        self,
        name: str,
        options: Mapping[str, Any],
        config: GuardConfig,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if config.fallback not in SHIPPED:
            raise PolicyError(f"policy_guard.fallback {config.fallback!r}: name a shipped policy")
        if not 0.001 <= config.answer_s <= 3600:
            raise PolicyError(f"policy_guard.answer_s {config.answer_s:g}: give 0.001 to 3600 seconds")
        try:
            self._memory = parse_size(config.memory)
        except UnitError as error:
            raise PolicyError(f"policy_guard.memory: {error}") from None
        if self._memory < 1 << 20:
            raise PolicyError("policy_guard.memory: give at least 1 MiB")
        self._asked, self._options, self._config, self._clock = name, dict(options), config, clock
        self._fallback = load_policy(config.fallback)
        self._process: subprocess.Popen[bytes] | None = None
        self._synced = False
        self._ready = False
        self._deciding = True
        self._pending: list[bytes] = []
        self._last: bytes = b""
        self._raised = self._failures = 0
        self._started_at = self._again_at = 0.0
        self.failure: Exception | None = None
        self.name = self.failed_name = name
        self._start()
        try:
            self._await_ready(self._clock() + START_S)
        except wire.WireError as error:
            self.close()
            raise PolicyError(str(error) or f"policy {name!r} was not built within {START_S:g} s") from None

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        self._ready = self._synced = False
        self._pending = []
        if process is not None:
            self._socket.close()
            process.kill()
            process.wait()

    # -- engine.Follower ---------------------------------------------------------------------------------

    def follow(self, item: Envelope) -> None:
        """The event has been folded into the state."""
        self._last = encode(item)
        if self._synced:
            self._pending.append(wire.frame(wire.FOLD, self._last))

    def record(self, actions: Sequence[Action]) -> None:
        """These actions have been recorded in the state."""
        if self._synced and actions:
            body = msgspec.json.encode([msgspec.Raw(encode_action(action)) for action in actions])
            self._pending.append(wire.frame(wire.RECORD, body))

    # -- the policy --------------------------------------------------------------------------------------

    def __call__(self, event: Event, state: State) -> Sequence[Action]:
        self.failure = None
        if not self._is_up():
            return self._fallback(event, state)
        try:
            answer = self._ask(state)
        except wire.Silent:
            return self._fall_back(f"gave no answer within {self._config.answer_s:g} s", event, state)
        except wire.WireError as error:
            return self._fall_back(str(error), event, state)
        if answer is None:
            return ()
        if not self._deciding:
            log.warning("policy %s decides again", self.failed_name)
        self._deciding, self.name = True, self.failed_name
        return answer

    def _ask(self, state: State) -> Sequence[Action] | None:
        """The policy's answer to the event followed last; None where it raised. Raises WireError."""
        if self._synced:
            self._pending[-1] = wire.frame(wire.ASK, self._last)
            until = self._clock() + self._config.answer_s
        else:
            self._pending = [
                wire.frame(wire.STATE, state.snapshot()),
                wire.frame(wire.ANSWER_HELD, self._last),
            ]
            self._synced, until = True, self._clock() + START_S
        pending, self._pending = b"".join(self._pending), []
        wire.send(self._socket, pending, until)
        kind, payload = wire.receive(self._socket, until)
        if kind == wire.ANSWER:
            try:
                answer = msgspec.json.decode(payload, type=_Answer)
                actions = [decode_action(each) for each in answer.actions]
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, EventError) as error:
                raise wire.WireError(f"answered with what is no action: {error}") from None
            self._raised = 0
            return Explained.by(actions, answer.reason) if answer.reason else actions
        text = payload.decode("utf-8", "replace")
        if kind != wire.FAILED:
            raise wire.WireError(text if kind == wire.BROKEN else "sent what is no answer")
        self._raised += 1
        if self._raised >= RAISES:
            self._raised = 0
            raise wire.WireError(f"failed on {RAISES} events in succession, on the last with {text}")
        self.failure = PolicyTrouble(text)
        return None

    # -- inside ------------------------------------------------------------------------------------------

    def _fall_back(self, why: str, event: Event, state: State) -> Sequence[Action]:
        status = self._status() if why.startswith("is gone") else None
        if status is not None:
            why = (
                f"was ended by signal {-status}" if status < 0 else f"ended its process with status {status}"
            )
        self.close()
        now = self._clock()
        self._failures = 1 if now - self._started_at > CALM_S else self._failures + 1
        pause_s = min(FIRST_PAUSE_S * 2 ** (self._failures - 1), LONGEST_PAUSE_S)
        self._again_at = now + pause_s
        self.failure = PolicyTrouble(
            f"it {why}; {self._fallback.name} decides, and it is started again in {pause_s:g} s"
        )
        log.error("policy %s: %s", self.failed_name, self.failure)
        if not self._deciding:
            return self._fallback(event, state)
        self._deciding, self.name = False, self._fallback.name
        return [*_lifted(state), *self._fallback(event, state)]

    def _status(self) -> int | None:
        """Of a process that closed its socket, which it may do a moment before its end."""
        try:
            return self._process.wait(1.0) if self._process is not None else None
        except subprocess.TimeoutExpired:
            return None

    def _is_up(self) -> bool:
        """Whether the process can be asked; starts it where it is time to."""
        now = self._clock()
        if self._process is None:
            if now < self._again_at:
                return False
            self._start()
        if self._ready:
            return True
        if not select.select([self._socket], [], [], 0)[0]:
            if now - self._started_at > START_S:
                self._give_up(f"was not built within {START_S:g} s")
            return False
        try:
            self._await_ready(now + 1.0)
        except wire.WireError as error:
            self._give_up(str(error) or "began to answer, and did not end")
            return False
        return True

    def _give_up(self, why: str) -> None:
        self.close()
        self._failures += 1
        pause_s = min(FIRST_PAUSE_S * 2 ** (self._failures - 1), LONGEST_PAUSE_S)
        self._again_at = self._clock() + pause_s
        log.error("policy %s: %s; it is started again in %g s", self.failed_name, why, pause_s)

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        words = [sys.executable, "-P", "-m", "waystage.controllers.policy_process"]
        words += [str(theirs.fileno()), str(os.getpid()), str(self._memory)]
        words += [self._asked, json.dumps(self._options)]
        with theirs:
            self._process = subprocess.Popen(words, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        self._socket, self._started_at = ours, self._clock()

    def _await_ready(self, until: float) -> None:
        """Raises WireError with the reason where the policy cannot be built; empty where it takes too long."""
        kind, payload = wire.receive(self._socket, until)
        text = payload.decode("utf-8", "replace")
        if kind == wire.BROKEN:
            raise wire.WireError(text)
        try:
            name = json.loads(text)["name"] if kind == wire.READY else None
        except (ValueError, TypeError, KeyError):
            name = None
        if not isinstance(name, str):
            raise wire.WireError("sent what is no answer")
        self.failed_name, self._ready = name, True
        if self._deciding:
            self.name = name


def _lifted(state: State) -> list[Action]:
    """Actions that take back what was asked of flows."""
    actions: list[Action] = []
    for flow in state.flows.values():
        wanted = flow.wanted
        if wanted.rate_bps is not None:
            actions.append(SetRate(flow_id=flow.flow_id, rate_bps=None))
        if wanted.mode is not None:
            actions.append(SetMode(flow_id=flow.flow_id, mode=None))
        if wanted.loaders is not None:
            actions.append(SetLoaders(flow_id=flow.flow_id, loaders=None))
        if wanted.paused:
            actions.append(Resume(flow_id=flow.flow_id))
    return actions
