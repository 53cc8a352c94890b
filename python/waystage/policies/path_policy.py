"""Base of the shipped policies: their options, and a complete path plan as the answer.

Arrives: options; from a policy, its decision. Leaves: at most one `AssignPaths`, where it differs from the last.
Must not know: when and how core switches are divided.
"""

from __future__ import annotations

from collections.abc import Sequence

from waystage.events import Action, AssignPaths, Event, PairPath, PathPlan, RuleStyle, Spread
from waystage.policies.off_status import is_settled, off_plan
from waystage.policies.path_search import Cores, path_search
from waystage.state import State


class PathPolicy:
    """`style` is how rules are written, `seed` selects the hash that spreads host pairs."""

    name: str
    acts_on = frozenset({"paths"})
    spread: Spread = "pair"

    def __init__(self, style: RuleStyle = "labelled", seed: int = 0) -> None:
        if style not in ("labelled", "per-pair"):
            raise ValueError(f"style {style!r}: use labelled or per-pair")
        self.style: RuleStyle = style
        self.seed = seed

    def settled(self, event: Event, state: State) -> bool:
        """Whether what was asked for last has this policy's options and the topology of now."""
        return is_settled(event, state, style=self.style, spread_by=self.spread, seed=self.seed)

    def off(self, state: State) -> PathPlan | None:
        """Every class on every core switch; None before a topology is known."""
        return off_plan(state, style=self.style, spread_by=self.spread, seed=self.seed)

    def separated(self, state: State, off: PathPlan, cores: Cores, listed: Cores | None = None) -> PathPlan:
        """Each class on its `cores`; style `per-pair` lists the jobs' paths, over `listed` where that says more."""
        pairs: tuple[PairPath, ...] = ()
        topology, live = state.topology, state.live_topology
        if self.style == "per-pair" and topology is not None and live is not None:
            pairs = path_search(state, topology, live, listed or cores, self.seed)
        return PathPlan(
            style=self.style,
            seed=self.seed,
            separated=True,
            cores=cores,
            base_pairs=off.base_pairs,
            pairs=pairs,
        )

    def ask(self, plan: PathPlan | None, state: State) -> Sequence[Action]:
        """For `plan`, where there is one and it is not what was asked for last."""
        return () if plan is None or plan == state.requested else (AssignPaths(plan=plan),)
