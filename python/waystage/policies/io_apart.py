"""`io-apart`: I/O of computing jobs on separate core switches, where it is measured and not only declared.

Arrives: events and the state. Leaves: path plans. Must not know: rules, switches, worlds.

The third class (open issue 3 of Endo et al. 2020, section VII). `link-separation` and `demand-separation` give I/O core
switches while a job declares it. Programs rarely declare it, and may declare it and compute. This policy asks such a
policy, its `base`, with the I/O that flows of class `io` are measured to do:

* A job does I/O while its flows of the class move at least `least_share` of a core switch's link, measured by their
  progress, and until they move less than half of that. A flow that has not been measured yet does not count.
* A declaration counts while none of the job's I/O is measured, as where its programs run without a flow agent.
* What the base asks for is asked for: it composes with separation of the other classes, and with policies of flows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec

from waystage.events import Action, Event, FlowFinished, FlowProgress, IoFinished, IoStarted, RuleStyle
from waystage.policies.demand_separation import DemandSeparation
from waystage.policies.link_separation import LinkSeparation
from waystage.state import JobInfo, State

BASES: dict[str, type[LinkSeparation] | type[DemandSeparation]] = {
    "link-separation": LinkSeparation,
    "demand-separation": DemandSeparation,
}


class IoApart:
    """`base` separates the classes; `least_share` of a link of a core switch is I/O worth separating."""

    name = "io-apart"
    acts_on = frozenset({"paths"})

    def __init__(
        self,
        base: str = "link-separation",
        least_share: float = 0.1,
        style: RuleStyle = "labelled",
        seed: int = 0,
    ) -> None:
        if base not in BASES:
            raise ValueError(f"base {base!r}: use {' or '.join(BASES)}")
        if not 0 < least_share <= 1:
            raise ValueError(f"least_share of {least_share}: give a share above 0 and up to 1")
        self._base = BASES[base](style=style, seed=seed)
        self._least_share = least_share

    def __call__(self, event: Event, state: State) -> Sequence[Action]:
        view, changed = self._measured(state)
        if isinstance(event, FlowProgress | FlowFinished):
            if changed is None:
                return ()
            event = changed
        return self._base(event, view)

    def _measured(self, state: State) -> tuple[State, Event | None]:
        """The state with I/O as measured, and the event that it differs by from what the plan asked for last knows."""
        rates: dict[str, int] = defaultdict(int)
        seen: set[str] = set()
        for flow in state.flows.values():
            if flow.traffic == "io":
                owner = flow.job_id or f"io of {flow.source.host or flow.destination.host}"
                seen.add(owner)
                rates[owner] += flow.rate_bps
        knows = state.requested is not None and "io" in state.requested.cores
        least = self._least_share * _core_link_bps(state) * (0.5 if knows else 1.0)
        jobs = dict(state.jobs)
        for owner in seen:
            job = jobs.get(owner, JobInfo(job_id=owner))
            jobs[owner] = msgspec.structs.replace(job, io=rates[owner] >= least > 0)
        active = [job.job_id for job in jobs.values() if job.io]
        view = msgspec.structs.replace(state, jobs=jobs)
        if bool(active) == knows:
            return view, None
        job_id = active[0] if active else next(iter(seen), "io")
        return view, IoStarted(job_id=job_id) if active else IoFinished(job_id=job_id)


def _core_link_bps(state: State) -> int:
    """The smallest link of a core switch; 0 where there is none."""
    topology = state.topology
    if topology is None:
        return 0
    cores = topology.core_switches
    return min((link.capacity_bps for core in cores for link in topology.adjacency[core]), default=0)
