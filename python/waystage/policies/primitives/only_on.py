"""`only-on`: a primitive's packets on one core switch, as in UnisonFlow's check (chapter 4 of the dissertation).

Arrives: a primitive's packets. Leaves: the core switch of the options, while it is up.
Must not know: other primitives.
"""

from __future__ import annotations

from collections.abc import Sequence

from waystage.policies.primitives.base import Packets
from waystage.state import State


class OnlyOn:
    """`core` is the name of a core switch, or its number in the topology from 0 on."""

    def __init__(self, core: str | int = 0) -> None:
        if isinstance(core, bool) or not isinstance(core, str | int) or (isinstance(core, int) and core < 0):
            raise ValueError(f"core {core!r}: give the name of a core switch, or its number from 0 on")
        self._core = core

    def __call__(self, packets: Packets, state: State) -> Sequence[str]:
        topology = state.topology
        if topology is None:
            return ()
        core = self._core
        if isinstance(core, int):
            if core >= len(topology.core_switches):
                raise ValueError(f"core {core}: the topology has {len(topology.core_switches)} core switches")
            core = topology.core_switches[core]
        elif core not in topology.core_switches:
            raise ValueError(f"core {core!r} is none of {', '.join(topology.core_switches)}")
        return (core,) if core in packets.cores else ()
