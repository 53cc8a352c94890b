"""`null`: a policy that never acts, and the template for your own.

Copy this file to `my_policies.py`, rename the class, and run it by its dotted path:

    PYTHONPATH=. waystage run experiments/demo.yaml --on lab --policy my_policies:MyPolicy

Arrives: every event, each with the state into which it has just been folded.
Leaves: actions, which the controller hands to actuators. Here: none, ever.
Must not know: sockets, clocks, files, switches, or whether it runs in the simulator, the lab or a cluster.
"""

from __future__ import annotations

from collections.abc import Sequence

# A policy imports the vocabulary and the state, and no other part of Waystage that does something.
from waystage.events import Action, Event
from waystage.state import State


class Null:
    """Say in one sentence what the policy wants, and name its source where it has one."""

    # Appears in results and in every `Decided` event. Lower case, words joined by '-'.
    name = "null"

    # What its actions set, so that it can be combined with policies that set other things: "paths", or of flows "rate",
    # "mode", "loaders", "pause".
    acts_on: frozenset[str] = frozenset()

    # A policy that reads no rates of links (`LinkUse`, `state.class_rate_bps`, `state.port_rate_bps`) may say
    # `reads_rates = False`: long simulations of large fabrics are then many times faster.

    # Options arrive as keyword arguments from the experiment file (`options: {threshold: 0.8}`). Give each a default
    # and a type, and raise ValueError for a value that makes no sense: the message is shown to the user.
    # Two names are filled in from the experiment where the constructor takes them: `style` (the
    # rule style, "labelled" or "per-pair") and `seed` (for hashes; the same for every policy of a run).
    def __init__(self) -> None:
        pass

    # Called for every event, in order, after `state` has taken it in. Return the actions to carry out, or nothing.
    #
    # Pure: the same event and state give the same actions, in every process. So
    #   - keep nothing on `self` between calls; what was asked for last is in `state.requested`,
    #     and that it is in force on the switches in `state.in_force`;
    #   - the time is `state.time_ns`; there is no other clock;
    #   - draw random numbers only from a generator seeded with what arrives;
    #   - read `state`, never write to it.
    #
    # Quick: the next event waits. Check the event's type first and return at once where it does
    # not matter: `LinkUse`, for one, comes every second.
    #
    # Whole: an action states the wanted end (`AssignPaths` carries the whole plan), not a step
    # towards it, so that losing or repeating one does no harm. Return it only where it differs from
    # what was asked for last. For example, all MPI traffic on the first core switch:
    #
    #     cores = state.topology.core_switches if state.topology else ()
    #     plan = PathPlan(separated=True, cores={"mpi": cores[:1]})
    #     return () if not cores or plan == state.requested else (AssignPaths(plan=plan),)
    #
    # An action on a flow likewise sets a value, returned only where the flow obeys it and it is new.
    # For example, every wide-area flow modest:
    #
    #     flows = [f for f in state.flows.values() if f.traffic == "wan" and "mode" in f.controls]
    #     return [SetMode(flow_id=f.flow_id, mode="modest") for f in flows if f.wanted.mode != "modest"]
    #
    def __call__(self, event: Event, state: State) -> Sequence[Action]:
        return ()
