"""`link-separation`: staging and inter-node communication on separate core switches while any staging runs.

Arrives: events and the state. Leaves: path plans. Must not know: rules, switches, worlds.

Follows Endo et al. 2020 section IV.C: the four requests of the notification processor (Fig. 8), the three steps of the
path searcher (core switch allocation, subnetwork formation, path search) and Algorithm 1. In style `per-pair` the paths
of running jobs are searched and listed as there. In style `labelled` the first two steps suffice: a plan
names each class's core switches and needs no path of any job.

Beyond the paper: a third class, I/O of running jobs, has dedicated core switches if there are three or more, and
otherwise shares those of staging. ON status holds during staging or I/O. A class without traffic is not restricted:
that would cost messages without benefit.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence

from waystage.events import (
    Action,
    Event,
    IoFinished,
    IoStarted,
    JobFinished,
    JobStarted,
    PathPlan,
    StagingFinished,
    StagingStarted,
)
from waystage.policies.off_status import live_cores
from waystage.policies.path_policy import PathPolicy
from waystage.policies.path_search import Cores, paths_held
from waystage.state import State


class Request(enum.Enum):
    """Requests of Fig. 8, and `REPAIR` for a changed topology."""

    ON_STATUS = enum.auto()
    OFF_STATUS = enum.auto()
    PATH_SEARCH = enum.auto()
    PATH_DELETION = enum.auto()
    REPAIR = enum.auto()


def request_of(event: Event, state: State, *, settled: bool) -> Request | None:
    """Fig. 8's flowchart. The event is in the state already; the last request gives the previous status.

    `settled` is whether that request was made for the topology, style and seed of now.
    """
    on = bool(state.staging_jobs or state.io_jobs)
    was_on = state.requested is not None and state.requested.separated
    if on and not was_on:
        return Request.ON_STATUS
    if was_on and not on:
        return Request.OFF_STATUS
    if not settled:
        return Request.REPAIR
    if on and isinstance(event, JobStarted | StagingStarted | IoStarted):
        return Request.PATH_SEARCH
    if on and isinstance(event, JobFinished | StagingFinished | IoFinished):
        return Request.PATH_DELETION
    return None


class LinkSeparation(PathPolicy):
    """`style` is how rules are written, `seed` selects the hash of OFF status."""

    name = "link-separation"
    reads_rates = False

    def __call__(self, event: Event, state: State) -> Sequence[Action]:
        request = request_of(event, state, settled=self.settled(event, state))
        if request is None:
            return ()
        if request is Request.OFF_STATUS:
            plan = self.off(state)
        elif request is Request.ON_STATUS:
            plan = self._on(state, kept={})
        else:
            # Path search, path deletion and repair keep the allocation made when status turned ON.
            was_on = state.requested is not None and state.requested.separated
            kept = state.requested.cores if state.requested is not None else {}
            plan = self._on(state, kept=kept) if was_on else self.off(state)
        return self.ask(plan, state)

    def _on(self, state: State, kept: Cores) -> PathPlan | None:
        """The three steps. A single core switch cannot be divided: the plan of OFF status stays."""
        off = self.off(state)
        topology, live = state.topology, state.live_topology
        if off is None or topology is None or live is None:
            return None
        usable = live_cores(live, topology)
        if len(usable) < 2:
            return off
        return self.separated(state, off, allocate(state, off, usable, kept))


# -- step 1: core switch allocation -------------------------------------------------------------------


def allocate(state: State, off: PathPlan, usable: tuple[str, ...], kept: Cores) -> Cores:
    """The busier half to inter-node communication, so that the switch-over moves as few of its paths as may be.

    `kept` is the allocation in force; inter-node communication keeps its core switches while they are up.
    """
    io_apart = bool(state.io_jobs and state.staging_jobs) and len(usable) >= 3
    others = max(2, len(usable) // 2) if io_apart else len(usable) // 2
    held = paths_held(state, off)
    mine = set(kept.get("mpi", ()))
    busiest = sorted(usable, key=lambda core: (core not in mine, -held[core], usable.index(core)))
    mpi = in_order(usable, busiest[: len(usable) - others])
    bulk = in_order(usable, busiest[len(usable) - others :])
    if io_apart:
        half = -(-len(bulk) // 2)
        return {"mpi": mpi, "staging": bulk[:half], "io": bulk[half:]}
    if state.io_jobs:
        return {"mpi": mpi, "staging": bulk, "io": bulk}
    return {"mpi": mpi, "staging": bulk}


def in_order(ordered: Sequence[str], chosen: Iterable[str]) -> tuple[str, ...]:
    """`chosen` in the order of `ordered`."""
    wanted = set(chosen)
    return tuple(item for item in ordered if item in wanted)
