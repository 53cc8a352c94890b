"""Writing a file of a pattern, with the errors of this room.

Arrives: a path and bytes.
Leaves: the file, whole or not at all.
Must not know: what the bytes mean.
"""

from __future__ import annotations

from pathlib import Path

from waystage import outputs
from waystage.patterns.errors import PatternError


def write_whole(path: Path, data: bytes) -> None:
    """Write `data` as `outputs.write_whole` does. Raises PatternError where the file cannot be written."""
    try:
        outputs.write_whole(path, data)
    except OSError as error:
        raise PatternError(f"{path} cannot be written: {error.strerror}: name another file") from None
