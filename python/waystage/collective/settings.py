"""What an application of this process is asked to keep to, and when that ends.

Arrives: lines of the flow agent, the time.
Leaves: calls of the process's `set_server_map`, `grant` and `set_scheduled`.
Must not know: sockets, policies.

The process lets one operation go on for each grant, and counts a schedule as over when nothing is heard for 30 s. The
time that the agent gives may be shorter: then the schedule is ended here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

WEIGHT_ONE = 1000
"""A weight of 1: the process has whole numbers from 1 on, and the least weight of a policy is 0.001."""


class Steered(Protocol):
    """The process, as far as it is steered. Times are those of CLOCK_MONOTONIC, in ns."""

    def set_server_map(self, app: str, aggregators: Sequence[str]) -> None: ...

    def grant(self, app: str, weight: int, until_ns: int) -> None: ...

    def set_scheduled(self, app: str, scheduled: bool) -> None: ...


class Settings:
    """Of one application; `version` is that of the last settings applied."""

    def __init__(self, process: Steered, app: str) -> None:
        self._process, self._app = process, app
        self.version = 0
        self._until_ns = 0
        self._aggregators: list[str] = []
        # Applications of which no policy speaks have the same weight as those with 1.
        process.grant(app, WEIGHT_ONE, 0)

    @property
    def scheduled(self) -> bool:
        """Whether operations wait for grants."""
        return self._until_ns > 0

    def apply(self, wanted: Mapping[str, Any], now_ns: int) -> None:
        """A line `io-settings`. One that was applied already changes nothing: its grant may be used up."""
        if wanted["version"] == self.version and wanted["version"]:
            if self._until_ns and wanted["left_ns"]:
                self._until_ns = now_ns + wanted["left_ns"]
                self._process.set_scheduled(self._app, True)
            return
        aggregators = list(wanted["aggregators"])
        if aggregators != self._aggregators:
            self._aggregators = aggregators
            self._process.set_server_map(self._app, aggregators)
        weight = max(1, round(wanted["weight"] * WEIGHT_ONE))
        if wanted["left_ns"] <= 0:
            self._process.grant(self._app, weight, 0)
            self._end()
        else:
            self._until_ns = now_ns + wanted["left_ns"]
            self._process.set_scheduled(self._app, True)
            granted = wanted["weight"] > 0
            self._process.grant(self._app, weight, self._until_ns if granted else 0)
        self.version = wanted["version"]

    def tick(self, now_ns: int) -> None:
        """End a schedule whose time is over."""
        if self._until_ns and now_ns >= self._until_ns:
            self._end()

    def lift(self) -> None:
        """No agent speaks of it any longer."""
        self.apply({"version": 0, "aggregators": [], "weight": 1.0, "left_ns": 0}, 0)

    def _end(self) -> None:
        self._until_ns = 0
        self._process.set_scheduled(self._app, False)
