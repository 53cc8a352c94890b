"""`deadline-staging`: stage-ins finish when their jobs are due to start, and no sooner than needed.

Arrives: events and the state. Leaves: `SetRate` on stage-ins of jobs with a due time. Must not know: worlds.

A stage-in that ends hours before its job is due has taken links and storage targets from jobs that computed meanwhile.
The due time is the scheduler's estimate (`StagingStarted.due_ns`). Of a job with `left` bytes to stage and `time` until
it is due, less `margin_s`:

* needed = headroom * left / time. The limit of its flows together is the needed rate, divided by the bytes that each
  has left.
* The laxity is time - left / rate, with the measured rate. A job with a laxity below `margin_s`, or that is late, is
  urgent: its limit is lifted. While a job is urgent, all others are held to what they need and no more, that is without
  headroom: least laxity first (Mok, 1983).
* Hysteresis: a limit stays until another differs by an eighth; an urgent job stays urgent until its laxity is twice
  `margin_s`. A job without a due time is left alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from waystage.events import Action, Event
from waystage.policies.flow_rules import FLOW_EVENTS, is_waited_for, set_rate
from waystage.state import FlowInfo, State

DIFFERENT = 0.125
"""A smaller change of a rate is not worth a message: it is within what a flow's own rate varies."""

LEAST_BPS = 8_000
"""A kilobyte a second: no flow is held to nothing."""


class DeadlineStaging:
    """`margin_s`: how long before it is due a job's data should be there. `headroom`: share above the needed rate."""

    name = "deadline-staging"
    acts_on = frozenset({"rate"})
    reads_rates = False

    def __init__(self, margin_s: float = 2.0, headroom: float = 0.25) -> None:
        if not 0 <= margin_s <= 86_400:
            raise ValueError(f"margin_s of {margin_s}: give 0 to 86400 seconds")
        if not 0 <= headroom <= 10:
            raise ValueError(f"headroom of {headroom}: give a share from 0 to 10")
        self._margin_s, self._headroom = margin_s, headroom

    def __call__(self, event: Event, state: State) -> Sequence[Action]:
        if not isinstance(event, FLOW_EVENTS):
            return ()
        of_job: dict[str, list[FlowInfo]] = {}
        actions: list[Action] = []
        jobs = state.jobs
        for flow in state.flows.values():  # all of them, on every event of a flow
            job = jobs.get(flow.job_id or "")
            if job is not None and job.due_ns and is_waited_for(flow, job):
                flows = of_job.get(job.job_id)
                if flows is None:
                    of_job[job.job_id] = [flow]
                else:
                    flows.append(flow)
            elif flow.wanted.rate_bps is not None and flow.traffic == "staging":
                actions += set_rate(flow, None)  # its job began, or lost its due time
        left_s = {job_id: (jobs[job_id].due_ns - state.time_ns) / 1e9 for job_id in of_job}
        urgent = {job_id for job_id, flows in of_job.items() if self._is_urgent(flows, left_s[job_id])}
        for job_id, flows in of_job.items():
            if job_id in urgent:
                for flow in flows:
                    actions += set_rate(flow, None)
            else:
                self._pace(flows, left_s[job_id], actions, hold=bool(urgent))
        return actions

    def _is_urgent(self, flows: list[FlowInfo], left_s: float) -> bool:
        """By laxity, with the rate that its flows have; one that has none yet is judged by the time alone."""
        time_s = left_s - self._margin_s
        rate_bps, left, paced, held = 0, 0, False, True
        for flow in flows:
            if not flow.bytes:
                return True  # of unknown size: there is nothing to pace by
            rate_bps += flow.rate_bps
            if flow.bytes > flow.bytes_done:
                left += flow.bytes - flow.bytes_done
            paced = paced or flow.wanted.rate_bps is not None
            held = held and (flow.limited_by == "rate" or not flow.rate_bps)
        if time_s <= 0:
            return True
        # Where its limit holds it, and not the way, its rate says nothing of how late it can begin.
        if (paced and held) or not rate_bps:
            return False
        was_urgent = not paced
        laxity = time_s - left / (rate_bps / 8)
        return laxity < (2 if was_urgent else 1) * self._margin_s

    def _pace(self, flows: list[FlowInfo], left_s: float, actions: list[Action], *, hold: bool) -> None:
        """Add to `actions` what holds the flows of a job to the rate that it needs."""
        time_s = max(left_s - self._margin_s, 0.1)
        factor = 1.0 if hold else 1.0 + self._headroom
        for flow in flows:
            left = flow.bytes - flow.bytes_done
            wanted = round(factor * left * 8 / time_s)
            if wanted < LEAST_BPS:
                wanted = LEAST_BPS
            now = flow.wanted.rate_bps
            if now is None or abs(wanted - now) > DIFFERENT * now:
                actions += set_rate(flow, wanted)
