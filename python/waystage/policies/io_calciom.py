"""`io-calciom`: wait, interrupt or interfere, whichever costs the least core time.

Arrives: events and the state. Leaves: `GrantIo`. Must not know: aggregators, MPI, worlds.

Dorier et al., "CALCioM: Mitigating I/O interference in HPC systems through cross-application coordination", IPDPS 2014:
when an application B wants to write while A does, the ends of both are estimated for three cases (A then B; B first
while A is interrupted; both at once, with the interference that was measured), and the case with the least sum of
N x T is taken: ranks times the time in I/O. Here A may be several. Those that wait are looked at in the order of their
requests, each time that one comes or ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from waystage.io_state import IoApplication
from waystage.policies.io_rules import INTERRUPTED, Scheduling, gain_of_sharing, remaining_ns
from waystage.state import State

Work = tuple[float, int]
"""What is left of an operation, in ns alone, and its ranks."""


class IoCalciom(Scheduling):
    """Options of `Scheduling`; that nothing is scheduled where sharing gains follows from the estimates here."""

    name = "io-calciom"

    def choose(
        self, going: Sequence[IoApplication], waiting: Sequence[IoApplication], state: State
    ) -> Mapping[str, float]:
        gain = (
            gain_of_sharing([*going, *waiting])
            or gain_of_sharing(list(state.io.applications.values()))
            or 1.0
        )
        chosen = {app.app: 1.0 for app in going if app.wanted.weight != INTERRUPTED}
        passing = [app for app in going if app.wanted.weight != INTERRUPTED]
        if not passing:  # those that were interrupted go on
            passing = list(going)
            chosen = {app.app: 1.0 for app in going}
        for app in waiting:
            works = [_work(other, state, going) for other in passing]
            own = _work(app, state, going)
            if not works:
                chosen[app.app] = 1.0
                passing.append(app)
                continue
            costs = {
                "wait": _serial([*works, own]),
                "interrupt": _interrupt(works, own),
                "interfere": _even([*works, own], gain),
            }
            best = min(costs, key=lambda name: (costs[name], name != "wait"))
            if best == "interfere":
                chosen[app.app] = 1.0
                passing.append(app)
            elif best == "interrupt":
                chosen |= {other.app: INTERRUPTED for other in passing if other.going_on}
                chosen[app.app] = 1.0
                passing = [app]
        return chosen


def _work(app: IoApplication, state: State, going: Sequence[IoApplication]) -> Work:
    return remaining_ns(app, state, going), max(1, app.ranks)


def _even(works: Sequence[Work], gain: float) -> float:
    """N x T of operations that share evenly: the storage does `gain` as much with several as with one."""
    cost, now, done = 0.0, 0.0, 0.0
    ordered = sorted(works)
    for at, (left, ranks) in enumerate(ordered):
        together = len(ordered) - at
        speed = (gain if together > 1 else 1.0) / together
        now += (left - done) / speed
        done = left
        cost += ranks * now
    return cost


def _serial(works: Sequence[Work]) -> float:
    """Those in progress share, the last one follows."""
    *before, last = works
    end = sum(left for left, _ in before)
    return _even(before, 1.0) + last[1] * (end + last[0])


def _interrupt(works: Sequence[Work], first: Work) -> float:
    return first[0] * (first[1] + sum(ranks for _, ranks in works)) + _even(works, 1.0)
