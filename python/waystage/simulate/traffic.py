"""What the ranks of a job send to one another.

Arrives: a trace (a pattern file, or PFSim's archive), or the rule of a generated pattern.
Leaves: `Traffic`: bytes by pair of ranks, as a whole and by phase; and by pair of hosts once ranks are placed.
Must not know: topologies, routes, jobs.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from waystage.experiment.schema import GeneratedPattern
from waystage.patterns import Pattern, PatternError

U32 = NDArray[np.uint32]
F64 = NDArray[np.float64]

MOST_PAIRS = 1 << 24
"""Pairs of ranks of one job: four thousand ranks that all speak with all. More take several gigabytes."""

MOST_PHASES = 4096
"""Phases of a trace, each of which is a step of the job; the profiler itself writes no more than a thousand."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """`amount[i]` bytes from `src[i]` to `dst[i]`."""

    src: U32
    dst: U32
    amount: F64

    def __len__(self) -> int:
        return int(self.src.size)


@dataclass(frozen=True, eq=False)
class Traffic:
    """`total` is what the job sends in one iteration, `phases` the same in the order in which it is sent.

    `warning`: what a reader of the results should know of where they come from.
    """

    ranks: int
    total: Pairs
    phases: tuple[Pairs, ...]
    digest: str
    nodes: tuple[str, ...] = field(default=())
    warning: str = ""


def read_trace(path: Path) -> Traffic:
    """The traffic in a file. Raises PatternError."""
    pattern = Pattern.read(path)
    if pattern.phases > MOST_PHASES:
        raise PatternError(
            f"{path} has {pattern.phases:,} phases; at most {MOST_PHASES:,} are simulated: "
            "join them with `waystage pattern convert --phases change`"
        )
    if len(pattern.sent) > MOST_PAIRS:
        raise PatternError(
            f"{path} has {len(pattern.sent):,} rows; at most {MOST_PAIRS:,} are simulated: "
            "join its phases with `waystage pattern convert --phases one`"
        )
    # PFSim's greedy routers take equal pairs in the order of its archives.
    order = pattern.order if len(pattern.order) == pattern.ranks else None
    phases = (
        tuple(_pairs(pattern, order, phase) for phase in range(pattern.phases)) if pattern.phases > 1 else ()
    )
    total = _pairs(pattern, order, None)
    return Traffic(
        pattern.ranks,
        total,
        phases or (total,),
        _digest(pattern.ranks, phases or (total,)),
        pattern.nodes,
        pattern.differs,
    )


def pair_count(rule: GeneratedPattern) -> int:
    """How many pairs of ranks `generate` makes at most."""
    n = rule.ranks
    of_each = {"all-to-all": n - 1, "ring": 2, "grid": 4, "random": min(rule.partners, n - 1)}
    return n * of_each[rule.kind]


def generate(rule: GeneratedPattern) -> Traffic:
    """The traffic of a rule; the same rule gives the same."""
    n = rule.ranks
    if rule.kind == "all-to-all":
        src, dst = (a.ravel() for a in np.meshgrid(np.arange(n), np.arange(n), indexing="ij"))
        keep = src != dst
        pairs = [src[keep], dst[keep]]
    elif rule.kind == "ring":
        at = np.arange(n)
        pairs = [np.concatenate((at, at)), np.concatenate(((at + 1) % n, (at - 1) % n))]
    elif rule.kind == "grid":
        pairs = _grid(n)
    else:
        rng = random.Random(f"waystage random pattern {n} {rule.partners}")
        others = [
            [d if d < s else d + 1 for d in rng.sample(range(n - 1), min(rule.partners, n - 1))]
            for s in range(n)
        ]
        pairs = [
            np.repeat(np.arange(n), [len(o) for o in others]),
            np.array([d for o in others for d in o], dtype=np.int64),
        ]
    src, dst = _without_doubles(pairs[0], pairs[1], n)
    total = Pairs(
        src.astype(np.uint32), dst.astype(np.uint32), np.full(src.size, float(rule.bytes), dtype=np.float64)
    )
    return Traffic(n, total, (total,), _digest(n, (total,)))


def placed(pairs: Pairs, host_of: U32) -> Pairs:
    """The same between hosts, where rank r is on `host_of[r]`; a pair of hosts may be there several times."""
    return Pairs(host_of[pairs.src], host_of[pairs.dst], pairs.amount)


def merged(pairs: Pairs, hosts: int) -> Pairs:
    """Each pair of hosts once; what stays on one host is left out.

    Pairs come in the order in which they first occur, which is how PFSim breaks ties between equal amounts.
    """
    src, dst = pairs.src.astype(np.int64), pairs.dst.astype(np.int64)
    away = src != dst
    key, first, which = np.unique(src[away] * hosts + dst[away], return_index=True, return_inverse=True)
    amount = np.bincount(which, weights=pairs.amount[away], minlength=key.size).astype(np.float64)
    order = np.argsort(first, kind="stable")
    key = key[order]
    return Pairs((key // hosts).astype(np.uint32), (key % hosts).astype(np.uint32), amount[order])


def _pairs(pattern: Pattern, order: Sequence[int] | None, phase: int | None) -> Pairs:
    src, dst, _, amount = pattern.pairs(phase=phase)
    if order is not None:
        place = np.empty(pattern.ranks, dtype=np.int64)
        place[np.asarray(order)] = np.arange(pattern.ranks)
        rows = np.argsort(place[src], kind="stable")
        src, dst, amount = src[rows], dst[rows], amount[rows]
    return Pairs(src.astype(np.uint32), dst.astype(np.uint32), amount.astype(np.float64))


def _grid(n: int) -> list[NDArray[np.int64]]:
    """The four neighbours in the squarest grid of n ranks, wrapping around."""
    rows = max(d for d in range(1, int(n**0.5) + 1) if n % d == 0)
    columns = n // rows
    at = np.arange(n)
    y, x = at // columns, at % columns
    ends = [y * columns + (x + 1) % columns, y * columns + (x - 1) % columns]
    ends += [(y + 1) % rows * columns + x, (y - 1) % rows * columns + x]
    return [np.tile(at, 4), np.concatenate(ends)]


def _without_doubles(
    src: NDArray[np.int64], dst: NDArray[np.int64], n: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sorted, without repetition and without messages of a rank to itself."""
    key = np.unique((src * n + dst)[src != dst])
    return key // n, key % n


def _digest(ranks: int, phases: Sequence[Pairs]) -> str:
    digest = hashlib.sha256(str(ranks).encode())
    for phase in phases:
        for column in (phase.src, phase.dst, phase.amount):
            digest.update(column.tobytes())
        digest.update(b"|")
    return digest.hexdigest()
