"""`combined`: several policies as one, each acting on something else.

Arrives: events and the state. Leaves: the actions of all members. Must not know: what they decide.

For example `link-separation` for paths with `storage-shares` for loaders and `wan-yields` for modes. Members are asked
in order, with the same event and state. What each acts on is declared and disjoint, so that the order has no effect
(decision 0049).
"""

from __future__ import annotations

from collections.abc import Sequence

from waystage.events import Action, Event, RuleStyle
from waystage.policies.base import Explained, reads_rates, reason_of
from waystage.policies.members import acts_on, build_all
from waystage.state import State


class Combined:
    """`policies`: names, or mappings of `name` and `options`. `style` and `seed` go to the members that take them."""

    name = "combined"

    def __init__(
        self, policies: Sequence[object] = ("null",), style: RuleStyle = "labelled", seed: int = 0
    ) -> None:
        self._members = build_all(policies, {"style": style, "seed": seed})
        self.reads_rates = any(reads_rates(member) for member in self._members)
        self.acts_on = frozenset[str]().union(*(acts_on(member) or () for member in self._members))

    def __call__(self, event: Event, state: State) -> Sequence[Action]:
        answers = [(member, member(event, state)) for member in self._members]
        actions = [action for _, answer in answers for action in answer]
        reasons = [f"{member.name}: {reason_of(answer)}" for member, answer in answers if reason_of(answer)]
        return Explained.by(actions, "; ".join(reasons)) if reasons else actions
