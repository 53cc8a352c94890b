"""EASY backfilling: later jobs may go ahead where they do not delay the first.

Arrives: a `Moment`.
Leaves: the head of the queue while it fits, and later jobs that the head does not notice.
Must not know: how long jobs really take; only what they asked for.

Lifka (JSSPP 1995), as described by Mu'alem and Feitelson (IEEE TPDS 12(6), 2001): the head of the queue has a
reservation at the *shadow time*, when enough nodes will be free if all end as expected; the *extra nodes* are those
it leaves free then. A later job starts if it fits now and either ends before the shadow time or uses extra nodes only.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

from waystage.experiment.scheduling import Moment, Running, Waiting


class Easy:
    """Never delays the head of the queue, as long as jobs end within their estimates."""

    def choose(self, moment: Moment) -> Sequence[Any]:
        free = moment.free_nodes
        running = list(moment.running)
        waiting = list(moment.waiting)
        chosen: list[Any] = []
        while waiting and waiting[0].nodes <= free:
            head = waiting.pop(0)
            free -= head.nodes
            chosen.append(head.job)
            running.append(_as_running(head, moment.now_s))
        if not waiting:
            return chosen
        shadow_s, extra = _reservation(waiting[0], free, running)
        for job in waiting[1:]:
            if job.nodes > free:
                continue
            # A job of unknown length never ends before anything.
            if not (isfinite(job.estimate_s) and moment.now_s + job.estimate_s <= shadow_s):
                if job.nodes > extra:
                    continue
                extra -= job.nodes
            free -= job.nodes
            chosen.append(job.job)
        return chosen


def _reservation(head: Waiting, free: int, running: Sequence[Running]) -> tuple[float, int]:
    """When `head` will have its nodes, and how many it leaves free then."""
    ends = sorted(running, key=lambda job: job.expected_end_s)
    shadow_s = float("inf")
    for job in ends:
        # Jobs that end at the same moment free their nodes together.
        if job.expected_end_s > shadow_s:
            break
        free += job.nodes
        if free >= head.nodes:
            shadow_s = job.expected_end_s
    return shadow_s, free - head.nodes


def _as_running(job: Waiting, now_s: float) -> Running:
    return Running(job=job.job, nodes=job.nodes, started_s=now_s, expected_end_s=now_s + job.estimate_s)
