"""A policy of your own: while anything is staged, staging has the last core switch and MPI all others.

Try it without a cluster:   python examples/own_policy.py
Run it in the lab:          PYTHONPATH=examples waystage run experiments/demo.yaml --policy own_policy:LastCore
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from waystage.events import (
    Action,
    AssignPaths,
    Event,
    JobStarted,
    PathPlan,
    RuleStyle,
    StagingFinished,
    StagingStarted,
    TopologyChanged,
    envelope,
)
from waystage.interconnect.graphml import read_topology
from waystage.state import State


class LastCore:
    """Pure: what it answers depends on the event and the state alone, so it runs anywhere unchanged."""

    name = "last-core"

    def __init__(self, style: RuleStyle = "labelled", seed: int = 0) -> None:
        if style != "labelled":
            raise ValueError("last-core writes labelled rules only")
        self.seed = seed

    def __call__(self, event: Event, state: State) -> Sequence[Action]:
        if state.topology is None:
            return ()
        cores = state.topology.core_switches
        staging = any(job.staging for job in state.jobs.values())
        if staging and len(cores) > 1:
            plan = PathPlan(separated=True, seed=self.seed, cores={"staging": cores[-1:], "mpi": cores[:-1]})
        else:
            plan = PathPlan(seed=self.seed)
        return () if plan == state.requested else (AssignPaths(plan=plan),)


def main() -> int:
    """Fold a job's events into a state, as a controller does, and print what the policy wants."""
    policy, state = LastCore(), State()
    for event in (
        TopologyChanged(topology=read_topology("paper")),
        JobStarted(job_id="17", nodes=("n1", "n2", "n3")),
        StagingStarted(job_id="17", bytes=8_000_000),
        StagingFinished(job_id="17"),
    ):
        state.apply(envelope(event))
        for action in policy(event, state):
            assert isinstance(action, AssignPaths)
            state.record_request(action)
            print(f"{type(event).__name__}: {action.plan.cores or 'every class on every core'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
