"""Profiles and options: the same words in a file and on the command line, and errors that say what to write."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystage.cli.main import run
from waystage.experiment.problems import ExperimentError, Problem
from waystage.worlds.lab.wan import load, said, shipped, units
from waystage.worlds.lab.wan.profile import Profile, buffer_bytes, native


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (units.rate, "100 Mbit", 1e8),
        (units.rate, "1Gbit/s", 1e9),
        (units.rate, "2.5gbps", 2.5e9),
        (units.rate, "none", math.inf),
        (units.time_ns, "10ms", 10_000_000),
        (units.time_ns, "0.5 s", 500_000_000),
        (units.time_ns, "250us", 250_000),
        (units.time_ns, 0, 0),
        (units.share, "0.1 %", 0.001),
        (units.share, 0, 0.0),
        (units.buffer, "64 kB", (64_000, None)),
        (units.buffer, "0.5 BDP", (None, 0.5)),
        (units.buffer, "none", (None, None)),
        (units.policer, "10 Mbit,30 kB", (1e7, 30_000)),
        (units.policer, "none", (math.inf, 0)),
        (units.aqm, "codel", ("codel", 0.0, 0.0)),
        (units.aqm, "RED, 10 %, 30 %", ("red", 0.1, 0.3)),
        (units.aqm, "none", ("none", 0.0, 0.0)),
        (units.ecn, "aqm", (True, None)),
        (units.ecn, "30 kB", (False, (30_000, None))),
        (units.ecn, "0.1 BDP", (False, (None, 0.1))),
        (units.ecn, "none", (False, None)),
    ],
)
def test_amounts_as_people_write_them(read, text, value) -> None:  # type: ignore[no-untyped-def]
    assert read(text) == value


@pytest.mark.parametrize(
    ("read", "text", "hint"),
    [
        (units.rate, "fast", "100 Mbit"),
        (units.rate, "100", "Mbit"),
        (units.rate, "100 MB", "Mbit"),
        (units.rate, "0 bit", "Mbit"),
        (units.time_ns, "10", "ms"),
        (units.time_ns, "-3ms", "ms"),
        (units.time_ns, "11 min", "ms"),
        (units.time_ns, "601s", "10 minutes"),
        (units.share, "0.01", "percentage"),
        (units.share, 1, "percentage"),
        (units.share, "101%", "percentage"),
        (units.share, True, "percentage"),
        (units.buffer, "much", "BDP"),
        (units.policer, "10 Mbit", "RATE,BUCKET"),
        (units.policer, "10 Mbit,0", "without a bucket"),
        (units.aqm, "pie", "codel"),
        (units.aqm, "red,10 %", "two shares"),
        (units.aqm, "red,30 %,10 %", "lower threshold"),
        (units.policer, "1 Mbit,-", "RATE,BUCKET"),
        (units.policer, "1 Mbit,8 bit", "RATE,BUCKET"),
        (units.aqm, "codel,5 ms", "codel"),
        (units.ecn, "yes", "aqm"),
    ],
)
def test_what_is_no_amount_is_refused_with_an_example(read, text, hint) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=hint):
        read(text)


@given(st.text(max_size=12))
def test_any_text_is_an_amount_or_a_sentence(text: str) -> None:
    for read in (units.rate, units.time_ns, units.share, units.buffer, units.policer, units.aqm, units.ecn):
        try:
            read(text)
        except ValueError as error:
            assert "write" in str(error) or "10 minutes" in str(error) or "1 PiB" in str(error)


def test_the_shipped_profiles_are_what_they_say() -> None:
    assert {"wan-10ms", "lossy-10ms", "satellite", "mobile"} <= set(shipped())
    lossy = load("lossy-10ms")
    assert native(lossy, "forward")["loss"] == 0.1 and lossy.round_trip_ns == 10_000_000
    assert buffer_bytes(lossy, "forward") == 1_250_000, "a BDP is the rate by the round trip"
    mobile = load("mobile")
    assert [native(mobile, way)["rate_bps"] for way in ("forward", "back")] == [1e7, 5e7]
    assert mobile.mtu == 1400


def test_a_file_and_options_say_the_same(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "both: {rate: 10 Mbit, delay: 5 ms, bursts: {begin: 1 %, end: 10 %, loss: 50 %}, reorder: {share: 5 %, by: 1 ms}}\n"
        'forward: {policer: "8 Mbit,30 kB", aqm: "red,10 %,50 %", ecn: aqm}\n'
        "back: {loss: 2 %, buffer: 9 kB, mtu: 1400, aqm: codel, ecn: 0.5 BDP}\n"
    )
    both = said({"rate": "10Mbit", "delay": "5ms", "bursts": "1%,10%,50%", "reorder": "5%,1ms"})
    forward = said({"policer": "8Mbit,30kB", "aqm": "red,10%,50%", "ecn": "aqm"})
    back = said({"loss": "2%", "buffer": "9kB", "mtu": "1400", "aqm": "codel", "ecn": "0.5 BDP"})
    made = Profile(both=both, forward=forward, back=back)
    assert native(made, "forward")["policer"] == (8e6, 30_000) and native(made, "forward")["red"] == (
        0.1,
        0.5,
    )
    assert native(made, "back")["codel"] and native(made, "back")["mark_bytes"] == 6_250
    for way in ("forward", "back"):
        assert native(load(file), way) == native(made, way)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("both: {rate: fast}", "mine.yaml:1: both.rate: 'fast' is no rate"),
        ("both:\n  delays: 1 ms", "mine.yaml:2: both.delays: unknown key: did you mean delay?"),
        ("both:\n  loss: 0.1", "mine.yaml:2: both.loss: 0.1 is no share"),
        ("forward: {buffer: 2 BDP}", "a path without a rate has no bandwidth-delay product"),
        ("forward: {ecn: 2 BDP}", "a path without a rate has no bandwidth-delay product"),
        ("both: {ecn: aqm}", "aqm marks where RED or CoDel would drop"),
        ("both: {aqm: fast}", "mine.yaml:1: both.aqm: fast is no queue management"),
        ("both: {bursts: {begin: 1 %}}", "end is missing"),
        ("both: {delay: 400 s, jitter: 400 s}", "more than 10 minutes together"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_line(text: str, where: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(ExperimentError) as caught:
        load(file)
    assert where in str(caught.value)


def test_options_that_are_none_are_named() -> None:
    for options, word in [({"losses": "1%"}, "loss"), ({"reorder": "5%"}, "SHARE,BY"), ({"mtu": "12"}, "68")]:
        with pytest.raises(Problem, match=word):
            said(options)


def test_ticks_follow_the_delay_within_bounds() -> None:
    ticks = [Profile(both=said({"delay": d})).tick_ns for d in ("0", "5ms", "10ms", "1s")]
    assert ticks == [100_000, 100_000, 200_000, 500_000]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["relay", "--listen", "127.0.0.1:0", "--to", "here"], 2, "ADDRESS:PORT"),
        (["relay", "--listen", "127.0.0.1:0", "--to", "127.0.0.1:9", "--loss", "1"], 2, "percentage"),
        (["relay", "--listen", "127.0.0.1:0", "--to", "127.0.0.1:9", "--rtt", "1ms", "--delay", "1ms"], 2, "one way"),
        (["relay", "--listen", "127.0.0.1:0", "--to", "127.0.0.1:9", "--back", "loss"], 2, "NAME=VALUE"),
        (["relay", "--listen", "127.0.0.1:0", "--to", "127.0.0.1:9", "--profile", "no-such"], 3, "satellite"),
        (["relay", "--listen", "192.0.2.1:7", "--to", "127.0.0.1:9"], 1, "192.0.2.1:7"),
        (["set", "nobody"], 2, "nothing to change"),
        (["set", "nobody", "--loss", "many"], 2, "percentage"),
        (["set", "nobody", "--loss", "1%"], 1, "there is no path 'nobody'"),
        (["status", "../x"], 1, "letters, digits"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_said(
    arguments: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["lab", "wan", *arguments]) == code
    said_so = capsys.readouterr().err
    assert words in said_so, said_so
