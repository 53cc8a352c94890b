"""The planner alone: from an event to the changes of every switch, on a large cluster without switches.

Used by `switching`. A leaf-spine network with many running jobs of three nodes each, which share nodes; staging of one
job after the other begins and ends. A time is the event's fold into the state, the policy's decision, and the rules of
its plan with their difference from those in force. Switches are taken to accept every change at once.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from typing import Any

from rules import true_macs

from waystage.bench import BenchError
from waystage.events import (
    AssignPaths,
    Envelope,
    Event,
    JobStarted,
    PathPlan,
    StagingFinished,
    StagingStarted,
    TopologyChanged,
)
from waystage.interconnect.discovery import View
from waystage.interconnect.generate import leaf_spine
from waystage.interconnect.installer import Changes, Installer
from waystage.interconnect.outcome import Outcome
from waystage.interconnect.rules import SwitchRules
from waystage.policies.link_separation import LinkSeparation
from waystage.state import State
from waystage.stats import median, percentile

LEAVES, HOSTS_PER_LEAF, SPINES, STORAGE = 32, 32, 16, 32
NODES_PER_JOB = 3


class Planning:
    """The state of `jobs` running jobs, the policy and the planner; nothing else runs."""

    def __init__(self, jobs: int) -> None:
        self.topology = leaf_spine(LEAVES, HOSTS_PER_LEAF, SPINES, storage_hosts=STORAGE)
        macs = {host: ":".join(f"{mac:012x}"[at : at + 2] for at in range(0, 12, 2))
                for host, mac in true_macs(self.topology).items()}  # fmt: skip
        self._view = View(topology=self.topology, live=self.topology, macs=macs, ips={})
        self._state = State()
        self._policy = LinkSeparation()
        self._installer = Installer(_accepted, lambda switch: None)
        for switch in self.topology.switches:
            self._installer.connected(switch.name, SwitchRules())
        self._events = 0
        self.happened(TopologyChanged(topology=self.topology))
        nodes = itertools.cycle(itertools.combinations(self.topology.compute_hosts, NODES_PER_JOB))
        self.jobs = [f"job-{number}" for number in range(jobs)]
        for job, chosen in zip(self.jobs, nodes, strict=False):
            self.happened(JobStarted(job_id=job, nodes=chosen))

    def happened(self, event: Event) -> float:
        """Milliseconds from the event to the changes it asks for, which are then in force."""
        self._events += 1
        began = time.perf_counter_ns()
        envelope = Envelope(event=event, event_id=str(self._events), time_ns=self._events)
        self._state.apply(envelope)
        actions = self._policy(event, self._state)
        decided = time.perf_counter_ns() - began
        planned = 0
        for action in actions:
            if isinstance(action, AssignPaths):
                self._state.record_request(action)
                planned += self._installer.apply(self._view, action.plan).planner_ns
                self._installer.clean()
        return (decided + planned) / 1e6

    def plan(self) -> PathPlan | None:
        """What was asked for last."""
        return self._state.requested


def plan_times(jobs: int, count: int) -> dict[str, Any]:
    """Milliseconds of `count` beginnings and ends of staging, with `jobs` running jobs. Raises BenchError."""
    planning = Planning(jobs)
    times: dict[bool, list[float]] = {True: [], False: []}
    for number in range(-1, count):
        job = planning.jobs[number % jobs]
        for on, event in ((True, StagingStarted(job_id=job)), (False, StagingFinished(job_id=job))):
            took = planning.happened(event)
            plan = planning.plan()
            if plan is None or plan.separated is not on:
                raise BenchError(
                    f"staging of {job}: the plan is not the one of {'ON' if on else 'OFF'} status"
                )
            if number >= 0:  # the first computes what is kept afterwards
                times[on].append(took)
    both = times[True] + times[False]
    return {
        "hosts": len(planning.topology.hosts),
        "switches": len(planning.topology.switches),
        "jobs": jobs,
        "plans": len(both),
        "median_ms": round(median(both), 3),
        "p99_ms": round(percentile(both, 99), 3),
        "on_median_ms": round(median(times[True]), 3),
        "off_median_ms": round(median(times[False]), 3),
    }


def _accepted(changes: Changes) -> Mapping[str, Outcome]:
    return dict.fromkeys(changes, Outcome())
