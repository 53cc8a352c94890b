"""Tells the ranks of MPI programs that the paths of a declared collective are in force.

Arrives: CollectiveDeclared and PathsChanged, with the state after them.
Leaves: CollectivePlaced, to every agent of the program; with an order of ranks, to the agent that asked for it.
Must not know: policies, the backplane, agents.

A collective is placed once the plan asked for last is in force: at once, where the policy asked for nothing. What is
never placed, since a switch refused the plan for example, is not waited for: each rank has a limit.
"""

from __future__ import annotations

from collections.abc import Callable

from waystage.events import (
    CollectiveDeclared,
    CollectiveObserved,
    CollectivePlaced,
    Envelope,
    Event,
    MpiProgramFinished,
    MpiRanksReported,
    PathsChanged,
)
from waystage.events.mpi import RANK_ORDER
from waystage.forecast import asked_orders
from waystage.interconnect import multicast
from waystage.policies.multicast_trees import located, tree_number
from waystage.state import State

MOST = 4096
"""Collectives that wait; the ranks of further ones go on after their own limit."""


class CollectivePlacements:
    """An observer."""

    def __init__(self, publish: Callable[[Event], None]) -> None:
        self._publish = publish
        self._waiting: dict[tuple[str, str], None] = {}
        self._orders: dict[tuple[str, str], str] = {}

    def seen(self, item: Envelope, state: State) -> None:
        event = item.event
        if isinstance(event, CollectiveDeclared) and event.algorithm == RANK_ORDER:
            if len(self._orders) < MOST:
                self._orders[event.app, event.key] = event.agent
        elif isinstance(event, CollectiveDeclared):
            if len(self._waiting) < MOST:
                self._waiting[event.app, event.key] = None
        elif isinstance(event, MpiProgramFinished):
            if event.app not in state.mpi.programs:
                self._waiting = {key: None for key in self._waiting if key[0] != event.app}
                self._orders = {key: at for key, at in self._orders.items() if key[0] != event.app}
            return
        elif not isinstance(event, PathsChanged | MpiRanksReported | CollectiveObserved):
            return
        self._answer_orders(state)
        if self._waiting and state.requested in (None, state.in_force):
            waiting, self._waiting = self._waiting, {}
            for app, key in waiting:
                program = state.mpi.programs.get(app)
                if program is not None and (
                    (key in program.trees and not located(state, app, key)) or program.awaited(key)
                ):
                    self._waiting[app, key] = None  # some of its ranks have not reported yet
                    continue
                group = _group(state, app, key)
                hosts = program.hosts.values() if program is not None else ()
                for agent in dict.fromkeys(host.agent for host in hosts):
                    self._publish(CollectivePlaced(app=app, agent=agent, key=key, group=group))

    def _answer_orders(self, state: State) -> None:
        """Those whose ranks have all reported: an order needs no path."""
        for (app, key), agent in list(self._orders.items()):
            program = state.mpi.programs.get(app)
            if program is None or key not in program.orders:
                del self._orders[app, key]
            elif asked_orders.located(state, app, key):
                del self._orders[app, key]
                order = asked_orders.order_for(state, app, key)
                self._publish(CollectivePlaced(app=app, agent=agent, key=key, order=order))

    def tick(self, state: State) -> None:
        """Nothing is due by the clock."""


def _group(state: State, app: str, key: str) -> str | None:
    """The address of the tree that was asked for; empty where there is none, None where none was."""
    program = state.mpi.programs.get(app)
    if program is None or key not in program.trees:
        return None
    number = tree_number(state, state.requested, app, key) if state.requested is not None else None
    return "" if number is None else multicast.address(number)
