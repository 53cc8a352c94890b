"""Amounts of one job or file, as people write them in experiment files: `8 MB` or `640 KiB`.

Arrives: a number or a text with a unit; whole bytes.
Leaves: whole bytes; three digits with a unit.
Must not know: where the amount stands or what it is for.
"""

from __future__ import annotations

from waystage.units import parse_size

MAX_BYTES = 2**50
"""One pebibyte; more in one job is a slip of the pen on any system this schedules."""


def parse_bytes(value: object) -> int:
    """`8 MB` -> 8000000. Raises ValueError with a sentence that says what is accepted."""
    return parse_size(value, most=MAX_BYTES)


def format_bytes(amount: float, digits: int = 3) -> str:
    """8000000 -> `8 MB`; decimal units."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if amount >= factor:
            return f"{amount / factor:.{digits}g} {unit}"
    return f"{amount:.0f} B"
