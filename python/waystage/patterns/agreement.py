"""Whether receivers' counts agree with senders'.

Arrives: traffic sent and received, by pair of ranks and kind.
Leaves: one sentence where they differ by more than a message in flight explains, else none.
Must not know: files, what is done with the pattern.

Every byte is counted twice, by the rank that sends it and by the rank that receives it. Where the two differ, ranks
were lost or a count is wrong, and the pattern is no ground for a simulation.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from waystage.patterns.data import Traffic
from waystage.patterns.kinds import Kind

TOLERANCE = 0.01
"""Share of the bytes; receives that a program cancels, or never posts before it ends, stay far below."""

F64 = NDArray[np.float64]


def disagreement(
    sent: Traffic, received: Traffic, kinds: Iterable[Kind], ranks: int, silent: Iterable[int]
) -> str | None:
    """The sentence; `silent` are ranks without a file or without counted receives."""
    if not len(received):
        return None
    both = np.intersect1d(np.unique(sent.kind), np.unique(received.kind))
    compared = both[np.isin(both, [k.number for k in kinds if not k.protocol and not k.pulled])]
    without = np.zeros(ranks, dtype=bool)
    without[list(silent)] = True
    out, into = (_by_pair(t, compared, without, ranks) for t in (sent, received))
    pairs = np.union1d(out[0], into[0])
    left, right = _at(pairs, *out), _at(pairs, *into)
    whole = float(np.maximum(left, right).sum())
    apart = float(np.abs(left - right).sum())
    if apart <= TOLERANCE * whole:
        return None
    worst = int(np.argmax(np.abs(left - right)))
    src, dst = divmod(int(pairs[worst]), ranks)
    return (
        f"senders counted {left.sum():,.0f} bytes and receivers {right.sum():,.0f}; the counts of "
        f"{np.count_nonzero(left != right):,} of {pairs.size:,} pairs of ranks differ, by {apart / whole:.0%} of "
        f"the bytes, most from rank {src} to rank {dst} ({left[worst]:,.0f} sent, {right[worst]:,.0f} received): "
        "what was sent is taken; profile the program again"
    )


def _by_pair(
    traffic: Traffic, kinds: NDArray[np.uint32], without: NDArray[np.bool_], ranks: int
) -> tuple[NDArray[np.int64], F64]:
    keep = np.isin(traffic.kind, kinds) & ~without[traffic.src] & ~without[traffic.dst]
    key = traffic.src[keep].astype(np.int64) * ranks + traffic.dst[keep]
    pairs, which = np.unique(key, return_inverse=True)
    amounts = traffic.bytes[keep].astype(np.float64)
    return pairs, np.bincount(which, weights=amounts, minlength=pairs.size).astype(np.float64)


def _at(pairs: NDArray[np.int64], known: NDArray[np.int64], amounts: F64) -> F64:
    found = np.zeros(pairs.size)
    found[np.searchsorted(pairs, known)] = amounts
    return found
