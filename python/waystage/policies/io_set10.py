"""`io-set10`: sets of applications by how often they write; one of each set at a time, frequent ones with more weight.

Arrives: events and the state. Leaves: `GrantIo`. Must not know: aggregators, MPI, worlds.

Set-10 of Boito, Pallez, Teylo and Vidal, "IO-Sets: simple and efficient approaches for I/O bandwidth management", 2023:
w is the mean time between the starts of successive I/O phases of an application, its set i = round(log10 w). Inside a set
exclusive access, first come first served; the sets that are active share the bandwidth by weights of 10^-i. Frequent
writers have short phases: they pass quickly, and cost the others little.

w is measured from the second phase on. Before, it is the time since the application's start: an application that has not
written twice is no frequent writer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from waystage.io_state import IoApplication
from waystage.policies.io_rules import Scheduling
from waystage.state import State


class IoSet10(Scheduling):
    """Options of `Scheduling`."""

    name = "io-set10"

    def choose(
        self, going: Sequence[IoApplication], waiting: Sequence[IoApplication], state: State
    ) -> Mapping[str, float]:
        active: dict[int, IoApplication] = {}
        for app in (*going, *waiting):  # who goes on keeps its place
            active.setdefault(_set_of(app, state.time_ns), app)
        first = min(active, default=0)
        chosen = {app.app: 10.0 ** (first - number) for number, app in active.items()}
        for app in going:  # two that met before there was a schedule, or whose period has changed
            chosen.setdefault(app.app, 10.0 ** (first - _set_of(app, state.time_ns)))
        return chosen


def _set_of(app: IoApplication, time_ns: int) -> int:
    period_s = (app.period_ns or time_ns - app.started_ns) / 1e9
    return round(math.log10(max(period_s, 1e-3)))
