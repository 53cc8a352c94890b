"""Events of jobs and their staging: the notificator's four messages (Endo et al. 2020, section IV.C.1), and beyond.

Arrives: facts from a job scheduler.
Leaves: typed structs.
Must not know: schedulers, policies.
"""

from __future__ import annotations

from waystage.events.base import Direction, Event, TrafficClass


class JobStarted(Event, frozen=True, kw_only=True):
    """`user` owns the job, empty if unknown: flows of other users do not count as the job's."""

    job_id: str
    nodes: tuple[str, ...]
    user: str = ""


class JobFinished(Event, frozen=True, kw_only=True):
    job_id: str


class StagingStarted(Event, frozen=True, kw_only=True):
    """`nodes` is given if staging begins before the job; `bytes` is the declared amount, 0 if unknown.

    `due_ns` is when the job is due to start by the scheduler's estimate, 0 if unknown. A repeated start with another
    estimate replaces it. `user` is as in `JobStarted`.
    """

    job_id: str
    direction: Direction = "in"
    nodes: tuple[str, ...] = ()
    bytes: int = 0
    due_ns: int = 0
    user: str = ""


class StagingFinished(Event, frozen=True, kw_only=True):
    """`user` is the one whose data moved, empty where that is not known."""

    job_id: str
    direction: Direction = "in"
    user: str = ""


class IoStarted(Event, frozen=True, kw_only=True):
    """A running job begins to use the global file system (open issue 3 of Endo et al. 2020)."""

    job_id: str
    bytes: int = 0


class IoFinished(Event, frozen=True, kw_only=True):
    job_id: str


class DemandDeclared(Event, frozen=True, kw_only=True):
    """The load that a job expects to offer to the core in one class; 0 withdraws it.

    `measured`: the controller's own measurement, which never replaces what a user declares.
    """

    job_id: str
    traffic: TrafficClass
    rate_bps: int
    measured: bool = False
