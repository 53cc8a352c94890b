"""The contention curve of a storage target: what x loaders get from it, and how many get most.

Arrives: g as points (loaders, slowdown). Leaves: totals, numbers of loaders.
Must not know: file systems, flows, jobs.

With x loaders on a target each gets a g(x)-th of what one alone gets, all together x / g(x) of it (Kim et al.,
"SwiftLoad", section III.A). Their best number is where x / g(x) is largest (algorithm 1).
"""

from __future__ import annotations

import functools
import itertools

Slowdown = tuple[tuple[float, float], ...]

UNKNOWN: Slowdown = ((1.0, 1.0), (2.0, 2.0))
"""Without a measurement a target gives the same total to any number of loaders."""

MOST_LOADERS = 4096
"""On one target; Lustre's servers have at most 512 threads, and a curve past that is a guess."""


def slowdown_at(slowdown: Slowdown, loaders: float) -> float:
    """g at that number of loaders: linear between the points, past the last as steep as before it; at least 1."""
    points = slowdown if slowdown and slowdown[0][0] <= 1 else ((1.0, 1.0), *slowdown)
    if len(points) == 1:
        points = (*points, (2 * points[0][0], 2 * points[0][1]))  # as UNKNOWN: the same total for any number
    for (x0, g0), (x1, g1) in itertools.pairwise(points):
        if loaders <= x1 or (x1, g1) == points[-1]:
            return max(1.0, g0 + (g1 - g0) * (max(loaders, x0) - x0) / (x1 - x0))
    raise AssertionError("the last pair of points takes every number")


def total_at(slowdown: Slowdown, loaders: float) -> float:
    """x / g(x): what `loaders` get together, in units of what one alone gets."""
    return loaders / slowdown_at(slowdown, loaders)


@functools.lru_cache(maxsize=256)
def best_loaders(slowdown: Slowdown, most: int = MOST_LOADERS) -> int:
    """The smallest number of loaders, up to `most`, at which x / g(x) is largest to 1 in 1000."""
    # x / g(x) of a piecewise linear g is monotonic between its points: only these, and the ends, can be the best.
    ends = {1, most} | {min(most, max(1, round(x))) for x, _ in slowdown}
    reached = max(total_at(slowdown, x) for x in ends)
    low, high = 1, min(x for x in ends if total_at(slowdown, x) >= reached * 0.999)
    while low < high:
        middle = (low + high) // 2
        if total_at(slowdown, middle) >= reached * 0.999:
            high = middle
        else:
            low = middle + 1
    return high


@functools.lru_cache(maxsize=256)
def table(slowdown: Slowdown, one_loader: float) -> list[tuple[float, float]]:
    """Points (loaders, total) for a resource of the flow clock, `one_loader` being what one alone gets.

    Callers must not change it.
    """
    loaders: list[float] = [float(x) for x in range(1, 65)]
    while loaders[-1] < MOST_LOADERS:
        loaders.append(float(round(loaders[-1] * 1.1)))
    return [(x, one_loader * total_at(slowdown, x)) for x in loaders]
