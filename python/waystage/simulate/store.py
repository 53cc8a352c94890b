"""The finished runs of a folder, kept so that a sweep goes on where it was left.

Arrives: a loaded sweep, finished runs.
Leaves: a file for each, found again by everything that the run depends on.
Must not know: what is in a run, in which order runs are made.
"""

from __future__ import annotations

import functools
import hashlib
import os
import secrets
from pathlib import Path

import msgspec

from waystage import __version__
from waystage.experiment.schema import Choice
from waystage.simulate.algorithms import TASKS, Task, identity
from waystage.simulate.combinations import Combination, choice_of
from waystage.simulate.loading import Loaded
from waystage.simulate.records import SCHEMA, FinishedRun

RUNS_FOLDER = "runs"

MADE_BY = 2
"""Raised when the same sweep would give another run: kept runs of before are made again."""


class Store:
    """Under `folder`/runs, spread over 256 folders: a sweep may have a million runs."""

    def __init__(self, folder: Path, loaded: Loaded) -> None:
        self._folder = folder / RUNS_FOLDER
        self._loaded = loaded
        sweep = loaded.sweep
        sources = [
            (msgspec.structs.replace(source, trace=None, name=None), traffic.digest)
            for source, traffic in zip(sweep.jobs, loaded.traffics, strict=True)
        ]
        self._common = msgspec.json.encode(
            [__version__, SCHEMA, MADE_BY, sweep.duration, sweep.mode, sources], order="deterministic"
        )

    def path(self, which: Combination) -> Path:
        key = self._key(which)
        return self._folder / key[:2] / f"{key}.run"

    def get(self, which: Combination) -> FinishedRun | None:
        """None where the run was not made, failed, or its file is broken: then it is made again."""
        return read_run(self.path(which))

    def put(self, which: Combination, run: FinishedRun) -> None:
        """Whole or not at all."""
        write_run(self.path(which), run)

    def _key(self, which: Combination) -> str:
        digest = hashlib.sha256(self._common)
        digest.update(self._loaded.clusters[which.topology].digest.encode())
        digest.update(str(which.seed).encode())
        for task in TASKS:
            digest.update(self._algorithm(task, choice_of(self._loaded, which, task)))
        return digest.hexdigest()

    def _algorithm(self, task: Task, choice: Choice) -> bytes:
        options = msgspec.json.encode(choice.options, order="deterministic")
        return f"|{task} {_identity(task, choice.name)} ".encode() + options


def read_run(path: Path) -> FinishedRun | None:
    """A run from its file; None where there is none, or it is broken."""
    try:
        found = msgspec.msgpack.decode(path.read_bytes(), type=FinishedRun)
    except (OSError, msgspec.MsgspecError):
        return None
    return found if found.schema == SCHEMA else None


def write_run(path: Path, run: FinishedRun) -> None:
    """Write a run's file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Two workers may make one run at once.
    part = path.with_suffix(f".{secrets.token_hex(4)}.part")
    try:
        part.write_bytes(msgspec.msgpack.encode(run))
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


@functools.cache
def _identity(task: Task, name: str) -> str:
    return identity(task, name)
