"""`ecmp`: every class on every core switch, host pairs spread by a seeded hash (RFC 2991).

Arrives: events and the state. Leaves: one path plan at the start, and a new one where the paths are listed and the
topology changed. Must not know: jobs, staging, rules.

This is what the paper runs under OFF status, and the baseline of every comparison.
"""

from __future__ import annotations

from collections.abc import Sequence

from waystage.events import Action, AssignPaths, Event, RuleStyle, Spread
from waystage.policies.off_status import is_settled, off_plan
from waystage.state import State


class Ecmp:
    """`style` is how rules are written, `seed` selects the hash."""

    name = "ecmp"
    spread: Spread = "pair"

    def __init__(self, style: RuleStyle = "labelled", seed: int = 0) -> None:
        check_style(style)
        self.style: RuleStyle = style
        self.seed = seed

    def __call__(self, event: Event, state: State) -> Sequence[Action]:
        settled = is_settled(event, state, style=self.style, spread_by=self.spread, seed=self.seed)
        if settled and state.requested is not None and not state.requested.separated:
            return ()
        plan = off_plan(state, style=self.style, spread_by=self.spread, seed=self.seed)
        return () if plan is None or plan == state.requested else (AssignPaths(plan=plan),)


def check_style(style: str) -> None:
    """Raises ValueError where `style` is no rule style."""
    if style not in ("labelled", "per-pair"):
        raise ValueError(f"style {style!r}: use labelled or per-pair")
