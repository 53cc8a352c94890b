"""How a tree is walked for a catalog, and the names of a catalog and its unfinished forms.

Arrives: choices.
Leaves: the same, with defaults.
Must not know: anything else.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

JOURNAL = "_journal.json"
LOCK = "_lock"
UNFINISHED = ".partial"
REPLACED = ".old"
CHECKSUMS = ".checksums"
UNFINISHED_FILE = ".unfinished"

OWN = ("", UNFINISHED, REPLACED, CHECKSUMS, CHECKSUMS + UNFINISHED_FILE)
"""Suffixes of temporary folders beside a catalog."""


@dataclass(frozen=True)
class BuildOptions:
    """How to walk. `threads` None is four for each core, since a walk of a cold tree mostly waits."""

    threads: int | None = None
    exclude: tuple[str, ...] = ()
    one_file_system: bool = False
    restart: bool = False
    """Whether the state of an interrupted build is discarded."""

    layouts: Literal["each", "attribute"] | None = "each"
    """How layouts are read: each file system in its own way, Lustre's attribute of every file, or not."""

    replace: bool = False
    """Whether an existing catalog of another tree is replaced."""

    batch_rows: int = 65_536
    """Entries of a row group, at most."""

    def thread_count(self) -> int:
        return self.threads or min(32, max(4, 4 * len(os.sched_getaffinity(0))))


def own_patterns(root: Path, target: Path) -> tuple[str, ...]:
    """Patterns that leave out the catalog at `target` itself, where it is inside its tree."""
    folder = target.parent.resolve()
    if not folder.is_relative_to(root):
        return ()
    below = os.path.relpath(folder / target.name, root)
    escaped = re.sub(r"([*?\[\\])", r"\\\1", below)
    return tuple(f"/{escaped}{suffix}" for suffix in OWN)
