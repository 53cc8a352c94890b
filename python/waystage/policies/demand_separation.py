"""`demand-separation`: core switches divided among the classes by demand.

Arrives: events and the state. Leaves: path plans. Must not know: rules, switches, worlds.

Answers open issues 1 and 3 of Endo et al. 2020 (section VII). `demand.py` gives the demand d of each active class in
core switches. Then:

* Fewer than two active classes: nothing is divided, every class may use everything.
* A class of bulk data with d < 1/4 is light: it is restricted to one core switch, shared with others. MPI is never
  light: it is sensitive to latency, and bulk data in the same queue would delay it.
* Each other class gets one core switch, and each further one goes to the class with the largest d / n. This minimises
  the worst slowdown, max(d / n), and starves no class (Adams' method of apportionment). With fewer core switches than
  classes, wide-area traffic and then I/O join staging.
* Within its core switches, a class's known traffic is placed so that the busiest link carries least (`placement.py`).
* Hysteresis: a division for the same classes and core switches stays until another makes the worst slowdown at least a
  sixth smaller, a light class stays light until d >= 1/2, and measurements alone change nothing within three
  seconds of the last change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from waystage.events import (
    CLASSES,
    Action,
    DemandDeclared,
    Event,
    IoFinished,
    IoStarted,
    JobFinished,
    JobStarted,
    LinkUse,
    PathPlan,
    StagingFinished,
    StagingStarted,
    TrafficClass,
)
from waystage.policies.demand import SETTLE_NS, demands
from waystage.policies.link_separation import in_order
from waystage.policies.off_status import TOPOLOGY_EVENTS, live_cores
from waystage.policies.path_policy import PathPolicy
from waystage.policies.path_search import Cores, paths_held
from waystage.policies.placement import GAIN, place
from waystage.state import State

LIGHT = 0.25
"""Below a quarter of a core switch, sharing costs the others less than giving one away."""

RELEVANT_EVENTS: tuple[type[Event], ...] = (
    JobStarted,
    JobFinished,
    StagingStarted,
    StagingFinished,
    IoStarted,
    IoFinished,
    DemandDeclared,
    LinkUse,
    *TOPOLOGY_EVENTS,
)


class DemandSeparation(PathPolicy):
    """`style` is how rules are written, `seed` selects the hash within a class's core switches."""

    name = "demand-separation"

    def __call__(self, event: Event, state: State) -> Sequence[Action]:
        if state.requested is not None and not isinstance(event, RELEVANT_EVENTS):
            return ()
        settled = self.settled(event, state)
        if settled and isinstance(event, LinkUse) and state.time_ns - state.requested_ns < SETTLE_NS:
            return ()
        off = self.off(state)
        topology, live = state.topology, state.live_topology
        if off is None or topology is None or live is None:
            return ()
        usable = live_cores(live, topology)
        before = state.requested if settled and state.requested is not None else off
        cores = divided(state, off, usable, before.cores)
        plan = off
        if cores:
            named: Cores = {traffic: cores.get(traffic) or usable for traffic in CLASSES}
            plan = self.separated(state, off, cores, listed=named)
        if self.style == "labelled":
            placed = place(state, cores, usable, spread_by=self.spread, seed=self.seed, now=state.requested)
            plan = msgspec.structs.replace(plan, placed=placed)
        return self.ask(plan, state)


class Claims(msgspec.Struct, frozen=True, kw_only=True):
    """Classes with dedicated core switches and their demand; classes that share one; classes that follow staging."""

    heavy: dict[TrafficClass, float]
    light: tuple[TrafficClass, ...] = ()
    joined: tuple[TrafficClass, ...] = ()


