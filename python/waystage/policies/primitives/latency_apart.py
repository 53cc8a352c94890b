"""`latency-apart`: primitives with short messages on other core switches than those with long ones.

Arrives: a primitive's packets, the collectives that programs have declared. Leaves: its core switches.
Must not know: other modules.

A barrier or an allreduce of a few numbers waits in the queues that a broadcast of megabytes fills. The last core switches
are kept for primitives that move at most `short_bytes` a call in every running program; longer ones use the others.
"""

from __future__ import annotations

from collections.abc import Sequence

from waystage.policies.primitives.base import Packets
from waystage.state import State

ALWAYS_SHORT = frozenset({"barrier"})


class LatencyApart:
    """`kept` core switches for short messages. A primitive that no program has declared stays where it is."""

    def __init__(self, short_bytes: int = 16384, kept: int = 1) -> None:
        if kept < 1 or short_bytes < 1:
            raise ValueError(f"kept {kept}, short_bytes {short_bytes}: give numbers from 1 on")
        self._short_bytes, self._kept = short_bytes, kept

    def __call__(self, packets: Packets, state: State) -> Sequence[str]:
        kept = min(self._kept, len(packets.cores) - 1)
        if kept < 1:
            return ()
        sizes = [
            one.bytes
            for program in state.mpi.programs.values()
            for one in program.collectives.values()
            if one.primitive == packets.primitive
        ]
        if packets.primitive in ALWAYS_SHORT or (sizes and max(sizes) <= self._short_bytes):
            return packets.cores[-kept:]
        return packets.cores[:-kept] if sizes else ()
