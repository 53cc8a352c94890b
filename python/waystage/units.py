"""The parser of sizes and rates, for the command line and configuration files.

Arrives: a number, or text such as `200M`, `16Mi`, `64 kB`, `100 Mbit/s`.
Leaves: bytes, bytes/s or bit/s as integers, or an error that states what is accepted.
Must not know: the option or key of the value.

As for rclone, rsync and the GNU tools, K, Ki and KiB are 1024 bytes, and kB is 1000 (docs/reference/units.md). Bits are
always written `bit`, and kbit is 1000 of them.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from fractions import Fraction

N = TypeVar("N", int, float)

PREFIXES = ("", "k", "m", "g", "t", "p")

MOST_BYTES = (1 << 63) - 1
"""Limit of the signed 64-bit sizes of files and kernels."""

MOST_BITS = 8 * MOST_BYTES

_QUANTITY = re.compile(r"\s*(\d{1,30}(?:\.\d{1,30})?)\s*([A-Za-z/]*)\s*", re.ASCII)
_UNIT = re.compile(r"([kmgtp]?)(i?)", re.IGNORECASE)
_SHOWN = 40


class UnitError(ValueError):
    """Text that is not a size or a rate; the message is one sentence."""


def parse_size(value: object, *, least: int = 0, most: int = MOST_BYTES) -> int:
    """`64 MB` -> 64,000,000; `64M`, `64MiB` -> 67,108,864. Raises UnitError."""
    what = "amount of bytes"
    number, unit = _quantity(value, what)
    if _bits(unit) is not None:
        raise _wrong(value, what, "it is in bits")
    if unit.endswith("/s"):
        raise _wrong(value, what, "it is a rate")
    found = _whole(value, number, number * _factor(value, unit, what), unit, what)
    return _within(value, found, least, most, what)


def parse_rate(value: object, *, least: int = 1, most: int = MOST_BYTES) -> int:
    """`100 MB/s`, `100M` (MiB/s) or, in bits, `800 Mbit/s` in bytes/s, rounded down. Raises UnitError."""
    what = "rate"
    number, unit = _quantity(value, what)
    bits = _bits(unit)
    if bits is not None:
        found = int(number * _factor(value, bits, what, bits=True) / 8)
    else:
        unit = unit.removesuffix("/s")
        found = _whole(value, number, number * _factor(value, unit, what), unit, what)
    return _within(value, found, least, most, what)


AGES_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400, "M": 30 * 86400, "y": 365 * 86400}


def parse_age(text: str) -> int:
    """`30d`, `12h` or `1.5w` in seconds, with the units of rclone; the unit is required. Raises UnitError."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)([smhdwMy])", text, re.ASCII)
    if found is None:
        raise UnitError(
            f"{_shown(text)} is no age such as 30d, 12h or 1.5w: the units are s, m, h, d, w, M and y"
        )
    return int(float(found[1]) * AGES_S[found[2]])


def parse_bit_rate(value: object, *, least: float = 1, most: float = MOST_BITS) -> float:
    """`100 Mbit`, `100Mbit/s` or `100Mbps` in bit/s; the unit is required. Raises UnitError."""
    what = "rate in bits"
    number, unit = _quantity(value, what)
    bits = _bits(unit)
    if bits is None:
        raise _wrong(value, what, "give the unit: kbit, Mbit or Gbit")
    return _within(value, float(number * _factor(value, bits, what, bits=True)), least, most, what)


_SUCH = {
    "amount of bytes": "such as 64M, 1.5GiB or 16MB",
    "rate": "such as 100M, 1.5GB or 800Mbit",
    "rate in bits": "such as 100 Mbit or 1.5 Gbit/s",
}
"""Kind of quantity -> examples."""


def _wrong(value: object, what: str, why: str = "write one") -> UnitError:
    return UnitError(f"{_shown(value)} is no {what} {_SUCH[what]}: {why}")


def _quantity(value: object, what: str) -> tuple[Fraction, str]:
    from fractions import (
        Fraction,
    )  # with decimal, a sixth of the start of a command that only prints its help

    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise _wrong(value, what)
    if isinstance(value, float):
        if not math.isfinite(value) or not value.is_integer():
            raise _wrong(value, what, "a number without a unit must be an integer")
        value = int(value)
    if isinstance(value, int):
        if value < 0:
            raise _wrong(value, what, "it is negative")
        return Fraction(value), ""
    found = _QUANTITY.fullmatch(value)
    if found is None:
        raise _wrong(value, what, "it is negative" if value.lstrip().startswith("-") else "write one")
    return Fraction(found[1]), found[2]


def _bits(unit: str) -> str | None:
    """The prefix of a unit of bits; None for other units."""
    for suffix in ("bit/s", "bit", "bps"):
        if unit.endswith(suffix):
            return unit.removesuffix(suffix)
    return None


def _factor(value: object, unit: str, what: str, *, bits: bool = False) -> int:
    if unit.endswith("b"):
        or_bits = f", {unit[:-1]}bit for bits" if "rate" in what else ""
        raise _wrong(value, what, f"b may mean bits or bytes: write {unit[:-1]}B for bytes{or_bits}")
    found = _UNIT.fullmatch(unit.removesuffix("B"))
    if found is None or (found[2] and not found[1]):
        raise _wrong(value, what, "K and KiB are 1024 bytes, kB is 1000; likewise M, G, T and P")
    decimal = bits or unit.endswith("B")
    base = 1024 if found[2] or not decimal else 1000
    return int(base ** PREFIXES.index(found[1].lower()))


def _whole(value: object, number: Fraction, found: Fraction, unit: str, what: str) -> int:
    """Round down, as for 1.1GiB; a fraction of a single byte is an error."""
    if (unit in ("", "B") and number.denominator != 1) or 0 < found < 1:
        raise _wrong(value, what, "it is not a whole number of bytes")
    return int(found)


def _within(value: object, found: N, least: N, most: N, what: str) -> N:
    unit = "bit" if what == "rate in bits" else "B"
    if found < least:
        raise _wrong(value, what, f"the least is {_text(least)}{unit}")
    if found > most:
        raise _wrong(value, what, f"the most is {_text(most)}{unit}")
    return found


def _text(bound: float) -> str:
    """A bound as text: 16Mi, 32k, 1."""
    for base, letter in ((1024, "i"), (1000, "")):
        for power in range(len(PREFIXES) - 1, 0, -1):
            if bound >= base**power and bound % base**power == 0:
                prefix = PREFIXES[power] if power == 1 and not letter else PREFIXES[power].upper()
                return f"{bound // base**power:.0f}{prefix}{letter}"
    return f"{bound:.0f}"


def _shown(value: object) -> str:
    text = repr(value) if isinstance(value, str) else str(value)
    text = text.encode("ascii", "backslashreplace").decode("ascii")
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
