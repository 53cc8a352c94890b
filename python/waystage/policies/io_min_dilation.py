"""`io-min-dilation`: the application that was slowed down most goes first, one at a time.

Arrives: events and the state. Leaves: `GrantIo`. Must not know: aggregators, MPI, worlds.

MinDilation of Gainaru et al., "Scheduling the I/O of HPC applications under congestion", IPDPS 2015: each time that an
operation begins or ends, the application with the largest dilation is served, that is the time since its start by the
time that it would have taken alone. Others wait, or are interrupted. Computation is taken as it is; operations count as
long as they take without others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from waystage.io_state import IoApplication
from waystage.policies.io_rules import INTERRUPTED, Scheduling
from waystage.state import State


class IoMinDilation(Scheduling):
    """Options of `Scheduling`."""

    name = "io-min-dilation"

    def choose(
        self, going: Sequence[IoApplication], waiting: Sequence[IoApplication], state: State
    ) -> Mapping[str, float]:
        now = state.time_ns
        if going and not any(
            now in (app.requested_ns, app.done_ns) for app in state.io.applications.values()
        ):
            return {}
        every = [*going, *waiting]
        if not every:
            return {}
        first = max(every, key=lambda app: (dilation(app, state), -app.requested_ns, app.app))
        return {app.app: INTERRUPTED for app in going} | {first.app: 1.0}


def dilation(app: IoApplication, state: State) -> float:
    """Elapsed time by that of the application alone; 1 where nothing is known."""
    time_ns = state.time_ns
    elapsed = max(1, time_ns - app.started_ns)
    now_ns = time_ns - app.requested_ns if app.in_io else 0
    io_ns = app.alone.took_ns + app.shared.took_ns + app.waited_ns + now_ns
    alone_io = state.io.alone_ns(app, app.alone.bytes + app.shared.bytes)
    return elapsed / max(1.0, elapsed - io_ns + alone_io)
