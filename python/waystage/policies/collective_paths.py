"""`collective-paths`: paths for the pairs of an MPI collective before its first byte.

Arrives: events and the state. Leaves: the plan of a base policy, with some pairs of hosts steered.
Must not know: MPI, rules, switches, worlds.

A program's ranks and the collectives that it declares are known (`state.mpi`), and with them the pairs of each step,
predicted from the algorithm or as its first call sent them.
`method: joint` places all pairs of a step together, the heaviest steps first, beside the flows and programs that run.
A call over the new paths, over those in force and over the base's hash are predicted; the hash stays where nothing
gains. `method: dijkstra` is Algorithm 3 of the dissertation (chapter 3) as published, and is taken unjudged.

Only pairs whose path differs from their hash need a rule, at most MAX_STEERED an edge switch. Pairs of a program that
has ended go back to the hash.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import msgspec

from waystage.events import (
    Action,
    AssignPaths,
    CollectiveDeclared,
    CollectiveObserved,
    Event,
    FlowFinished,
    FlowProgress,
    FlowsListed,
    MpiProgramFinished,
    MpiRanksReported,
    PathPlan,
    RuleStyle,
)
from waystage.events.mpi import OBSERVED, RANK_ORDER
from waystage.forecast.call_loads import Pair
from waystage.forecast.collectives import Method, Placement, calls
from waystage.policies.base import Policy
from waystage.policies.members import acts_on, build
from waystage.policies.off_status import TOPOLOGY_EVENTS
from waystage.state import State

GAIN = 1.05
"""What new paths must gain before a collective begins: a prediction is not more exact."""

GAIN_RUNNING = 1.25
"""The same where programs are in the middle of their collectives: moving a flow reorders its packets."""

SETTLE_NS = 5 * 10**9
"""Between two plans that only measured flows are the reason for."""


class CollectivePaths:
    """`base` decides for all other traffic: a policy of paths, by name or as a mapping of name and options."""

    name = "collective-paths"
    acts_on = frozenset({"paths"})

    def __init__(
        self, base: object = "ecmp", method: Method = "joint", style: RuleStyle = "labelled", seed: int = 0
    ) -> None:
        if method not in get_args(Method):
            raise ValueError(f"method {method!r}: use joint or dijkstra")
        if style != "labelled":
            raise ValueError(f"style {style!r}: pairs are steered in style labelled only")
        self._base: Policy = build(base, {"style": style, "seed": seed})
        if acts_on(self._base) != frozenset({"paths"}):
            raise ValueError(f"base {self._base.name}: name a policy that acts on paths alone, such as ecmp")
        self._method: Method = method

    def __call__(self, event: Event, state: State) -> Sequence[Action]:
        requested = state.requested
        plain = None if requested is None else msgspec.structs.replace(requested, steered={})
        asked = self._base(event, msgspec.structs.replace(state, requested=plain))
        plan = next((action.plan for action in asked if isinstance(action, AssignPaths)), plain)
        if plan is None or state.live_topology is None or plan.style != "labelled":
            return asked
        if plan == plain and not self._matters(event, state):
            return ()
        changed = plan != plain or isinstance(event, TOPOLOGY_EVENTS)
        steered = self._steered(event, state, plan, anew=changed)
        new = msgspec.structs.replace(plan, steered=steered)
        return () if new == requested else (AssignPaths(plan=new),)

    def _matters(self, event: Event, state: State) -> bool:
        if isinstance(event, MpiProgramFinished | FlowsListed):
            return bool(state.requested and state.requested.steered)
        if not state.mpi.programs or (
            isinstance(event, CollectiveDeclared) and event.algorithm == RANK_ORDER
        ):
            return False
        if isinstance(event, FlowProgress | FlowFinished):
            return state.time_ns - state.requested_ns > SETTLE_NS
        if isinstance(event, MpiRanksReported):
            program = state.mpi.programs.get(event.app)
            return program is not None and bool(program.collectives)
        if isinstance(event, CollectiveObserved):
            program = state.mpi.programs.get(event.app)
            return program is not None and event.key in program.collectives and not program.awaited(event.key)
        return isinstance(event, (CollectiveDeclared, *TOPOLOGY_EVENTS))

    def _steered(
        self, event: Event, state: State, plan: PathPlan, *, anew: bool
    ) -> dict[str, dict[str, str]]:
        used = {app: _pairs(state, app) for app in state.mpi.programs}
        held: dict[Pair, str] = {}
        if state.requested is not None and not anew:
            steered = state.requested.steered
            held = {(src, dst): core for src, row in steered.items() for dst, core in row.items()}
        wanted = set[Pair]().union(*used.values())
        placement = Placement(state, plan, {pair: core for pair, core in held.items() if pair in wanted})
        app = getattr(event, "app", None)
        moved = [app] if app in used and not anew else list(used)
        if isinstance(event, MpiProgramFinished | FlowsListed):
            moved = []
        fixed: set[Pair] = set()
        for name in used:
            if name not in moved:
                placement.beside(state.mpi.programs[name])
                fixed |= used[name]
        # Ranks wait where a collective is declared; where the topology has changed, packets are lost anyway.
        waiting = isinstance(event, CollectiveDeclared | MpiRanksReported) or anew or _learned(event, state)
        for name in moved:
            gain = GAIN if waiting else GAIN_RUNNING
            placement.place(state.mpi.programs[name], fixed, self._method, gain)
            placement.beside(state.mpi.programs[name])
            fixed |= used[name]
        return placement.steered()


def _learned(event: Event, state: State) -> bool:
    """Whether ranks may wait for paths of what they have told: it had no known steps."""
    if not isinstance(event, CollectiveObserved):
        return False
    return state.mpi.programs[event.app].collectives[event.key].algorithm == OBSERVED


def _pairs(state: State, app: str) -> set[Pair]:
    found = calls(state, state.mpi.programs[app])
    return {pair for steps in found for step in steps for pair in step}
