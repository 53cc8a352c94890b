"""`primitive-paths`: a module for each MPI primitive decides which core switches its packets use.

Arrives: events and the state. Leaves: the plan of a base policy, with core switches for the tagged packets of primitives.
Must not know: MPI, tags, rules, worlds.

Packets carry their primitive (`waystage mpi --tags`), so that a switch-over from one primitive to the next is in step
with the program: each packet goes by the tag of the message it carries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from waystage.events import Action, AssignPaths, Event, RuleStyle
from waystage.forecast.primitives import PRIMITIVES
from waystage.policies.base import Policy, PolicyError
from waystage.policies.members import acts_on, build
from waystage.policies.primitives.base import Packets, PrimitiveModule, load_module
from waystage.state import State

MOST = 24
"""Modules: there are not many more primitives."""


class PrimitivePaths:
    """`modules` are mappings of `primitive`, `module` and `options`; `base` decides for all other traffic."""

    name = "primitive-paths"
    acts_on = frozenset({"paths"})

    def __init__(
        self, modules: object = (), base: object = "ecmp", style: RuleStyle = "labelled", seed: int = 0
    ) -> None:
        if style != "labelled":
            raise ValueError(f"style {style!r}: switches read tags in style labelled only")
        self._base: Policy = build(base, {"style": style, "seed": seed})
        if acts_on(self._base) != frozenset({"paths"}):
            raise ValueError(f"base {self._base.name}: name a policy that acts on paths alone, such as ecmp")
        if isinstance(modules, str) or not isinstance(modules, Sequence) or not 1 <= len(modules) <= MOST:
            raise ValueError(f"modules: give a list of 1 to {MOST} mappings of primitive, module and options")
        self._modules: dict[str, PrimitiveModule] = {}
        for entry in modules:
            primitive, module = _built(entry)
            if primitive in self._modules:
                raise ValueError(f"modules: {primitive} has two, and its packets have one path")
            self._modules[primitive] = module

    def __call__(self, event: Event, state: State) -> Sequence[Action]:
        requested = state.requested
        plain = None if requested is None else msgspec.structs.replace(requested, primitives={})
        asked = self._base(event, msgspec.structs.replace(state, requested=plain))
        plan = next((action.plan for action in asked if isinstance(action, AssignPaths)), plain)
        topology, live = state.topology, state.live_topology
        if plan is None or topology is None or live is None or plan.style != "labelled":
            return asked
        up = {switch.name for switch in live.switches}
        cores = tuple(core for core in topology.core_switches if core in up)
        primitives: dict[str, tuple[str, ...]] = {}
        for primitive, module in self._modules.items():
            chosen = tuple(module(Packets(primitive=primitive, cores=cores, event=event), state))
            if unknown := set(chosen) - set(topology.core_switches):
                raise ValueError(
                    f"the module of {primitive} names {ascii(min(unknown))[:40]}, no core switch"
                )
            if chosen:
                primitives[primitive] = chosen
        new = msgspec.structs.replace(plan, primitives=primitives)
        return () if new == requested else (AssignPaths(plan=new),)


def _built(entry: object) -> tuple[str, PrimitiveModule]:
    if not isinstance(entry, Mapping) or not {"primitive", "module"} <= set(entry) <= {
        "primitive",
        "module",
        "options",
    }:
        raise ValueError(f"{entry!r}: give a mapping of primitive, module and options")
    primitive, module, options = entry["primitive"], entry["module"], entry.get("options") or {}
    if not isinstance(primitive, str) or not isinstance(module, str) or not isinstance(options, Mapping):
        raise ValueError(f"{entry!r}: primitive and module are names, options a mapping")
    if primitive not in PRIMITIVES:
        raise ValueError(f"{primitive!r} is no primitive: use one of {', '.join(PRIMITIVES)}")
    try:
        return primitive, load_module(module, options)
    except PolicyError as error:
        raise ValueError(str(error)) from None
