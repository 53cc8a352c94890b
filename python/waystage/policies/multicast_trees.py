"""`multicast-trees`: a tree of the switches for each program that broadcasts by multicast.

Arrives: events and the state. Leaves: the plan of a base policy, with multicast trees.
Must not know: MPI, rules, switches, worlds.

A tree is that of the core switch over which its busiest link is the least loaded: by the rates of the ports as counted
last, by the existing trees, and then by its number of links. It stays until its program ends or its core
switch fails, since a running broadcast would lose packets. The number of trees is bounded for each user and in all;
programs beyond get none and broadcast as before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from waystage.events import Action, AssignPaths, Event, MulticastTree, PathPlan, RuleStyle
from waystage.events.actions import MAX_MULTICAST
from waystage.forecast.collectives import hosts_of
from waystage.forecast.multicast import Choice
from waystage.policies.base import Policy
from waystage.policies.members import acts_on, build
from waystage.state import State

MOST_OF_USER = 32
"""Trees of one user's programs."""


class MulticastTrees:
    """`base` decides for all other traffic: a policy of paths, by name or as a mapping of name and options."""

    name = "multicast-trees"
    acts_on = frozenset({"paths"})

    def __init__(self, base: object = "ecmp", style: RuleStyle = "labelled", seed: int = 0) -> None:
        if style != "labelled":
            raise ValueError(f"style {style!r}: trees need labelled")
        self._base: Policy = build(base, {"style": style, "seed": seed})
        if acts_on(self._base) != frozenset({"paths"}):
            raise ValueError(f"base {self._base.name}: name a policy that acts on paths alone, such as ecmp")

    def __call__(self, event: Event, state: State) -> Sequence[Action]:
        requested = state.requested
        held = requested.multicast if requested is not None else {}
        plain = requested
        if requested is not None and held:
            plain = msgspec.structs.replace(requested, multicast={})
        asked = self._base(event, state if not held else msgspec.structs.replace(state, requested=plain))
        plan = next((action.plan for action in asked if isinstance(action, AssignPaths)), plain)
        wanted = list(_wanted(state))
        if plan is None or plan.style != "labelled" or not (wanted or held):
            return asked
        new = msgspec.structs.replace(plan, multicast=_trees(state, held, wanted))
        return () if new == requested else (AssignPaths(plan=new),)


def tree_number(state: State, plan: PathPlan, app: str, key: str) -> int | None:
    """The number of the tree that serves what `app` declared as `key`; None where there is none."""
    hosts = _hosts(state, app, key)
    for number, tree in plan.multicast.items():
        if hosts and (tree.app, tree.hosts) == (app, hosts):
            return number
    return None


def located(state: State, app: str, key: str) -> bool:
    """Whether the hosts of all its ranks are known."""
    return _hosts(state, app, key) is not None


def _hosts(state: State, app: str, key: str) -> tuple[str, ...] | None:
    program = state.mpi.programs.get(app)
    declared = program.trees.get(key) if program is not None else None
    if program is None or declared is None:
        return None
    host_of = hosts_of(state, program)
    if any(rank not in host_of for rank in declared.ranks):
        return None
    return tuple(sorted({host_of[rank] for rank in declared.ranks}))


def _wanted(state: State) -> Iterator[tuple[str, tuple[str, ...]]]:
    for app, program in state.mpi.programs.items():
        for key in program.trees:
            hosts = _hosts(state, app, key)
            if hosts is not None and len(hosts) > 1:
                yield app, hosts


def _trees(
    state: State, held: dict[int, MulticastTree], wanted: list[tuple[str, tuple[str, ...]]]
) -> dict[int, MulticastTree]:
    if state.topology is None:
        return {}
    choice = Choice(state)
    want = dict.fromkeys(wanted)
    found = {
        number: tree
        for number, tree in held.items()
        if (tree.app, tree.hosts) in want and choice.reaches(tree.core, tree.hosts)
    }
    served = {(tree.app, tree.hosts) for tree in found.values()}
    of_user = Counter(_user(tree.app) for tree in found.values())
    for app, hosts in want:
        if (app, hosts) in served or len(found) >= MAX_MULTICAST or of_user[_user(app)] >= MOST_OF_USER:
            continue
        core = choice.least_loaded(hosts, found.values())
        if core is not None:
            number = next(n for n in range(MAX_MULTICAST) if n not in found)
            found[number] = MulticastTree(app=app, hosts=hosts, core=core)
            of_user[_user(app)] += 1
    return dict(sorted(found.items()))


def _user(app: str) -> str:
    return app.partition("/")[0]
