"""`foresee` with its decisions timed, for the benchmark of that name. The policy itself reads no clock."""

from __future__ import annotations

import time
from collections.abc import Sequence

from waystage.events import Action, Event
from waystage.policies.foresee import DECISIONS, Foresee
from waystage.state import State

WALL_S: list[float] = []
CPU_S: list[float] = []
"""Of each event at which the policy decides, in order: wall-clock, and of its thread alone."""


def clear() -> None:
    WALL_S.clear()
    CPU_S.clear()


class Timed(Foresee):
    """Answers as `foresee` does."""

    def __call__(self, event: Event, state: State) -> Sequence[Action]:
        began, began_cpu = time.perf_counter(), time.thread_time()
        answer = super().__call__(event, state)
        if isinstance(event, DECISIONS) or answer:
            WALL_S.append(time.perf_counter() - began)
            CPU_S.append(time.thread_time() - began_cpu)
        return answer
