"""An annotated I/O policy: applications take turns. docs/how-to/write-an-io-policy.md explains its four steps.

Run it, first by hand, then in the simulator:

    python examples/own_io_policy.py
    PYTHONPATH=examples waystage run experiments/io-schedule-2.yaml --on sim --policy own_io_policy:Turns --policy "null"
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from waystage.controllers.engine import PolicyEngine
from waystage.events import Envelope, Event, IoApplicationStarted, IoCompleted, IoRequested
from waystage.io_state import IoApplication
from waystage.policies.io_rules import Scheduling
from waystage.state import State


class Turns(Scheduling):
    """One operation at a time, and of those that wait, the application that has had least of the storage."""

    # In results and decisions.
    name = "turns"

    # Step 2, control points: `Scheduling` answers START_IO, FINISH_IO and reports. Step 3, entities: it sees all
    # applications on one storage; who they are was settled before their events got here.
    def choose(
        self, going: Sequence[IoApplication], waiting: Sequence[IoApplication], state: State
    ) -> Mapping[str, float]:
        # Step 1, control variables: the operations in progress, the waiting queue, bytes written so far.
        if going or not waiting:
            return {}  # who is left out waits
        first = min(waiting, key=lambda app: (app.alone.bytes + app.shared.bytes, app.requested_ns, app.app))
        # Step 4, orchestration: weights become `GrantIo`, only where they change something, each a lease.
        return {first.app: 1.0}


def main() -> None:
    """Two applications ask at the same time, twice; who is in an operation after each event?"""
    engine = PolicyEngine(Turns(learn=False))
    events: list[Event] = [IoApplicationStarted(app=app, agent="n1", host=app[-1]) for app in ("0/a", "0/b")]
    for op in (1, 2):
        events += [IoRequested(app=app, agent="n1", op=op, bytes=1000) for app in ("0/a", "0/b")]
        events += [
            IoCompleted(app=app, agent="n1", op=op, bytes=1000, took_ns=10**9) for app in ("0/a", "0/b")
        ]
    for second, event in enumerate(events, 1):
        engine.handle(Envelope(event=event, event_id=str(second), time_ns=second * 10**9))
        going = [app.app for app in engine.state.io.applications.values() if app.going_on]
        print(
            f"{type(event).__name__} of {getattr(event, 'app', '')}: {', '.join(going) or 'none'} in an operation"
        )


if __name__ == "__main__":
    main()
