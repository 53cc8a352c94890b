"""Amounts as people write them in experiment files, `8 MB` or `640 KiB`.

Arrives: a number or a text with a unit.
Leaves: whole bytes.
Must not know: where the amount stands or what it is for.
"""

from __future__ import annotations

import re

_FACTORS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_AMOUNT = re.compile(r"^\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*$")

MAX_BYTES = 2**50
"""One pebibyte; more in one job is a slip of the pen on any system this schedules."""


def parse_bytes(value: object) -> int:
    """`8 MB` -> 8000000. Raises ValueError with a sentence that says what is accepted."""
    hint = "write whole bytes or a number with kB, MB, GB, KiB, MiB or GiB, such as 8 MB"
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{_shown(value)} is no amount of bytes: {hint}")
    match = _AMOUNT.match(str(value)) if not isinstance(value, float) else None
    if isinstance(value, float) and value.is_integer():
        match = _AMOUNT.match(str(int(value)))
    if match is None or match[2].lower() not in _FACTORS:
        raise ValueError(f"{_shown(value)} is no amount of bytes: {hint}")
    amount = round(float(match[1]) * _FACTORS[match[2].lower()]) if match[2] else _whole(match[1], hint)
    if amount > MAX_BYTES:
        raise ValueError(f"{_shown(value)} is more than 1 PiB: give the bytes of one job")
    return amount


def format_bytes(amount: float) -> str:
    """8000000 -> `8 MB`; three digits, decimal units."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if amount >= factor:
            return f"{amount / factor:.3g} {unit}"
    return f"{amount:.0f} B"


def _whole(text: str, hint: str) -> int:
    if "." in text:
        raise ValueError(f"{text} is no whole number of bytes: {hint}")
    return int(text)


def _shown(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 40 else text[:37] + "..."
