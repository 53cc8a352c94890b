"""Rates, times, shares and buffers, as people write them.

Arrives: text such as `100 Mbit`, `10ms`, `0.1 %`, `2 BDP`.
Leaves: bits a second, nanoseconds, shares from 0 to 1, buffers.
Must not know: where the text stands and what it is for.
"""

from __future__ import annotations

import math
import re

from waystage.experiment.units import parse_bytes
from waystage.units import UnitError, parse_bit_rate

_NUMBER = re.compile(r"^\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z%/]*)\s*$")
_TIMES = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}

MOST_RATE_BPS = 1e13
MOST_TIME_NS = 600 * 10**9
"""What `crates/wanpath` takes too: ten minutes."""


def rate(value: object) -> float:
    """`100 Mbit` -> 1e8 bit/s; `none` is no limit. Raises ValueError with what is accepted."""
    if value == "none":
        return math.inf
    try:
        return parse_bit_rate(value, most=MOST_RATE_BPS)
    except UnitError as error:
        raise ValueError(f"{error}, or write none") from None


def time_ns(value: object) -> int:
    """`10 ms` -> 10,000,000. Raises ValueError with what is accepted."""
    if value == 0 and not isinstance(value, bool):
        return 0
    number, unit = _split(value, "a time", "a number with us, ms or s, such as 10 ms")
    if unit not in _TIMES and not (number == 0 and not unit):
        raise ValueError(f"{value} is no time: write a number with us, ms or s, such as 10 ms")
    nanoseconds = round(number * _TIMES.get(unit, 1))
    if nanoseconds > MOST_TIME_NS:
        raise ValueError(f"{value} is more than 10 minutes: no packet is in flight that long")
    return nanoseconds


def share(value: object) -> float:
    """`1 %` -> 0.01. A bare number could be meant either way, so only 0 is one. Raises ValueError."""
    if value == 0 and not isinstance(value, bool):
        return 0.0
    number, unit = _split(value, "a share", "a percentage, such as 0.1 %")
    if (unit != "%" and number != 0) or unit not in ("%", "") or number > 100:
        raise ValueError(f"{value} is no share: write a percentage from 0 % to 100 %, such as 0.1 %")
    return number / 100


def buffer(value: object) -> tuple[int | None, float | None]:
    """`64 kB` -> (64000, None); `2 BDP` -> (None, 2.0); `none`, no limit, -> (None, None). Raises ValueError."""
    if value == "none":
        return None, None
    found = _NUMBER.match(str(value))
    if found is not None and found[2].lower() == "bdp":
        return None, float(found[1])
    try:
        return parse_bytes(value), None
    except ValueError:
        raise ValueError(
            f"{value} is no buffer: write bytes, such as 64 kB, bandwidth-delay products, such as 0.5 BDP, or none"
        ) from None


def policer(value: object) -> tuple[float, int]:
    """`100 Mbit,30 kB` -> (1e8, 30000); `none` -> (inf, 0). Raises ValueError."""
    if value == "none":
        return math.inf, 0
    words = [word.strip() for word in str(value).split(",")]
    if len(words) != 2:
        raise ValueError(f"{value} is no policer: write RATE,BUCKET, such as 100 Mbit,30 kB, or none")
    try:
        bucket = parse_bytes(words[1])
    except UnitError as error:
        raise ValueError(f"{error}; write RATE,BUCKET, such as 100 Mbit,30 kB, or none") from None
    if bucket < 1:
        raise ValueError(f"{value}: a policer without a bucket passes nothing: write one, such as 30 kB")
    return rate(words[0]), bucket


def aqm(value: object) -> tuple[str, float, float]:
    """`codel`, `red,10 %,30 %` (thresholds as shares of the buffer) or `none` -> name and thresholds. Raises ValueError."""
    name, *thresholds = (word.strip().lower() for word in str(value).split(","))
    if name in ("none", "codel") and not thresholds:
        return name, 0.0, 0.0
    if name != "red" or len(thresholds) != 2:
        raise ValueError(
            f"{value} is no queue management: write codel, or red with two shares of the buffer, such as "
            "red,10 %,30 %, or none"
        )
    least, most = (share(threshold) for threshold in thresholds)
    if least >= most:
        raise ValueError(f"{value}: write the lower threshold of RED first, such as red,10 %,30 %")
    return name, least, most


def ecn(value: object) -> tuple[bool, tuple[int | None, float | None] | None]:
    """`aqm`: marks where the queue's management would drop; a queue such as `30 kB` or `0.1 BDP`: marks above it.

    Returns whether it is the first, and the queue as `buffer` returns it, or None. Raises ValueError.
    """
    if value in ("aqm", "none"):
        return value == "aqm", None
    try:
        return False, buffer(value)
    except ValueError:
        raise ValueError(
            f"{value} is no mark: write aqm, the bytes in the queue above which packets are marked, such as 30 kB, "
            "bandwidth-delay products, such as 0.1 BDP, or none"
        ) from None


def rate_text(bps: float) -> str:
    """1e8 -> `100 Mbit/s`."""
    if math.isinf(bps):
        return "no limit"
    for unit, factor in (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)):
        if bps >= factor:
            return f"{bps / factor:.4g} {unit}"
    return f"{bps:.0f} bit/s"


def time_text(nanoseconds: int) -> str:
    """10,000,000 -> `10 ms`."""
    if nanoseconds >= 10**9:
        return f"{nanoseconds / 1e9:.6g} s"
    return f"{nanoseconds / 1e6:.6g} ms"


def share_text(value: float) -> str:
    """0.01 -> `1 %`."""
    return f"{100 * value:.6g} %"


def _split(value: object, what: str, hint: str) -> tuple[float, str]:
    found = _NUMBER.match(str(value)) if not isinstance(value, bool) else None
    if found is None:
        raise ValueError(f"{value} is not {what}: write {hint}")
    return float(found[1]), found[2].lower()
