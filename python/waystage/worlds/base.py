"""What a world is: a place in which one experiment file runs.

Arrives: a validated experiment and the policies to compare.
Leaves: results in one schema, whichever world ran it.
Must not know: how any one world works.

`sim` moves flows without bytes, `lab` moves bytes on an emulated cluster, `cluster` on the real one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from waystage.experiment.results import RunResult
from waystage.experiment.schema import Experiment

Progress = Callable[[str, float], None]
"""Called with what is being done and the share of the whole that is done, 0 to 1."""


class WorldError(RuntimeError):
    """A world that cannot run the experiment here; the message says what is missing and how to get it."""


class Unfit(WorldError):
    """The experiment asks for what this world cannot do; the message says what to change in its file."""


class World(Protocol):
    """`run` must leave nothing behind, also when it raises or is interrupted."""

    name: str

    def run(self, experiment: Experiment, out: Path, progress: Progress) -> RunResult: ...
