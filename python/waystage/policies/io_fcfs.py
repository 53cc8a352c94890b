"""`io-fcfs`: one application in a collective operation at a time, first come first served.

Arrives: events and the state. Leaves: `GrantIo`. Must not know: aggregators, MPI, worlds.

START_IO, GRANT_IO and FINISH_IO of Isaila et al., "CLARISSE", section IV.B: the waiting queue is the order of the
requests in the state. Two additions, so that none is worse off than without a schedule:

* An operation that is shorter than `beside` times what is left of those in progress does not wait for it: the sum of
  both ends is smaller if they share. Its even share of the storage takes it twice its own time, and costs the long one
  as much as the short one needs.
* Nothing is scheduled where sharing gains, or where no operations have met (`io_rules.Scheduling`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from waystage.io_state import IoApplication
from waystage.policies.io_rules import Scheduling, remaining_ns
from waystage.state import State


class IoFcfs(Scheduling):
    """Options of `Scheduling`; `beside` of 0 makes every operation wait, as in the paper."""

    name = "io-fcfs"

    def __init__(
        self,
        beside: float = 0.5,
        lease_s: float = 30.0,
        shortest_s: float = 0.1,
        aside: float = 1.1,
        learn: bool = True,
    ) -> None:
        super().__init__(lease_s, shortest_s, aside, learn)
        if not 0 <= beside <= 1:
            raise ValueError(f"beside of {beside}: give 0 to 1")
        self._beside = beside

    def choose(
        self, going: Sequence[IoApplication], waiting: Sequence[IoApplication], state: State
    ) -> Mapping[str, float]:
        chosen: dict[str, float] = {}
        left = [remaining_ns(app, state, going) for app in going]
        for app in waiting:
            own = state.io.alone_ns(app, app.op_bytes)
            if not left or 0 < own < self._beside * min(left):
                chosen[app.app] = 1.0
                left.append(own)
        return chosen
