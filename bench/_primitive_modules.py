"""A user's primitive module for `bench primitives`: changes places when a job starts, and back when it ends."""

from __future__ import annotations

from collections.abc import Sequence

from waystage.policies.primitives.base import Packets
from waystage.state import State


class Swapping:
    """Core switch number `first` while no job runs; the next one while one does."""

    def __init__(self, first: int = 0) -> None:
        self._first = first

    def __call__(self, packets: Packets, state: State) -> Sequence[str]:
        cores = state.topology.core_switches if state.topology is not None else ()
        return (cores[(self._first + bool(state.jobs)) % len(cores)],) if cores else ()
