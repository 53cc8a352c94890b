"""A communication pattern with its files.

Arrives: a file of the profiler or of the original one, or arrays.
Leaves: a pattern; a file.
Must not know: how a pattern is recorded, nor what is done with it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Self

from waystage.patterns.data import PatternData
from waystage.patterns.data import Traffic as Traffic
from waystage.patterns.encode import write
from waystage.patterns.reading import read


@dataclass(frozen=True, eq=False)
class Pattern(PatternData):
    """What an MPI program's ranks sent to one another, in columns: see `PatternData`."""

    @classmethod
    def read(cls, path: str | Path, *, allow_missing: bool = False) -> Self:
        """From a pattern file, or the original profiler's `tar.gz`, recognised by their first bytes.

        Raises PatternError where it is neither, damaged, or lacks ranks and `allow_missing` is false.
        """
        data = read(Path(path), allow_missing=allow_missing)
        return cls(**{field.name: getattr(data, field.name) for field in fields(data)})

    def write(self, path: str | Path) -> None:
        """As a pattern file, atomically; equal patterns give equal bytes. Raises PatternError."""
        write(self, Path(path))
