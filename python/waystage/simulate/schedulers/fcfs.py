"""First come, first served.

Arrives: a `Moment`.
Leaves: the jobs at the head of the queue that fit, one after the other.
Must not know: how long jobs take.

A job that does not fit holds back those behind it. Every job that fits after an end starts; PFSim's own started one.
"""

from __future__ import annotations

from collections.abc import Sequence

from waystage.simulate.algorithms import Moment


class Fcfs:
    """Strict order of arrival."""

    def choose(self, moment: Moment) -> Sequence[int]:
        free, chosen = moment.free_nodes, []
        for job in moment.waiting:
            if job.nodes > free:
                break
            free -= job.nodes
            chosen.append(job.job)
        if not chosen and moment.waiting and moment.waiting[0].ranks <= moment.free_slots:
            # Among hosts of different sizes fewer than `nodes` may do, if they are the large ones.
            chosen.append(moment.waiting[0].job)
        return chosen
