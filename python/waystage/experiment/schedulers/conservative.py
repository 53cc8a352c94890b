"""Conservative backfilling: every waiting job has a reservation that is never put off.

Arrives: a `Moment`.
Leaves: the jobs whose reservation has come.
Must not know: how long jobs really take; only what they asked for.

Mu'alem and Feitelson (IEEE TPDS 12(6), 2001). A job gets, when it is first seen, the earliest time at which its nodes
are free for as long as it asked. When a job ends early the plan is compressed: in order of arrival each job may move
to an earlier time, never to a later one, so no job starts later than it was promised as long as jobs end within
their estimates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from waystage.experiment.schedulers.profile import Profile
from waystage.experiment.scheduling import Moment


class Conservative:
    """Keeps the promised start of each waiting job in `promised_s`."""

    def __init__(self) -> None:
        self.promised_s: dict[Any, float] = {}

    def choose(self, moment: Moment) -> Sequence[Any]:
        profile = Profile(moment.now_s, moment.nodes)
        for held in moment.running:
            profile.reserve(moment.now_s, held.expected_end_s, held.nodes)
        waiting = {job.job for job in moment.waiting}
        promised = {job: max(at, moment.now_s) for job, at in self.promised_s.items() if job in waiting}
        for job in moment.waiting:
            if job.job in promised:
                at = promised[job.job]
                profile.reserve(at, at + job.estimate_s, job.nodes)
        chosen = []
        for job in moment.waiting:
            if job.job in promised:
                at = promised[job.job]
                profile.release(at, at + job.estimate_s, job.nodes)
            at = profile.earliest(job.nodes, job.estimate_s)
            # A job that overran its estimate may have pushed the promise; it is never pushed by the plan itself.
            profile.reserve(at, at + job.estimate_s, job.nodes)
            promised[job.job] = at
            if at <= moment.now_s:
                chosen.append(job.job)
        self.promised_s = promised
        return chosen
