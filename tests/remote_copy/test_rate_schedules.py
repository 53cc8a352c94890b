"""Limits by the time of the week: what a schedule says, and that it takes effect while a copy runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import Waystage
from remote_copy_support import Site
from waystage.wan.rates import DAY_S, DAYS, Limiter, RateError, Schedule, parse_rate, parse_schedule

MONDAY, SATURDAY = 0, 5


def at(schedule: Schedule, day: int, clock: str) -> int | None:
    hours, minutes = clock.split(":")
    return schedule.rate_at(day, int(hours) * 3600 + int(minutes) * 60)


def test_the_first_entry_that_holds_decides_and_where_none_does_there_is_no_limit() -> None:
    schedule = parse_schedule(
        "sat+sun=off, mon-fri 08:00-18:00=200MB, 18:00-02:30=1.5GB\n# at night\nFri=1kB"
    )
    assert at(schedule, MONDAY, "08:00") == 200 * 10**6
    assert at(schedule, MONDAY, "18:00") == at(schedule, MONDAY, "02:29") == 1_500_000_000
    assert at(schedule, MONDAY, "02:30") is None and at(schedule, 4, "02:30") == 1000
    assert at(schedule, SATURDAY, "12:00") is None
    assert schedule.changes and schedule.most is None
    assert parse_schedule("00:00-12:00=1MB,12:00-24:00=2MB").most == 2 * 10**6


def test_an_entry_past_midnight_belongs_to_the_day_it_begins() -> None:
    schedule = parse_schedule("sun 22:00-06:00=5MB")
    assert at(schedule, 6, "23:00") == at(schedule, MONDAY, "05:59") == 5 * 10**6
    assert at(schedule, 6, "05:00") is None and at(schedule, MONDAY, "22:00") is None
    assert parse_schedule("sat-mon=1MB").entries[0].days == {5, 6, 0}


def test_a_rate_alone_never_changes() -> None:
    for text, rate in (("200MB", 200 * 10**6), ("off", None)):
        schedule = parse_schedule(text)
        assert (schedule.changes, schedule.most, schedule.rate_at(3, 77)) == (False, rate, rate)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "needs an entry"),
        ("08:00-18:00=200X", "'200X' is no rate such as"),
        ("8-18=200MB", "is no time of day from 00:00 to 24:00"),
        ("08:60-18:00=1MB", "'08:60' is no time of day"),
        ("08:00-24:01=1MB", "'24:01' is no time of day"),
        ("08:00-08:00=1MB", "begins when it ends: 00:00-24:00 is the whole day"),
        ("moo 08:00-18:00=1MB", "'moo' is no day such as mon"),
        ("mon-=1MB", "is no day such as mon"),
        ("=1MB", "is no entry of a schedule such as"),
        ("08:00-18:00=1MB,200MB", "'200MB' is no entry of a schedule"),
        ("0", "'0' is no rate"),
    ],
)
def test_what_is_no_schedule_is_said_in_a_sentence(text: str, said: str) -> None:
    with pytest.raises(RateError) as raised:
        parse_schedule(text)
    assert said in str(raised.value) and "\n" not in str(raised.value)


times = st.integers(0, DAY_S)
rates = st.none() | st.integers(1, 10**12)
entries = st.tuples(st.sets(st.integers(0, 6)), times, times, rates).filter(
    lambda e: e[1] != e[2] and e[1] != DAY_S
)


def text_of(second: int) -> str:
    return f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"


@given(st.lists(entries, min_size=1, max_size=8), st.integers(0, 6), st.integers(0, DAY_S - 1))
def test_a_schedule_says_what_its_entries_say(
    given_entries: list[tuple[set[int], int, int, int | None]], day: int, second: int
) -> None:
    lines, expected, decided = [], None, False
    for days, begin, end, rate in given_entries:
        names = "+".join(DAYS[each] for each in sorted(days))
        lines.append(f"{names} {text_of(begin)}-{text_of(end)}={'off' if rate is None else rate}".strip())
        held = days or set(range(7))
        hours = [
            (each * DAY_S + begin, each * DAY_S + (end if begin < end else end + DAY_S)) for each in held
        ]
        moment = day * DAY_S + second
        if not decided and any(a <= m < b for a, b in hours for m in (moment, moment + 7 * DAY_S)):
            expected, decided = rate, True
    schedule = parse_schedule(",".join(lines))
    assert schedule.rate_at(day, second) == expected
    most = schedule.most
    assert most is None or (expected is not None and expected <= most)


@given(st.text(alphabet="mon-friSAT+0123456789:= ,offkMGi#\n٣²", max_size=40))
@settings(max_examples=300)
def test_no_text_does_worse_than_a_sentence(text: str) -> None:
    for parse in (parse_schedule, parse_rate):
        try:
            parse(text)
        except RateError as error:
            assert str(error) and "\n" not in str(error)


def test_a_clock_that_is_set_takes_effect_and_nothing_is_reported_twice() -> None:
    moments: Iterator[str] = iter(
        ["07:59:59", "08:00:00", "12:00:00", "07:00:00", "09:00:00", "17:59:60", "18:00:00"]
    )

    def clock() -> time.struct_time:
        hours, minutes, seconds = map(int, next(moments).split(":"))
        return time.struct_time((2026, 7, 6, hours, minutes, seconds, 0, 187, 1))

    told: list[int | None] = []
    limiter = Limiter(parse_schedule("08:00-18:00=200MB"), told.append, clock)
    for _ in range(7):
        limiter.look()
    assert told == [None, 200 * 10**6, None, 200 * 10**6, None]


def nearly_nothing_for(seconds: int) -> tuple[str, float]:
    """A schedule under which a copy would take hours, if its change did not take effect; when that is."""
    now = datetime.now()
    begin, end = now - timedelta(minutes=30), now.replace(microsecond=0) + timedelta(seconds=seconds)
    return f"{begin:%H:%M:%S}-{end:%H:%M:%S}=1k,00:00-24:00=off", end.timestamp()


def test_a_local_copy_follows_its_schedule(tmp_path: Path, waystage: Waystage) -> None:
    (tmp_path / "file").write_bytes(bytes(8 << 20))
    schedule, end = nearly_nothing_for(3)
    (tmp_path / "schedule").write_text("# slow at first\n" + schedule.replace(",", "\n"))
    ran = waystage("copy", "file", "copy", "--bandwidth-limit", "@schedule", "--json")
    assert time.time() >= end, "it obeyed no limit"
    assert ran.code == 0 and (tmp_path / "copy").stat().st_size == 8 << 20
    assert waystage("copy", "file", "copy", "--bandwidth-limit", "@none").code == 2
    refused = waystage("copy", "file", "copy", "--bandwidth-limit", "08:00=1MB")
    assert refused.code == 2 and "is no entry of a schedule" in refused.err


@pytest.mark.parametrize(
    ("whose", "push", "udp"),
    [("client", True, True), ("client", False, False), ("server", True, False), ("server", False, True)],
)
def test_either_ends_schedule_holds_in_both_directions(
    site: Site, tmp_path: Path, whose: str, push: bool, udp: bool
) -> None:
    source = (tmp_path if push else site.given) / "large"
    source.write_bytes(bytes(40 << 20))
    schedule, end = nearly_nothing_for(4)
    way = f"udp = {str(udp).lower()}"
    site.serve(f'{way}\nrate = "{schedule}"' if whose == "server" else way)
    words = ("--bandwidth-limit", schedule) if whose == "client" else ()
    ends = (source, f"127.0.0.1:{site.data}") if push else (f"127.0.0.1:{source}", tmp_path / "here")
    ran = site.copy(*ends, *words).expect()
    assert time.time() >= end, "it obeyed no limit"
    assert ran.json["counts"]["bytes"] == 40 << 20
