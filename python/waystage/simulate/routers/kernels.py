"""The routers of the compiled module (crates/flowsim).

Arrives: options from the experiment file.
Leaves: the kernel's name with checked options; ValueError names a wrong option and what it takes.
Must not know: hosts, links, loads: the kernel sees them.

`by_capacity` compares loads in seconds at a link's rate instead of in bytes, as PFSim does.
"""

from __future__ import annotations

import math
from typing import Any

from waystage.simulate.algorithms import KernelRouter

MAX_EFFORT = 100
"""A hundred times the kernel's own search effort; a larger value is a typing error."""

MAX_CANDIDATES = 64


def d_mod_k() -> KernelRouter:
    """Destination modulo K: a static spread by the destination's number (Zahavi et al., 2010), as PFSim implements it.

    At each hop the candidate switches are sorted by name, and the destination's position among the hosts selects one.
    """
    return KernelRouter("d-mod-k")


def s_mod_k() -> KernelRouter:
    """Source modulo K: as D-mod-K, by the position of the source."""
    return KernelRouter("s-mod-k")


def random() -> KernelRouter:
    """A random shortest path, drawn once for each pair in a run; all paths are equally likely."""
    return KernelRouter("random")


def ecmp() -> KernelRouter:
    """Equal-cost multi-path (RFC 2991, RFC 2992): a hash of the pair selects a link at each switch."""
    return KernelRouter("ecmp-hash")


def greedy_sum(by_capacity: bool = False) -> KernelRouter:
    """The heaviest pair first, on the path whose links carry least in sum: PFSim's `GreedyRouter`."""
    return KernelRouter("greedy-sum", sees_loads=True, options=_by_capacity(by_capacity))


def greedy_max(by_capacity: bool = False) -> KernelRouter:
    """The heaviest pair first, on the path whose busiest link carries least: PFSim's `GreedyRouter2`, dynamic routing."""
    return KernelRouter("greedy-max", sees_loads=True, options=_by_capacity(by_capacity))


def adaptive_minimal(by_capacity: bool = False) -> KernelRouter:
    """At each switch the least loaded link towards the destination (Dally and Towles 2004, section 10.2)."""
    return KernelRouter("adaptive-minimal", sees_loads=True, options=_by_capacity(by_capacity))


def joint(effort: float = 1.0, by_capacity: bool = False) -> KernelRouter:
    """All pairs together, minimising the load of the busiest link; `effort` scales the time spent on the search."""
    if isinstance(effort, bool) or not isinstance(effort, int | float) or not math.isfinite(effort):
        raise ValueError(f"effort: {effort!r} is no number: give one from 0 to {MAX_EFFORT}")
    if not 0 <= effort <= MAX_EFFORT:
        raise ValueError(f"effort: {effort} is not from 0 to {MAX_EFFORT}")
    options = {"effort": float(effort), **_by_capacity(by_capacity)}
    return KernelRouter("joint", sees_loads=True, options=options)


def valiant() -> KernelRouter:
    """Each pair through a random intermediate switch (Valiant and Brebner, STOC 1981)."""
    return KernelRouter("valiant", minimal=False)


def ugal_l(candidates: int = 2, by_capacity: bool = False) -> KernelRouter:
    """The shortest or Valiant path with less hops times load of the first link (Singh 2005; Kim et al., ISCA 2008).

    `candidates` paths of each sort are compared: two, as in Cray Aries.
    """
    return _ugal("ugal-l", candidates, by_capacity)


def ugal_g(candidates: int = 2, by_capacity: bool = False) -> KernelRouter:
    """As UGAL-L, with the load of the busiest link of each path: global knowledge, which no switch has."""
    return _ugal("ugal-g", candidates, by_capacity)


def _ugal(kernel: str, candidates: object, by_capacity: object) -> KernelRouter:
    if (
        isinstance(candidates, bool)
        or not isinstance(candidates, int)
        or not 1 <= candidates <= MAX_CANDIDATES
    ):
        raise ValueError(f"candidates: {candidates!r} is not a whole number from 1 to {MAX_CANDIDATES}")
    options = {"candidates": candidates, **_by_capacity(by_capacity)}
    return KernelRouter(kernel, sees_loads=True, minimal=False, options=options)


def _by_capacity(value: object) -> dict[str, Any]:
    if not isinstance(value, bool):
        raise ValueError(f"by_capacity: {value!r} is neither true nor false")
    return {"by_capacity": value}
