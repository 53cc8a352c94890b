"""What a simulated job can wait for.

Arrives: nothing.
Leaves: the values that its generator yields.
Must not know: jobs, time, flows.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

import msgspec

from waystage.worlds.sim.programs import Program
from waystage.worlds.sim.resources import Flow


class Pause(msgspec.Struct, frozen=True):
    """Wait for `seconds`."""

    seconds: float


class Run(msgspec.Struct, frozen=True):
    """Wait until every program has ended, at most `limit_s`; the answer is whether they have.

    `ended` is called with the index of each at its end.
    """

    programs: tuple[Program | Flow, ...]
    limit_s: float
    ended: Callable[[int], None] | None = None


class Await(msgspec.Struct, frozen=True):
    """Wait until what is given to `register` is called, which may be at once."""

    register: Callable[[Callable[[], None]], None]


Waits = Generator[Pause | Run | Await, bool, None]
