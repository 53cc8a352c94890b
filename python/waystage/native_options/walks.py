"""Options of the native module's walks.

Arrives: values that a caller has checked.
Leaves: frozen option objects with defaults.
Must not know: how the data plane carries them out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class WalkOptions:
    """Options of `TreeWalk`."""

    threads: int
    exclude: Sequence[bytes] = ()
    """Patterns over names, or over paths below the root where they contain a slash."""
    one_file_system: bool = False
    known: tuple[Any, ...] | None = None
    """Directories that are not read if unchanged: path offsets, paths, inodes, devices, mtimes, ctimes."""
    batch_rows: int = 4_096
    """Entries of a batch, at most: few, since larger batches take memory that is new to the process each time."""
    layouts: Literal["each", "attribute"] | None = None
    """Ask each file system in its own way, or read Lustre's attribute of every file; None reads no layouts."""
    tops: Sequence[bytes] = (b"",)
    """Paths below the root at which the walk starts."""
