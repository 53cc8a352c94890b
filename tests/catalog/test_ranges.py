"""How ranges that wait are shared out among workers."""

from __future__ import annotations

import heapq

import pytest

from waystage.catalog.ranges import LEAST_COST, Range, Waiting

FILE_COST = 128 << 10
"""Of a file of 64 KiB with its metadata."""


@pytest.mark.parametrize("threads", [1, 4, 16])
@pytest.mark.parametrize("files", [1000, 1100, 10_000])
def test_workers_end_at_about_the_same_time(files: int, threads: int) -> None:
    """Also where each already has its next task, as the engine hands them out."""
    waiting = Waiting()
    each = LEAST_COST // FILE_COST
    waiting.add(
        Range(0, 0, first, end, float(FILE_COST * (end - first)))
        for first in range(0, files, each)
        for end in [min(first + each, files)]
    )
    given = 0
    workers = [(0.0, number) for number in range(2 * threads)]  # One task in progress, one in line for each.
    busy = dict.fromkeys(range(threads), 0.0)
    while workers:
        _, number = heapq.heappop(workers)
        taken = waiting.take(threads, is_wanted=True)
        if not taken:
            continue
        cost = sum(of.cost for of in taken)
        given += sum(of.end - of.first for of in taken)
        worker = number % threads
        began = busy[worker]
        busy[worker] = began + cost
        heapq.heappush(workers, (busy[worker], number))
    assert given == files
    mean = sum(busy.values()) / threads
    assert max(busy.values()) <= 1.05 * mean
