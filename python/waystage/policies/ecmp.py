"""`ecmp`: every class on every core switch, host pairs spread by a seeded hash (RFC 2991).

Arrives: events and the state. Leaves: one path plan at the start, and a new one where the paths are listed and the
topology changed. Must not know: jobs, staging, rules.

This is what the paper runs under OFF status, and the baseline of every comparison.
"""

from __future__ import annotations

from collections.abc import Sequence

from waystage.events import Action, Event
from waystage.policies.path_policy import PathPolicy
from waystage.state import State


class Ecmp(PathPolicy):
    """`style` is how rules are written, `seed` selects the hash."""

    name = "ecmp"
    reads_rates = False

    def __call__(self, event: Event, state: State) -> Sequence[Action]:
        if self.settled(event, state) and state.requested is not None and not state.requested.separated:
            return ()
        return self.ask(self.off(state), state)