def divided(state: State, off: PathPlan, usable: tuple[str, ...], now: Cores) -> Cores:
    """The core switches of each active class, `now` where that is good enough; empty where nothing is to be divided."""
    live = state.live_topology
    if live is None or len(usable) < 2:
        return {}
    wanted = demands(state, live, usable, now)
    found = claims(wanted, len(usable), now)
    if len(wanted) < 2 or not found.heavy:
        return {}
    shares = divide(found.heavy, len(usable))
    if fits(found, usable, now):
        held = {traffic: len(now[traffic]) for traffic in found.heavy}
        if worst(found.heavy, held) < GAIN * worst(found.heavy, shares):
            return now
    return assign(found, shares, paths_held(state, off), usable, now)


def claims(wanted: dict[TrafficClass, float], cores: int, now: Cores) -> Claims:
    """Sorts the active classes by kind. `now` tells which are light already."""
    light: list[TrafficClass] = []
    for traffic, demand in wanted.items():
        limit = 2 * LIGHT if _is_light(now, traffic) else LIGHT
        if traffic != "mpi" and demand < limit:
            light.append(traffic)
    heavy = {traffic: demand for traffic, demand in wanted.items() if traffic not in light}
    joined: list[TrafficClass] = []
    bulk: tuple[TrafficClass, ...] = ("wan", "io")
    for traffic in bulk:
        if traffic in heavy and len(heavy) > cores:
            heavy["staging"] = heavy.get("staging", 0.0) + heavy.pop(traffic)
            joined.append(traffic)
    return Claims(heavy=heavy, light=tuple(light), joined=tuple(joined))


def _is_light(now: Cores, traffic: TrafficClass) -> bool:
    mine = now.get(traffic, ())
    return len(mine) == 1 and any(
        set(mine) < set(theirs) or (mine == theirs and other == "mpi")
        for other, theirs in now.items()
        if other != traffic
    )


def divide(heavy: dict[TrafficClass, float], cores: int) -> dict[TrafficClass, int]:
    """Number of dedicated core switches of each class. Ties go to the earlier class."""
    shares = dict.fromkeys(heavy, 1)
    for _ in range(cores - len(heavy)):
        neediest = max(heavy, key=lambda traffic: (heavy[traffic] / shares[traffic], -CLASSES.index(traffic)))
        shares[neediest] += 1
    return shares


def worst(heavy: dict[TrafficClass, float], shares: dict[TrafficClass, int]) -> float:
    """The worst slowdown: 1 where every class has what it could fill."""
    return max([1.0, *(demand / shares[traffic] for traffic, demand in heavy.items())])


def fits(found: Claims, usable: tuple[str, ...], now: Cores) -> bool:
    """Whether `now` divides the same core switches among the same classes of the same kinds."""
    if set(now) != {*found.heavy, *found.light, *found.joined}:
        return False
    own = [core for traffic in found.heavy for core in now[traffic]]
    return (
        len(own) == len(usable)
        and set(own) == set(usable)
        and all(len(now[traffic]) == 1 for traffic in found.light)
        and all(now[traffic] == now["staging"] for traffic in found.joined)
    )


def assign(
    found: Claims,
    shares: dict[TrafficClass, int],
    held: Counter[str],
    usable: tuple[str, ...],
    now: Cores,
) -> Cores:
    """Which core switches: those a class has already, then for MPI the ones with most of its paths, in order."""
    free = list(usable)
    cores: Cores = {}
    for traffic in found.heavy:
        kept = [core for core in now.get(traffic, ()) if core in free][: shares[traffic]] if now else []
        cores[traffic] = tuple(kept)
        free = [core for core in free if core not in kept]
    for traffic in found.heavy:
        mine = set(cores[traffic])
        ordered = sorted(free, key=lambda core: (-held[core], usable.index(core)))
        mine |= set(ordered[: shares[traffic] - len(mine)])
        cores[traffic] = in_order(usable, mine)
        free = [core for core in free if core not in mine]
    for traffic in found.joined:
        cores[traffic] = cores["staging"]
    for traffic in found.light:
        host = min(found.heavy, key=lambda other: (other == "mpi", found.heavy[other] / shares[other]))
        cores[traffic] = cores[host][-1:]
    return cores
