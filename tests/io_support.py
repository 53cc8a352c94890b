"""Applications with collective I/O under one policy, for tests of policies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from policy_support import SECOND, Site
from waystage.events import (
    Action,
    AggregatorReport,
    AggregatorStarted,
    AggregatorUse,
    GrantIo,
    IoApplicationStarted,
    IoCompleted,
    IoRequested,
    SetServerMap,
)
from waystage.io_state import IoApplication


class IoSite(Site):
    """`app` starts one; `write` and `request` are its operations; services are ns a byte."""

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(name, **options)
        self._totals: dict[tuple[str, str], tuple[int, int, int]] = {}
        self._ops: dict[str, int] = {}

    def application(self, app: str, servers: int = 8, ranks: int = 4) -> IoApplication:
        self.see(IoApplicationStarted(app=app, agent="n", host=f"{app}1", ranks=ranks), 0.001)
        for number in range(servers):
            self.see(AggregatorStarted(app=app, agent="n", aggregator=f"{app}{number}", host=f"{app}1"), 0.0)
        return self.state.io.applications[app]

    def request(self, app: str, size: int = 1000, after_s: float = 1.0) -> list[Action]:
        self._ops[app] = self._ops.get(app, 0) + 1
        return self.see(IoRequested(app=app, agent="n", op=self._ops[app], bytes=size, storage="fs"), after_s)

    def complete(
        self, app: str, took_s: float, size: int = 1000, after_s: float | None = None
    ) -> list[Action]:
        known = self.state.io.applications[app]
        done = IoCompleted(
            app=app,
            agent="n",
            op=self._ops[app],
            bytes=size,
            waited_ns=known.granted_ns - known.requested_ns,
            took_ns=round(took_s * SECOND),
        )
        return self.see(done, took_s if after_s is None else after_s)

    def write(self, app: str, services: Mapping[str, float], size: int = 8_000_000) -> list[Action]:
        """One operation; what each aggregator of the map reports, and the policy's answers to all of it."""
        said = list(self.request(app, size))
        serving = self.state.io.applications[app].serving
        for name in serving:
            share, busy = size // len(serving), services[name] * size / len(serving)
            before = self._totals.get((app, name), (0, 0, 0))
            total = before[0] + share, before[1] + round(busy), before[2] + 8
            self._totals[app, name] = total
            use = AggregatorUse(app=app, aggregator=name, bytes=total[0], busy_ns=total[1], writes=total[2])
            said += self.see(AggregatorReport(agent="n", servers=(use,)), 0.001)
        took = max(services[name] for name in serving) * size / len(serving) / 1e9
        return said + self.complete(app, took, size)

    def map_of(self, app: str) -> set[str]:
        return set(self.state.io.applications[app].serving)


def maps(actions: list[Action]) -> list[tuple[str, ...]]:
    return [action.aggregators for action in actions if isinstance(action, SetServerMap)]


def granted(actions: list[Action]) -> dict[str, float]:
    """The last weight of each application."""
    return {action.app: action.weight for action in actions if isinstance(action, GrantIo)}
