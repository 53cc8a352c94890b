"""The interface of primitive modules, and how they are found by name.

Arrives: the name of a module, options.
Leaves: a module: a pure function of a primitive's packets and the state.
Must not know: rules, tags, switches, worlds.

After UnisonFlow (chapter 4 of the dissertation): a module for each MPI primitive decides how its packets are treated.
There, it is called for the first packet that matches no rule; here, for each event, before packets come.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from waystage.events import Event
from waystage.policies.base import PolicyError, load_part
from waystage.state import State


class Packets(msgspec.Struct, frozen=True, kw_only=True):
    """All tagged packets of a primitive: `cores` are the core switches that are up, in the topology's order."""

    primitive: str
    cores: tuple[str, ...]
    event: Event


PrimitiveModule = Callable[[Packets, State], Sequence[str]]
"""The core switches that the packets may use; empty: those of other MPI traffic. Pure, as a policy is."""

SHIPPED: Mapping[str, str] = {
    "null": "waystage.policies.primitives.null:Null",
    "only-on": "waystage.policies.primitives.only_on:OnlyOn",
    "latency-apart": "waystage.policies.primitives.latency_apart:LatencyApart",
}


def load_module(name: str, options: Mapping[str, Any]) -> PrimitiveModule:
    """A module by shipped name or `module:Class`. Raises PolicyError."""
    module: PrimitiveModule = load_part("primitive module", name, SHIPPED, options)
    if not callable(module):
        raise PolicyError(f"primitive module {name!r} needs to be callable as (packets, state)")
    return module
