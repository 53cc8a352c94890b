"""Limits on bytes a second, which may follow a schedule of the week.

Arrives: text such as `100M` or `mon-fri 08:00-18:00=200M,sat+sun=off`; the time of day.
Leaves: the limit at that time.
Must not know: what is limited, where schedules come from.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from waystage import units

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
"""As `time.struct_time.tm_wday` counts them."""

DAY_S = 24 * 3600
MOST_ENTRIES = 1000
NO_LIMIT = "off"

_ENTRY = re.compile(r"(?:(?P<days>[a-z+-]+)(?:\s+|$))?(?:(?P<begin>[\d:]+)\s*-\s*(?P<end>[\d:]+))?")
_TIME = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?", re.ASCII)


class RateError(ValueError):
    """An invalid rate or schedule; the message is one sentence."""


def parse_rate(text: str) -> int:
    """Bytes a second of `100M`, `1.5G`, `800k`, `800 Mbit/s`; at least 1. Raises RateError."""
    try:
        return units.parse_rate(text)
    except units.UnitError as error:
        raise RateError(str(error)) from None


@dataclass(frozen=True)
class Entry:
    """`rate` holds on these days from `begin_s` to before `end_s` of the day; past midnight where it ends no later
    than it begins."""

    days: frozenset[int]
    begin_s: int
    end_s: int
    rate: int | None

    def holds(self, day: int, second: int) -> bool:
        """At this second of this day of the week, 0 for Monday."""
        if self.begin_s < self.end_s:
            return day in self.days and self.begin_s <= second < self.end_s
        late = day in self.days and second >= self.begin_s
        return late or ((day - 1) % 7 in self.days and second < self.end_s)


@dataclass(frozen=True)
class Schedule:
    """The first matching entry decides; without one there is no limit."""

    entries: tuple[Entry, ...]

    def rate_at(self, day: int, second: int) -> int | None:
        """Bytes a second at this second of this day of the week, 0 for Monday; None for no limit."""
        for entry in self.entries:
            if entry.holds(day, second):
                return entry.rate
        return None

    def now(self, clock: Callable[[], time.struct_time] = time.localtime) -> int | None:
        """The limit at this moment of local time: a clock that is set, or a change to summer time, takes effect at
        once."""
        at = clock()
        # A leap second belongs to the minute before.
        return self.rate_at(at.tm_wday, at.tm_hour * 3600 + at.tm_min * 60 + min(at.tm_sec, 59))

    @property
    def changes(self) -> bool:
        """Whether the limit varies."""
        return len(set(self._all())) > 1

    @property
    def most(self) -> int | None:
        """The highest limit of the week; None where it is unlimited at some time."""
        rates = [rate for rate in self._all() if rate is not None]
        return max(rates) if len(rates) == len(self._all()) else None

    def _all(self) -> list[int | None]:
        """The limit of each interval between possible changes."""
        moments = {0} | {second for e in self.entries for second in (e.begin_s, e.end_s) if second < DAY_S}
        return [self.rate_at(day, second) for day in range(7) for second in moments]


UNLIMITED = Schedule(())
"""No limit at any time."""


def parse_schedule(text: str) -> Schedule:
    """A rate, `off`, or entries `[DAYS] [BEGIN-END]=RATE` with commas or line ends between them; `#` begins a
    remark. Raises RateError."""
    lines = [line.partition("#")[0] for line in text.splitlines()]
    parts = [part.strip() for line in lines for part in line.split(",") if part.strip()]
    if not parts:
        raise RateError("a schedule needs an entry such as 08:00-18:00=200M")
    if len(parts) > MOST_ENTRIES:
        raise RateError(f"a schedule has at most {MOST_ENTRIES} entries, and this one {len(parts)}")
    if len(parts) == 1 and "=" not in parts[0]:
        rate = _rate(parts[0])
        return UNLIMITED if rate is None else Schedule((Entry(frozenset(range(7)), 0, DAY_S, rate),))
    return Schedule(tuple(_entry(part) for part in parts))


def _rate(text: str) -> int | None:
    return None if text == NO_LIMIT else parse_rate(text)


def _entry(text: str) -> Entry:
    when, equals, rate = text.partition("=")
    found = _ENTRY.fullmatch(when.strip().lower())
    if not equals or found is None or not (found["days"] or found["begin"]):
        raise RateError(
            f"{text!r} is no entry of a schedule such as 08:00-18:00=200M, mon-fri 18:00-08:00=off or sat+sun=1G"
        )
    begin_s, end_s = (0, DAY_S)
    if found["begin"]:
        begin_s, end_s = _time(found["begin"], text), _time(found["end"], text)
        if begin_s in (end_s, DAY_S):
            raise RateError(f"{text!r} begins when it ends: 00:00-24:00 is the whole day")
    try:
        return Entry(_days(found["days"], text), begin_s, end_s, _rate(rate.strip()))
    except RateError as error:
        raise RateError(
            f"{text!r}: {error}" if str(error).startswith(repr(rate.strip())) else str(error)
        ) from None


def _time(text: str, entry: str) -> int:
    found = _TIME.fullmatch(text)
    if found is not None:
        hours, minutes, seconds = int(found[1]), int(found[2]), int(found[3] or 0)
        at = hours * 3600 + minutes * 60 + seconds
        if minutes < 60 and seconds < 60 and at <= DAY_S:
            return at
    raise RateError(f"{entry!r}: {text!r} is no time of day from 00:00 to 24:00")


def _days(text: str | None, entry: str) -> frozenset[int]:
    if text is None:
        return frozenset(range(7))
    days: set[int] = set()
    for part in text.split("+"):
        first, dash, last = part.partition("-")
        if first not in DAYS or (dash and last not in DAYS):
            raise RateError(f"{entry!r}: {part!r} is no day such as mon, nor days such as mon-fri or sat+sun")
        day = DAYS.index(first)
        days.add(day)
        while dash and DAYS[day] != last:
            day = (day + 1) % 7
            days.add(day)
    return frozenset(days)


class Limiter:
    """Calls `apply` with a schedule's limit whenever it changes."""

    def __init__(
        self,
        schedule: Schedule,
        apply: Callable[[int | None], None],
        clock: Callable[[], time.struct_time] = time.localtime,
    ) -> None:
        self._schedule, self._apply, self._clock = schedule, apply, clock
        self._told: tuple[int | None] | None = None

    def look(self) -> None:
        """To be called about every second."""
        rate = self._schedule.now(self._clock)
        if self._told != (rate,):
            self._told = (rate,)
            self._apply(rate)
