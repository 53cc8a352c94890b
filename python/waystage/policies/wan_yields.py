"""`wan-yields`: wide-area copies take only what others leave while a waiting job's stage-in needs what they use.

Arrives: events and the state. Leaves: `SetMode` on wide-area flows. Must not know: congestion control, worlds.

A job that stages in holds its nodes and computes nothing; a wide-area copy seldom has a deadline of seconds. While a
stage-in of a waiting job shares a storage target, a host's link or an edge switch's uplinks with a wide-area flow, in
the same direction, that flow is asked for the mode `modest`, and then for its own again.

Hysteresis: a flow returns to its mode when it need not yield and no flow has ended for `back_after_s`. Jobs stage one
after the other, and a wide-area flow needs several round trips to change its mind. A wide-area flow that a waiting job
needs itself yields to nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from waystage.events import Action, Event
from waystage.policies.flow_rules import (
    FLOW_EVENTS,
    is_stage_in_of_waiting_job,
    set_mode,
    shared_resources,
)
from waystage.state import State


class WanYields:
    """`back_after_s`: how long the way must have been free before a flow takes its own mode again."""

    name = "wan-yields"
    acts_on = frozenset({"mode"})
    reads_rates = False

    def __init__(self, back_after_s: float = 5.0, mode: str = "modest") -> None:
        if not 0 <= back_after_s <= 3600:
            raise ValueError(f"back_after_s of {back_after_s}: give 0 to 3600 seconds")
        if not mode:
            raise ValueError("mode is empty: give a wide-area mode, such as modest")
        self._back_after_ns = round(back_after_s * 1e9)
        self._mode = mode

    def __call__(self, event: Event, state: State) -> Sequence[Action]:
        if not isinstance(event, FLOW_EVENTS):
            return ()
        copies, needed = [], set()
        for flow in state.flows.values():
            if is_stage_in_of_waiting_job(flow, state):
                needed |= shared_resources(flow, state)
            elif flow.traffic == "wan" and "mode" in flow.controls:
                copies.append(flow)
        actions: list[Action] = []
        free = state.time_ns - self._last_end_ns(state) >= self._back_after_ns
        for flow in copies:
            if not needed.isdisjoint(shared_resources(flow, state)):
                actions += set_mode(flow, self._mode)
            elif free:
                actions += set_mode(flow, None)
        return actions

    def _last_end_ns(self, state: State) -> int:
        """When the last flow or staging ended that the state remembers; its newest entry is its last."""
        ends = (next(reversed(kept.values()), None) for kept in (state.ended_flows, state.ended_staging))
        return max((time_ns for time_ns in ends if time_ns is not None), default=-self._back_after_ns)
