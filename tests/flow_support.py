"""What a flow agent publishes, a task that notes what it is asked to keep to, and a client of hand-made lines."""

from __future__ import annotations

import json
import queue
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from harness import WAIT_S
from waystage import events
from waystage.flows.agent import FlowAgent
from waystage.local_rpc import LocalClient

E = TypeVar("E", bound=events.Event)


class Heard:
    """What an agent has published."""

    def __init__(self) -> None:
        self.queue: queue.Queue[events.Event] = queue.Queue()

    def next(self, kind: type[E], timeout: float = WAIT_S) -> E:
        """The next of this type; those of others before it are left out."""
        while True:
            event = self.queue.get(timeout=timeout)
            if isinstance(event, kind):
                return event


class Task:
    """A stand-in for a task of the native module, where only what it is asked for matters."""

    controls = ("rate", "pause", "mode", "loaders")

    def __init__(self) -> None:
        self.told: queue.Queue[tuple[str, Any]] = queue.Queue()
        self.bytes = 0

    def progress(self) -> dict[str, int]:
        return {"bytes": self.bytes}

    def set_rate(self, bytes_per_s: int | None) -> None:
        self.told.put(("rate", bytes_per_s))

    def set_mode(self, mode: str) -> None:
        self.told.put(("mode", mode))

    def set_loaders(self, per_target: int) -> None:
        self.told.put(("loaders", per_target))

    def pause(self) -> None:
        self.told.put(("paused", True))

    def resume(self) -> None:
        self.told.put(("paused", False))


class Lines:
    """A client of hand-made lines."""

    def __init__(self, path: Path) -> None:
        self.client = LocalClient(path)

    def say(self, **message: Any) -> dict[str, Any] | None:
        """Send one; the next answer, None where the agent disconnects."""
        self.client.send(json.dumps(message).encode())
        return self.answer()

    def answer(self) -> dict[str, Any] | None:
        try:
            line = self.client.receive(WAIT_S)
        except (EOFError, ConnectionError):
            return None
        return None if line is None else json.loads(line)


START = {
    "type": "start",
    "traffic": "staging",
    "engine": "copy",
    "job_id": "17",
    "controls": ["rate", "pause"],
}

Serve = Callable[..., FlowAgent]
