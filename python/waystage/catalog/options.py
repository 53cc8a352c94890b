"""How a tree is walked for a catalog, and what a catalog and its unfinished forms are called.

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
"""What a catalog's name may be followed by, in the folder it lies in."""


@dataclass(frozen=True)
class BuildOptions:
    """How to walk. `threads` None is four for each core, since a walk of a cold tree mostly waits."""

    threads: int | None = None
    exclude: tuple[str, ...] = ()
    one_file_system: bool = False
    restart: bool = False
    """Whether what an interrupted build left is thrown away."""

    layouts: Literal["each", "attribute"] | None = "each"
    """Whom to ask for layouts: each file system in its own way, or every file for Lustre's attribute, or nobody."""

    replace: bool = False
    """Whether a catalog of another tree that has the name already is replaced."""

    batch_rows: int = 65_536
    """Entries of a row group, at most."""

    def thread_count(self) -> int:
        return self.threads or min(32, max(4, 4 * len(os.sched_getaffinity(0))))


def own_patterns(root: Path, target: Path) -> tuple[str, ...]:
    """Patterns that leave out the catalog at `target` itself, where it lies in the tree it is of."""
    folder = target.parent.resolve()
    if not folder.is_relative_to(root):
        return ()
    below = os.path.relpath(folder / target.name, root)
    escaped = re.sub(r"([*?\[\\])", r"\\\1", below)
    return tuple(f"/{escaped}{suffix}" for suffix in OWN)
