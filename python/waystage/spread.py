"""How host pairs are spread over the core switches.

Arrives: a topology, a seed, the core switches a class may use.
Leaves: host keys and path indexes of hosts and pairs, and the core switch of each path index.
Must not know: rules, labels, events, policies.

Both rule styles and every policy use these functions, so that what a policy counts is what the
switches do. A host has a **host key**, its index modulo `host_key_count`. A pair has a **path index**: by a seeded
table of source row and destination host key (`pair`, an ECMP hash as of RFC 2991), or by the destination's host key
alone (`destination`, D-mod-K). A path index has a core switch. The numbers of host keys, rows and path indexes are
bounded, so that tables built from them do not grow with hosts or pairs.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from typing import Literal

from waystage.topology import Topology

MAX_PATHS = 128
"""Path indexes and host keys fit in 7 bits of a label; core switches beyond 128 get no path index."""

MAX_COLUMNS = 16
MAX_ROWS = 12
"""The pair table has at most 12 x 16 cells, so at most 192 rules on an edge switch of any size."""


def path_count(cores: int) -> int:
    """Path indexes over `cores` core switches.

    Up to six cores, the smallest number that divides evenly among any number of the cores (1: 1,
    2: 2, 3: 6, 4: 12) or nearly so (5: 20, 6: 12); from there twice the cores, so that a class with
    an awkward number of cores is at most 2:1 uneven; from 16 on one a core.
    """
    exact = {0: 1, 1: 1, 2: 2, 3: 6, 4: 12, 5: 20, 6: 12}
    if cores in exact:
        return exact[cores]
    return 2 * cores if cores < 16 else min(cores, MAX_PATHS)


def host_key_count(cores: int) -> int:
    """Host keys: the smallest multiple of the path indexes that is at least 12, so that D-mod-K is exact."""
    paths = path_count(cores)
    return paths * -(-12 // paths)


def key_mask(cores: int) -> int:
    """The bits that a host key may have set."""
    return (1 << max(1, (host_key_count(cores) - 1).bit_length())) - 1


def column_count(cores: int) -> int:
    """Columns of the pair table: a host key's low four bits where there are more than 16 host keys."""
    return min(host_key_count(cores), MAX_COLUMNS)


def row_count(cores: int) -> int:
    """Rows of the pair table; fewer where there are more columns, to keep the table near 128 cells."""
    return MAX_ROWS if column_count(cores) <= MAX_ROWS else 8


@functools.lru_cache(maxsize=64)
def pair_table(cores: int, seed: int) -> tuple[tuple[int, ...], ...]:
    """`table[row][column]` is a path index. Every path index is there equally often, give or take one."""
    rows, columns, paths = row_count(cores), column_count(cores), path_count(cores)
    cells = [index % paths for index in range(rows * columns)]
    random.Random(f"waystage pair table {seed}").shuffle(cells)
    return tuple(tuple(cells[row * columns : (row + 1) * columns]) for row in range(rows))


def host_key(topology: Topology, host: str) -> int:
    return topology.host_index[host] % host_key_count(len(topology.core_switches))


def row(topology: Topology, host: str) -> int:
    return host_key(topology, host) % row_count(len(topology.core_switches))


def column(topology: Topology, host: str) -> int:
    return host_key(topology, host) % column_count(len(topology.core_switches))


def path_index(
    topology: Topology, src: str, dst: str, *, spread: Literal["pair", "destination"], seed: int = 0
) -> int:
    """The path index of the directed pair `src` to `dst`; `topology` is the full one, whatever is down."""
    host_keys = host_key(topology, src), host_key(topology, dst)
    return path_index_of_keys(len(topology.core_switches), *host_keys, spread=spread, seed=seed)


def path_index_of_keys(
    cores: int, src_key: int, dst_key: int, *, spread: Literal["pair", "destination"], seed: int = 0
) -> int:
    """The path index of every pair of hosts with these host keys."""
    if spread == "destination":
        return dst_key % path_count(cores)
    return pair_table(cores, seed)[src_key % row_count(cores)][dst_key % column_count(cores)]


def cores_of_paths(all_cores: Sequence[str], usable: Sequence[str]) -> tuple[str, ...]:
    """The core switch of each path index where only `usable` may be used; all of them where it is empty.

    A path index whose own core is usable keeps it, so that a change of plan moves no more traffic than it must; the
    path indexes that lose theirs are dealt to the usable ones in turn.
    """
    allowed = [core for core in all_cores if core in set(usable)] or list(all_cores)
    homes = [all_cores[index % len(all_cores)] for index in range(path_count(len(all_cores)))]
    kept = set(allowed)
    dealt = 0
    for index, home in enumerate(homes):
        if home not in kept:
            homes[index] = allowed[dealt % len(allowed)]
            dealt += 1
    return tuple(homes)


def core_of_pair(
    topology: Topology,
    src: str,
    dst: str,
    usable: Sequence[str] = (),
    *,
    spread: Literal["pair", "destination"] = "pair",
    seed: int = 0,
) -> str:
    """The core switch to which the pair's class, restricted to `usable`, gives the pair."""
    homes = cores_of_paths(topology.core_switches, usable)
    return homes[path_index(topology, src, dst, spread=spread, seed=seed)]
