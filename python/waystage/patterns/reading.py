"""Which format a file has, by its first bytes.

Arrives: a path.
Leaves: a pattern.
Must not know: what is in the formats.
"""

from __future__ import annotations

from pathlib import Path

from waystage.patterns.errors import PatternError
from waystage.patterns.original import read_original
from waystage.patterns.parse import parse
from waystage.patterns.pattern import Pattern

GZIP = b"\x1f\x8b"


def read(path: Path, *, allow_missing: bool) -> Pattern:
    """See Pattern.read."""
    try:
        with path.open("rb") as file:
            begin = file.read(len(GZIP))
            data = b"" if begin == GZIP else begin + file.read()
    except OSError as error:
        raise PatternError(f"{path} cannot be read: {error.strerror}") from None
    if begin == GZIP:
        return read_original(path, allow_missing=allow_missing)
    return parse(data, str(path), allow_missing=allow_missing)
