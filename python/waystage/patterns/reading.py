"""Which format a file has, by its first bytes.

Arrives: a path.
Leaves: a pattern.
Must not know: what is in the formats.
"""

from __future__ import annotations

from pathlib import Path

from waystage.bounded import read_bounded
from waystage.patterns.data import PatternData
from waystage.patterns.errors import PatternError
from waystage.patterns.original import read_original
from waystage.patterns.parse import parse

GZIP = b"\x1f\x8b"

MOST_BYTES = 1 << 32
"""A file of 16,384 ranks that all speak with all has three gigabytes."""


def read(path: Path, *, allow_missing: bool) -> PatternData:
    """See `Pattern.read`."""
    try:
        data = read_bounded(path, MOST_BYTES)
    except OSError as error:
        raise PatternError(f"{path} cannot be read: {error.strerror}") from None
    if data.startswith(GZIP):
        return read_original(path, allow_missing=allow_missing)
    return parse(data, str(path), allow_missing=allow_missing)
