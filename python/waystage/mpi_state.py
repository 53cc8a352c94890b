"""MPI programs, as far as the control plane knows them: a part of the state.

Arrives: events of MPI programs, in the order of folding.
Leaves: what policies read: where ranks are, and the collectives that programs use.
Must not know: policies, agents, algorithms.

Repeated, late and inconsistent events are defined below and never raise. Bounded: of a program's
collectives those declared last are kept.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from waystage.events import (
    CollectiveDeclared,
    CollectiveObserved,
    Event,
    FlowsListed,
    MpiProgramFinished,
    MpiRanksReported,
    PathsRefused,
)
from waystage.events.mpi import OBSERVED, RANK_ORDER, Receivers

PROGRAMS, COLLECTIVES, TREES, ORDERS = 4096, 64, 16, 16
"""Most programs, and collectives, multicast trees and orders of ranks of one."""

OBSERVED_PAIRS = 1 << 16
"""Of a program's collectives together: those of the oldest are forgotten, and what was predicted counts again."""

MULTICAST = "multicast"
"""The algorithm of a collective that asks for a tree (shim/multicast)."""

RANKS = 1 << 16
"""Of a program; what is more is not known here."""

MPI_EVENTS = (
    MpiRanksReported,
    MpiProgramFinished,
    CollectiveDeclared,
    CollectiveObserved,
    FlowsListed,
    PathsRefused,
)


class MpiHost(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks of a program on one host, and the agent that told of them."""

    agent: str
    address: str = ""
    ranks: tuple[int, ...] = ()


class MpiProgram(msgspec.Struct, kw_only=True):
    """The known facts of a program. `collectives` are in the order of their declaration; `trees` are those that ask for a
    multicast tree, the first ones; `orders` those that ask for an order of ranks, the last ones; `observed` is what ranks really send, by the collective's key."""

    app: str
    user: str = ""
    job_id: str | None = None
    size: int = 0
    hosts: dict[str, MpiHost] = {}
    collectives: dict[str, CollectiveDeclared] = {}
    trees: dict[str, CollectiveDeclared] = {}
    orders: dict[str, CollectiveDeclared] = {}
    observed: dict[str, dict[int, Receivers]] = {}

    def sent(self, key: str) -> tuple[tuple[int, Receivers], ...]:
        """Whom ranks of a collective's communicator really send to, as far as that is not what its algorithm says."""
        return tuple(sorted(self.observed.get(key, {}).items()))

    def awaited(self, key: str) -> bool:
        """Whether a collective without known steps is declared, and not yet what all its ranks send."""
        one = self.collectives.get(key)
        if one is None or one.algorithm != OBSERVED:
            return False
        return len(self.observed.get(key, ())) < len(one.ranks)

    @property
    def host_of(self) -> dict[int, str]:
        """rank -> the name of its host, as the rank knows it."""
        return {rank: name for name, host in self.hosts.items() for rank in host.ranks}


class MpiState(msgspec.Struct, kw_only=True):
    """Programs that run, by id; switches that refused to copy packets."""

    programs: dict[str, MpiProgram] = {}
    no_copies: set[str] = set()

    def apply(self, event: Event) -> None:
        """Fold one event; one about an unknown program has no effect."""
        match event:
            case MpiRanksReported():
                self._reported(event)
            case CollectiveDeclared():
                program = self.programs.get(event.app)
                if program is None or all(h.agent != event.agent for h in program.hosts.values()):
                    return
                if event.algorithm == MULTICAST:
                    if len(program.trees) < TREES:
                        program.trees[event.key] = event
                elif event.algorithm == RANK_ORDER:
                    program.orders.pop(event.key, None)
                    program.orders[event.key] = event
                    while len(program.orders) > ORDERS:
                        del program.orders[next(iter(program.orders))]
                else:
                    program.collectives.pop(event.key, None)
                    program.collectives[event.key] = event
                    while len(program.collectives) > COLLECTIVES:
                        oldest = next(iter(program.collectives))
                        del program.collectives[oldest]
                        program.observed.pop(oldest, None)
            case CollectiveObserved():
                self._observed(event)
            case PathsRefused():
                if event.copies:
                    self.no_copies.add(event.switch)
            case MpiProgramFinished():
                self._gone(lambda app, name, host: (app, name) == (event.app, event.host))
            case FlowsListed():  # the agent has started: ranks report to it again
                self._gone(lambda app, name, host: host.agent == event.agent)

    def _gone(self, ended: Callable[[str, str, MpiHost], bool]) -> None:
        for app, program in list(self.programs.items()):
            program.hosts = {n: host for n, host in program.hosts.items() if not ended(app, n, host)}
            if not program.hosts:
                del self.programs[app]

    def _observed(self, event: CollectiveObserved) -> None:
        program = self.programs.get(event.app)
        if program is None or all(h.agent != event.agent for h in program.hosts.values()):
            return
        merged = program.observed.pop(event.key, {}) | event.sent
        program.observed[event.key] = merged
        left = OBSERVED_PAIRS
        for key in reversed(list(program.observed)):  # the newest first
            left -= sum(1 + len(to) for to in program.observed[key].values())
            if left < 0:
                del program.observed[key]
        while len(program.observed) > COLLECTIVES:
            del program.observed[next(iter(program.observed))]

    def _reported(self, event: MpiRanksReported) -> None:
        program = self.programs.get(event.app)
        if program is None:
            if len(self.programs) >= PROGRAMS:
                return
            program = self.programs[event.app] = MpiProgram(app=event.app)
        program.user, program.job_id = event.user, event.job_id
        program.size = min(max(event.size, program.size), RANKS)
        ranks = tuple(rank for rank in event.ranks if 0 <= rank < program.size)
        program.hosts[event.host] = MpiHost(agent=event.agent, address=event.address, ranks=ranks)
