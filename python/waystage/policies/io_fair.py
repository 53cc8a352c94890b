"""`io-fair`: every application has the same share of the storage, however many aggregators or connections it has.

Arrives: events and the state. Leaves: `GrantIo`. Must not know: aggregators, MPI, worlds.

None waits. Without a policy an application with more connections gets more. The baseline that schedules are
compared with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from waystage.events import Action, Event, GrantIo, IoApplicationStarted
from waystage.state import State


class IoFair:
    """`weights`: shares by user or job, 1 for others."""

    name = "io-fair"
    acts_on = frozenset({"grants"})

    def __init__(self, weights: Mapping[str, float] | None = None) -> None:
        if any(not 0 < weight < 1e6 for weight in (weights or {}).values()):
            raise ValueError("weights must be above 0 and below 1,000,000")
        self._weights = dict(weights or {})

    def __call__(self, event: Event, state: State) -> Sequence[Action]:
        if not isinstance(event, IoApplicationStarted):
            return ()
        app = state.io.applications.get(event.app)
        if app is None:
            return ()
        weight = self._weights.get(app.job_id or "", self._weights.get(app.user, 1.0))
        if app.wanted.version and app.wanted.weight == weight and not app.wanted.until_ns:
            return ()
        # A weight that is the default too is said once: it makes shares those of applications, not of connections.
        return () if app.wanted.version else (GrantIo(app=app.app, weight=weight, until_ns=0),)
