"""`foresee` with its decisions timed, for the benchmark of that name. The policy itself reads no clock."""

from __future__ import annotations

import time
from collections.abc import Sequence

from waystage.events import Action, Event
from waystage.policies.foresee import DECISIONS, Foresee
from waystage.state import State

SECONDS: list[float] = []
"""Of each event at which the policy decides, in order."""


class Timed(Foresee):
    """Answers as `foresee` does."""

    def __call__(self, event: Event, state: State) -> Sequence[Action]:
        began = time.perf_counter()
        answer = super().__call__(event, state)
        if isinstance(event, DECISIONS) or answer:
            SECONDS.append(time.perf_counter() - began)
        return answer
