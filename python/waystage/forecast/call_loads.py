"""What the steps of a collective put on links between switches, when ranks do not keep step.

Arrives: the bytes of each pair of hosts, step by step; the numbers of the links that each pair uses.
Leaves: the bytes that each pair's message meets on its links.
Must not know: paths, programs, policies, capacities.

A rank that has its data begins the next step while others are still in this one, so that a part of a neighbouring
step's messages meets this one's. Messages with the same source or destination do not meet: that host sends or
receives them one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Pair = tuple[str, str]
Floats = NDArray[np.float64]
Indexes = NDArray[np.intp]

SKEW = 0.25
"""Part of a step's messages that is on its way while a neighbouring step is: one rank in four is ahead."""

MOST_CELLS = 4_000_000
"""Steps times links times hosts; with more, ranks are taken to keep step."""


class CallLoads:
    """Loads of `steps` over links 0 to `links - 1`; link `links` stands for none.

    `ways` has shape (pairs, hops), padded with `links`: pairs in the order of `pairs`.
    """

    def __init__(self, steps: Sequence[Mapping[Pair, float]], links: int) -> None:
        self.pairs: tuple[Pair, ...] = tuple(dict.fromkeys(pair for step in steps for pair in step))
        hosts = {
            host: n for n, host in enumerate(dict.fromkeys(host for pair in self.pairs for host in pair))
        }
        self._src = np.array([hosts[src] for src, _ in self.pairs], dtype=np.intp)
        self._dst = np.array([hosts[dst] for _, dst in self.pairs], dtype=np.intp)
        count, self._links = len(steps), links
        # One empty step before the first and after the last.
        self.bytes: Floats = np.zeros((count + 2, len(self.pairs)))
        for at, step in enumerate(steps, start=1):
            self.bytes[at] = [step.get(pair, 0.0) for pair in self.pairs]
        self._skew = SKEW if (count + 2) * (links + 1) * len(hosts) <= MOST_CELLS else 0.0
        self._hosts = len(hosts) if self._skew else 0
        self._total: Floats = np.zeros((count + 2, links + 1))
        self._by_src: Floats = np.zeros((count + 2, links + 1, self._hosts))
        self._by_dst: Floats = np.zeros((count + 2, links + 1, self._hosts))

    def fill(self, ways: Indexes) -> None:
        """Put every pair on its links."""
        over = ways.ravel()
        src, dst = (np.repeat(ends, ways.shape[1]) for ends in (self._src, self._dst))
        shape, hosts = self._by_src.shape[1:], self._hosts
        for at in range(1, len(self.bytes) - 1):
            size = np.repeat(self.bytes[at], ways.shape[1])
            self._total[at] = np.bincount(over, size, self._links + 1)
            if hosts:
                cells = shape[0] * hosts
                self._by_src[at] = np.bincount(over * hosts + src, size, cells).reshape(shape)
                self._by_dst[at] = np.bincount(over * hosts + dst, size, cells).reshape(shape)

    def met(self, ways: Indexes) -> Floats:
        """Bytes on each link of each pair in each step, shape (steps, pairs, hops); 0 where the pair has none."""
        alone = self.bytes[:, :, None]
        here = self._total[:, ways]
        found = here[1:-1]
        if self._skew:
            src, dst = self._src[:, None], self._dst[:, None]
            drift = here - self._by_src[:, ways, src] - self._by_dst[:, ways, dst] + alone
            found = found + self._skew * np.maximum(np.maximum(drift[:-2], drift[2:]), 0.0)
        return np.where((alone[1:-1] > 0) & (ways < self._links), found, 0.0)

    def move(self, pair: int, over: Indexes, sign: float) -> None:
        """Put a pair on the links of `over`, shape (hops,), or with `sign` -1 take it off."""
        size = sign * self.bytes[:, pair, None]
        self._total[:, over] += size
        if self._skew:
            self._by_src[:, over, self._src[pair]] += size
            self._by_dst[:, over, self._dst[pair]] += size

    def would_meet(self, pair: int, ways: Indexes) -> Floats:
        """The same as `met` for a pair that is on no link, over `ways` of shape (choices, hops)."""
        alone = self.bytes[1:-1, pair, None, None]
        here = self._total[:, ways]
        found = here[1:-1] + alone
        if self._skew:
            drift = here - self._by_src[:, ways, self._src[pair]] - self._by_dst[:, ways, self._dst[pair]]
            found = found + self._skew * np.maximum(np.maximum(drift[:-2], drift[2:]), 0.0)
        return np.where((alone > 0) & (ways < self._links), found, 0.0)
