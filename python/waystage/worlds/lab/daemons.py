"""The record of a lab's own long-running processes, for whoever looks after it later.

Arrives: names, processes, logs.
Leaves: the same from a file in the run directory.
Must not know: what the processes do.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from waystage.worlds.lab.processes import ProcessId


class Daemon(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    process: ProcessId
    log: str

    @classmethod
    def read_all(cls, path: Path) -> list[Daemon]:
        """Empty where there is no record, or none that can be read."""
        try:
            return msgspec.json.decode(path.read_bytes(), type=list[cls])  # type: ignore[valid-type]
        except (OSError, msgspec.MsgspecError):
            return []

    @classmethod
    def write_all(cls, path: Path, daemons: Sequence[Daemon]) -> None:
        """Whole or not at all."""
        draft = path.with_suffix(".new")
        draft.write_bytes(msgspec.json.encode(daemons))
        os.replace(draft, path)
