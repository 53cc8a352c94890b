"""Measures the demand of jobs: the rates of their flows become `DemandDeclared`, so that no user has to guess.

Arrives: the state, about once a second.
Leaves: DemandDeclared of each job and class whose measured rate has changed; 0 when its flows have ended.
Must not know: policies, the backplane, agents.

What is declared in the state is compared with what is measured; nothing else is remembered but averages, so that a
restarted controller goes on. A demand that a user declared is left alone (`State` keeps it too). A flow that is limited
or paused says nothing of what its job would use: its rate before still counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from waystage.events import DemandDeclared, Envelope, Event, TrafficClass
from waystage.state import FlowInfo, State

WEIGHT = 0.3
"""Of the newest second in the moving average: 90 % of a step is seen after 7 s."""

CHANGE = 0.1
"""Relative change that is published: a policy may move paths for it."""

LEAST_BPS = 1_000_000
"""Below it a demand is withdrawn: so slow a job needs no share of a link."""

HELD = frozenset({"rate", "paused"})

Key = tuple[str, TrafficClass]


class DemandMeter:
    """An observer."""

    def __init__(self, publish: Callable[[Event], None]) -> None:
        self._publish = publish
        self._smoothed: dict[Key, float] = {}
        self._rates: dict[str, int] = {}

    def seen(self, item: Envelope, state: State) -> None:
        """What counts is the state at the next tick."""

    def tick(self, state: State) -> None:
        for event in self.measure(state):
            self._publish(event)

    def measure(self, state: State) -> list[DemandDeclared]:
        """What to declare, one second after the call before; pure but for the averages."""
        measured = self._totals(state)
        self._smoothed = {
            key: self._smoothed.get(key, rate) * (1 - WEIGHT) + WEIGHT * rate
            for key, rate in measured.items()
        }
        classes: dict[str, set[TrafficClass]] = defaultdict(set)
        for job_id, traffic in measured:
            classes[job_id].add(traffic)
        found: list[DemandDeclared] = []
        for job in state.jobs.values():
            for traffic in sorted(classes.get(job.job_id, set()) | job.demand_bps.keys()):
                if traffic in job.explicit_bps:
                    continue
                smoothed = self._smoothed.get((job.job_id, traffic), 0.0)
                wanted = round(smoothed) if smoothed >= LEAST_BPS else 0
                declared = job.demand_bps.get(traffic, 0)
                if abs(wanted - declared) > CHANGE * declared:
                    found.append(
                        DemandDeclared(job_id=job.job_id, traffic=traffic, rate_bps=wanted, measured=True)
                    )
        return found

    def _totals(self, state: State) -> dict[Key, int]:
        """bit/s by job and class, of the jobs in the state."""
        totals: dict[Key, int] = defaultdict(int)
        rates: dict[str, int] = {}
        for flow in state.flows.values():
            rate = rates[flow.flow_id] = self._rate(flow)
            if flow.job_id is not None and flow.job_id in state.jobs:
                totals[flow.job_id, flow.traffic] += rate
        self._rates = rates
        return totals

    def _rate(self, flow: FlowInfo) -> int:
        if flow.limited_by not in HELD:
            return flow.rate_bps
        return max(self._rates.get(flow.flow_id, 0), flow.rate_bps)
