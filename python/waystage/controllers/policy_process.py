"""The process of a user's policy: `python -P -m waystage.controllers.policy_process FD PARENT MEMORY NAME OPTIONS`.

Arrives: a snapshot of the state, then every envelope and decision, on a socket.
Leaves: the policy's answers; why it could not be built, or failed.
Must not know: the backplane, actuators.

The process folds the same events as the controller, so that no state crosses the socket with an event. It ends with the
controller (PR_SET_PDEATHSIG, end of file). What a policy prints goes to stderr. Its memory is limited to MEMORY bytes
beyond what the interpreter and Waystage take.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import socket
import sys
import time
from pathlib import Path
from typing import NoReturn

import msgspec

from waystage.controllers import policy_wire as wire
from waystage.controllers.engine import PolicyEngine
from waystage.events import Action, Envelope, decode, decode_action, encode_action
from waystage.policies.base import Policy, PolicyError, load_policy, reason_of
from waystage.state import State

_PR_SET_PDEATHSIG = 1
_TEXT = 500
_DAY_S = 86_400.0


def main(words: list[str]) -> int:
    descriptor, parent, memory = (int(word) for word in words[:3])
    name, options = words[3], json.loads(words[4])
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        return 1
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # for the controller, which then closes the socket
    os.dup2(2, 1)
    _limit(memory)
    with socket.socket(fileno=descriptor) as controller:
        try:
            policy = load_policy(name, **options)
        except (PolicyError, MemoryError) as error:
            _end(controller, str(error) or "its memory is at its limit")
        _say(controller, wire.READY, json.dumps({"name": policy.name}).encode())
        _serve(controller, policy)
    return 0


def _limit(memory: int) -> None:
    """Limit the address space to what is in use now and `memory` more; no core file of a user's program."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + memory
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _serve(controller: socket.socket, policy: Policy) -> None:
    engine = PolicyEngine(policy)
    while True:
        try:
            kind, payload = wire.receive(controller, time.monotonic() + _DAY_S, most=1 << 31)
        except wire.Silent:
            continue
        except wire.WireError:
            return
        if kind == wire.STATE:
            engine.state = State.restore(payload)
        elif kind == wire.FOLD:
            engine.state.apply(decode(payload))
        elif kind == wire.RECORD:
            engine.record(
                [decode_action(each) for each in msgspec.json.decode(payload, type=list[msgspec.Raw])]
            )
        else:
            item = decode(payload)
            if kind == wire.ASK:
                engine.state.apply(item)
            _answer(controller, policy, item, engine.state)


def _answer(controller: socket.socket, policy: Policy, item: Envelope, state: State) -> None:
    try:
        answer = policy(item.event, state)
        actions = []
        for action in answer:
            if not isinstance(action, Action):
                raise TypeError(f"it returned a {type(action).__name__}, which is no action")
            actions.append(encode_action(action))
        value = msgspec.json.encode({"actions": actions, "reason": reason_of(answer)})
    except MemoryError:
        _end(controller, "reached its limit of memory")
    except BaseException as error:
        text = f"{type(error).__name__}: {error}"[:_TEXT]
        _say(controller, wire.FAILED, text.encode("utf-8", "replace"))
        return
    _say(controller, wire.ANSWER, value)


def _say(controller: socket.socket, kind: bytes, payload: bytes) -> None:
    try:
        wire.send(controller, wire.frame(kind, payload), time.monotonic() + _DAY_S)
    except wire.WireError:
        os._exit(1)


def _end(controller: socket.socket, why: str) -> NoReturn:
    _say(controller, wire.BROKEN, why[:_TEXT].encode("utf-8", "replace"))
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
