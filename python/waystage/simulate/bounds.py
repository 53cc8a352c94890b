"""What no routing could have reached with the same jobs on the same hosts.

Arrives: a cluster, what its hosts sent to one another.
Leaves: bytes that the busiest link between switches carries at least.
Must not know: which router was used, time.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from waystage.simulate.cluster import Cluster
from waystage.simulate.traffic import Pairs, merged

EFFORT = 0.3
"""Of the compiled search: a tenth of a second, after which the bound moves in its third digit."""

MOST_KEPT = 64
"""Bounds kept: combinations that differ in the router alone have the same."""

_kept: OrderedDict[tuple[str, bool, bytes], float] = OrderedDict()


def lower_bound(cluster: Cluster, sent: Sequence[Pairs], *, shortest: bool) -> float:
    """Over shortest paths only, or over all paths; any split of a pair is allowed."""
    pairs = joined(sent, len(cluster.hosts))
    if not len(pairs):
        return 0.0
    digest = hashlib.sha256()
    for column in (pairs.src, pairs.dst, pairs.amount):
        digest.update(column.tobytes())
    key = (cluster.digest, shortest, digest.digest())
    if key not in _kept:
        network = cluster.network
        if shortest:
            found, _, _ = network.splittable_bound(pairs.src, pairs.dst, pairs.amount, effort=EFFORT)
        else:
            found = network.any_path_bound(pairs.src, pairs.dst, pairs.amount, effort=EFFORT)
        _kept[key] = float(found)
        if len(_kept) > MOST_KEPT:
            _kept.popitem(last=False)
    return _kept[key]


def joined(sent: Sequence[Pairs], hosts: int) -> Pairs:
    """Each pair of hosts once."""
    if not sent:
        return Pairs(np.zeros(0, dtype=np.uint32), np.zeros(0, dtype=np.uint32), np.zeros(0))
    return merged(
        Pairs(
            np.concatenate([pairs.src for pairs in sent]),
            np.concatenate([pairs.dst for pairs in sent]),
            np.concatenate([pairs.amount for pairs in sent]),
        ),
        hosts,
    )
