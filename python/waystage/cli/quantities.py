"""Bytes and shares, as people write and read them.

Arrives: text from a command line; numbers.
Leaves: numbers, or a UserError; text.
Must not know: what is counted.
"""

from __future__ import annotations

import re

from waystage.cli.common import ExitCode, UserError

UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def byte_count(text: str, option: str) -> int:
    """`200M` as a number of bytes; units are powers of 1024. Raises UserError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", text.strip().lower())
    value = int(float(match[1]) * UNITS[match[2]]) if match else 0
    if value < 1:
        raise UserError(
            f"{option} {text!r} is no number of bytes: write one such as 500K, 200M or 1.5G", ExitCode.USAGE
        )
    return value


def amount(number: int) -> str:
    """Bytes as a person reads them."""
    value = float(number)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            return f"{number} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:,.1f} PiB"


def rate(share: float) -> str:
    """A share as a percentage."""
    return f"{100 * share:.1f} %"
