"""Actions: what policies answer.

Arrives: a policy's decision.
Leaves: typed structs.
Must not know: actuators.
"""

from __future__ import annotations

import msgspec

from waystage.events.base import Action, RuleStyle, Spread, TrafficClass


class PairPath(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One directed path, source host first, destination host last; `traffic` None for every class."""

    path: tuple[str, ...]
    traffic: TrafficClass | None = None


Placement = dict[TrafficClass, dict[str, tuple[str, ...]]]
"""class -> edge switch -> core switch of each path index."""


Steered = dict[str, dict[str, str]]
"""source host -> destination host -> core switch."""

Primitives = dict[str, tuple[str, ...]]
"""MPI primitive, such as `bcast` -> core switches."""


class MulticastTree(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Copies what one of `hosts` sends to its group to all others, over the tree of `core`. Made for program `app`."""

    app: str
    hosts: tuple[str, ...]
    core: str


MAX_MULTICAST = 256
"""Trees of a plan: a switch holds two groups and a few rules for each."""

MAX_STEERED = 256
"""Pairs steered at one edge switch: two thirds of the rules that its table of path indexes may have."""


class PathPlan(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How traffic crosses the interconnect: the complete plan, not a change, so that applying it is idempotent.

    `labelled`: every class may use the core switches in `cores[class]` (all, where absent); a
    host pair is spread over them by `spread` (`pair`: a seeded hash of source and destination;
    `destination`: the destination's index, D-mod-K). `placed` overrides the core switch of each path index, by class
    and ingress edge switch; a core switch that the class may not use, or that is down, is ignored.
    `steered` gives single pairs of class `mpi` another core switch than their path index has, at most MAX_STEERED an edge
    switch; one that the class may not use, or over which the way is longer, is ignored.
    `primitives` lets the tagged packets of an MPI primitive use these core switches and no others, steered pairs too;
    where none of them is up, or the topology leaves no room for tags, they go as other packets of class `mpi`.
    `multicast` are trees by number, which gives the group's address; those whose core switch is down have no rules.
    `per-pair`: the paths are listed: `base_pairs` are permanent, `pairs` override them by priority.
    """

    style: RuleStyle = "labelled"
    spread: Spread = "pair"
    seed: int = 0
    separated: bool = False
    cores: dict[TrafficClass, tuple[str, ...]] = {}
    placed: Placement = {}
    steered: Steered = {}
    primitives: Primitives = {}
    multicast: dict[int, MulticastTree] = {}
    base_pairs: tuple[PairPath, ...] = ()
    pairs: tuple[PairPath, ...] = ()


class AssignPaths(Action, frozen=True, kw_only=True):
    plan: PathPlan


class SetRate(Action, frozen=True, kw_only=True):
    """Limit a flow to `rate_bps` bit/s; None lifts the limit. A user's own limit holds beside it."""

    flow_id: str
    rate_bps: int | None


class SetMode(Action, frozen=True, kw_only=True):
    """Let a wide-area flow go on in `mode` (docs/reference/wide-area-modes.md); None for the user's."""

    flow_id: str
    mode: str | None


class SetLoaders(Action, frozen=True, kw_only=True):
    """Let a flow read with `loaders` readers for each storage target; None for the engine's own number."""

    flow_id: str
    loaders: int | None


class Pause(Action, frozen=True, kw_only=True):
    flow_id: str


class Resume(Action, frozen=True, kw_only=True):
    flow_id: str


FlowAction = SetRate | SetMode | SetLoaders | Pause | Resume


class SetServerMap(Action, frozen=True, kw_only=True):
    """Let an application use these aggregators from its next control point on; empty: all that are offered."""

    app: str
    aggregators: tuple[str, ...]


class GrantIo(Action, frozen=True, kw_only=True):
    """Let an application's next operation go on with this weight, or with 0 wait, until `until_ns` (time since 1970).

    A lease: past `until_ns` the application goes on as it likes. `until_ns` of 0: no grant is needed from now on.
    """

    app: str
    weight: float
    until_ns: int


IoAction = SetServerMap | GrantIo
