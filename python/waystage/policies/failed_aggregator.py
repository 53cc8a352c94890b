"""`failed-aggregator`: an aggregator that was lost comes back when it has been up for a while.

Arrives: events and the state. Leaves: `SetServerMap`. Must not know: how an operation is begun again, worlds.

The data plane needs no policy to survive: an operation whose aggregator dies is begun again with the others, and what was
acknowledged is in the file system. But a process that is restarted and dies again, on a node that is out of memory for
example, would interrupt operation after operation. So it is left out until it has been up for `stable_s`, and twice as
long after each further loss. Without another one it is used at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from waystage.events import Action, AggregatorLost, AggregatorReport, AggregatorStarted, Event
from waystage.policies.base import Explained
from waystage.policies.io_rules import set_servers, stable
from waystage.state import State


class FailedAggregator:
    """`stable_s`: how long an aggregator must have been up after its first loss."""

    name = "failed-aggregator"
    acts_on = frozenset({"aggregators"})

    def __init__(self, stable_s: float = 10.0) -> None:
        if stable_s < 0:
            raise ValueError(f"stable_s of {stable_s}: give 0 or more")
        self._stable_ns = round(stable_s * 1e9)

    def __call__(self, event: Event, state: State) -> Sequence[Action]:
        if isinstance(event, AggregatorReport):
            names = dict.fromkeys(use.app for use in event.processes)
        elif isinstance(event, AggregatorLost | AggregatorStarted):
            names = {event.app: None}
        else:
            return ()
        actions: list[Action] = []
        out: list[str] = []
        for name in names:
            app = state.io.applications.get(name)
            if app is None:
                continue
            up = {n: stable(app.servers[n], state.time_ns, self._stable_ns) for n in app.offered}
            actions += set_servers(app, [n for n, is_stable in up.items() if is_stable] or list(app.offered))
            out += [f"{n} of {name}" for n, is_stable in up.items() if not is_stable]
        return Explained.by(actions, f"not stable yet: {', '.join(out)}") if actions and out else actions
