"""First come, first served.

Arrives: a `Moment`.
Leaves: the jobs at the head of the queue that fit, one after the other.
Must not know: how long jobs take.

No backfilling: a job that does not fit blocks those behind it. Every job that fits after an end starts; PFSim started one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from waystage.experiment.scheduling import Moment


class Fcfs:
    """Strict order of arrival, at most `concurrent` jobs at once (None: as many as fit)."""

    def __init__(self, concurrent: int | None = None) -> None:
        if concurrent is not None and (type(concurrent) is not int or concurrent < 1):
            raise ValueError(f"concurrent: {concurrent!r} is not a whole number above zero")
        self._concurrent = concurrent

    def choose(self, moment: Moment) -> Sequence[Any]:
        left = len(moment.waiting) if self._concurrent is None else self._concurrent - len(moment.running)
        free, chosen = moment.free_nodes, []
        for job in moment.waiting[: max(0, left)]:
            if job.nodes > free:
                break
            free -= job.nodes
            chosen.append(job.job)
        if not chosen and left > 0 and moment.waiting and moment.waiting[0].ranks <= moment.free_slots:
            # Among hosts of different sizes fewer than `nodes` may do, if they are the large ones.
            chosen.append(moment.waiting[0].job)
        return chosen
