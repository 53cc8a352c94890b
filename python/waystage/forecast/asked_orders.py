"""The order of ranks for a communicator that asks for one.

Arrives: the state; a program and the key of what it asked.
Leaves: a permutation of the communicator's ranks, empty for the present order.
Must not know: policies, agents, how ranks change their order.

The messages are those of the declared collectives of the same ranks and primitive: of algorithms whose steps are known,
or as first calls sent them. What follows from positions alone is judged; an algorithm that is known by its messages
only, with several ranks on a host, may go by hosts, and gets no other order.
"""

from __future__ import annotations

from collections.abc import Iterator

from waystage.events import CollectiveDeclared
from waystage.events.mpi import OBSERVED
from waystage.forecast.collectives import hosts_of, messages
from waystage.forecast.rank_order import Call, best_order
from waystage.mpi_state import MpiProgram
from waystage.mpi_steps import steps_of
from waystage.state import State


def located(state: State, app: str, key: str) -> bool:
    """Whether the hosts of all ranks that the order is asked for are known."""
    program = state.mpi.programs.get(app)
    asked = program.orders.get(key) if program is not None else None
    if program is None or asked is None:
        return False
    return set(asked.ranks) <= hosts_of(state, program).keys()


def order_for(state: State, app: str, key: str) -> tuple[int, ...]:
    """The present rank at each position of the order that was asked for; empty where none is better."""
    topology, program = state.live_topology, state.mpi.programs.get(app)
    asked = program.orders.get(key) if program is not None else None
    if topology is None or program is None or asked is None:
        return ()
    host_of = hosts_of(state, program)
    hosts = [host_of.get(rank, "") for rank in asked.ranks]
    known = list(_declared(program, asked))
    several = len(set(hosts)) < len(hosts)
    if not known or (several and any(one.algorithm == OBSERVED for one in known)):
        return ()
    calls = [Call(messages(one, program.sent(one.key)), one.root) for one in known]
    if not all(call.steps for call in calls):
        return ()
    try:
        found = best_order(
            topology, hosts, calls, [_reordered(*both) for both in zip(known, calls, strict=True)]
        )
    except KeyError:  # a host that has no link now, or that no path reaches
        return ()
    return found.ranks if found.changes else ()


def _declared(program: MpiProgram, asked: CollectiveDeclared) -> Iterator[CollectiveDeclared]:
    """Of each root the largest call."""
    largest: dict[int, CollectiveDeclared] = {}
    for one in program.collectives.values():
        if (one.primitive, one.ranks) != (asked.primitive, asked.ranks) or program.awaited(one.key):
            continue
        if one.root not in largest or largest[one.root].bytes < one.bytes:
            largest[one.root] = one
    yield from largest.values()


def _reordered(one: CollectiveDeclared, call: Call) -> Call:
    """An allgather whose blocks go to other places is an MPI_Allgatherv, for which Open MPI's `tuned` has other rules
    from 50,000 bytes on (coll_tuned_decision_fixed.c)."""
    if one.primitive != "allgather" or one.algorithm == OBSERVED:
        return call
    size = len(one.ranks)
    return Call(
        [
            dict.fromkeys(step.pairs, step.bytes)
            for step in steps_of("allgather", "ring" if size % 2 else "neighbor", size, one.bytes)
        ]
    )
