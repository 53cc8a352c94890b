"""Sizes and rates: one reader, one meaning everywhere, and a sentence for what is none."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import Waystage
from waystage.units import MOST_BYTES, UnitError, parse_bit_rate, parse_rate, parse_size

REPOSITORY = Path(__file__).parents[1]

POWERS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50,
          "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "PB": 10**15,
          "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}  # fmt: skip
"""As rclone and rsync document them."""


@given(st.integers(0, 8000), st.sampled_from(sorted(POWERS)), st.booleans(), st.sampled_from(["", " "]))
def test_each_prefix_has_one_meaning_in_either_case(
    number: int, prefix: str, small: bool, space: str
) -> None:
    wanted = number * POWERS[prefix]
    suffix = "B" if "i" in prefix and number % 2 else ""
    prefix = prefix[:1].lower() + prefix[1:] if small else prefix
    text = f"{number}{space}{prefix}{suffix}"
    if wanted > MOST_BYTES:
        with pytest.raises(UnitError, match="the most is"):
            parse_size(text)
        return
    assert parse_size(text) == wanted
    if wanted:
        assert parse_rate(text) == parse_rate(f"{text}/s") == wanted
    if "B" in prefix and wanted:
        assert parse_bit_rate(f"{number}{space}{prefix[0]}bit/s") == wanted


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (parse_size, "1.5GB", 1_500_000_000),
        (parse_size, "1.5G", 3 << 29),
        (parse_rate, "10M/s", 10 << 20),
        (parse_size, "1.1GiB", 1_181_116_006),
        (parse_size, 8, 8),
        (parse_size, 8e6, 8_000_000),
        (parse_size, "9223372036854775807", MOST_BYTES),
        (parse_rate, "800Mbit", 100_000_000),
        (parse_rate, "1 Gbit/s", 125_000_000),
        (parse_rate, "200 MB/s", 200_000_000),
        (parse_bit_rate, "2.5gbps", 2.5e9),
        (parse_bit_rate, "1Kibit", 1024.0),
    ],
)
def test_what_people_write_is_read(read: Callable[[object], float], text: object, value: float) -> None:
    assert read(text) == value


@pytest.mark.parametrize(
    ("read", "text", "words"),
    [
        (parse_size, "-1", "it is negative"),
        (parse_size, -1, "it is negative"),
        (parse_size, "nan", "is no amount of bytes"),
        (parse_size, float("nan"), "must be an integer"),
        (parse_size, float("inf"), "must be an integer"),
        (parse_size, True, "is no amount of bytes"),
        (parse_size, None, "is no amount of bytes"),
        (parse_size, "", "is no amount of bytes"),
        (parse_size, "1e9", "is no amount of bytes"),
        (parse_size, "1_000", "is no amount of bytes"),
        (parse_size, "٣M", "is no amount of bytes"),
        (parse_size, "0.5", "not a whole number of bytes"),
        (parse_size, "1.5B", "not a whole number of bytes"),
        (parse_size, "0.0001k", "not a whole number of bytes"),
        (parse_size, "9223372036854775808", "the most is"),
        (parse_size, "9" * 31, "is no amount of bytes"),
        (parse_size, "8Mb", "may mean bits or bytes: write MB for bytes"),
        (parse_size, "8Mbit", "is in bits"),
        (parse_size, "8MB/s", "is a rate"),
        (parse_size, "8X", "kB is 1000"),
        (parse_size, "8i", "kB is 1000"),
        (parse_rate, "0", "the least is 1B"),
        (parse_rate, "8Mb/s", "may mean bits or bytes"),
        (parse_rate, "fast", "is no rate such as 100M"),
        (parse_bit_rate, "100M", "give the unit"),
        (parse_bit_rate, "100MB/s", "give the unit"),
        (parse_bit_rate, "0bit", "the least is 1bit"),
    ],
)
def test_what_is_none_is_refused_in_one_sentence(
    read: Callable[[object], float], text: object, words: str
) -> None:
    with pytest.raises(UnitError, match=words) as refused:
        read(text)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 250


@given(st.text(alphabet="0123456789.-+eKkMmGgiBbt/s _\n٣²", max_size=50))
def test_no_text_does_worse_than_a_sentence(text: str) -> None:
    for read in (parse_size, parse_rate, parse_bit_rate):
        try:
            assert 0 <= read(text) <= 8 * MOST_BYTES
        except UnitError as error:
            assert str(error) and "\n" not in str(error)


def test_a_bound_is_named_as_it_may_be_written() -> None:
    for text, words in (("15Mi", "the least is 16MiB"), ("5Gi", "the most is 4GiB")):
        with pytest.raises(UnitError, match=words):
            parse_size(text, least=16 << 20, most=4 << 30)
    with pytest.raises(UnitError, match="the least is 32kbit"):
        parse_bit_rate("1kbit", least=32_000)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["copy", "a", "b", "--bandwidth-limit", "200Mb"], "may mean bits or bytes"),
        (["copy", "a", "h:b", "--memory", "1K"], "the least is 16MiB"),
        (["proxy", "h", "--socks", "0", "--bandwidth-limit", "-5"], "no rate such as"),
        (["probe", "h", "--max-rate", "100M"], "100 Mbit"),
        (["probe", "h", "--rate", "1kbit"], "the least is 32kbit"),
        (["dedup", "tree", "--bandwidth-limit", "0"], "the least is 1B"),
        (["augment", "a", "b", "--bandwidth-limit", "nan"], "no rate such as"),
        (["load", "tree", "--memory", "256"], "the least is 1MiB"),
        (["load", "tree", "--piece", "1023"], "the least is 1KiB"),
        (["profile-targets", "tree", "--piece", "1023"], "the least is 1KiB"),
        (["notify", "staging-start", "1", "--bytes", "8Mb"], "may mean bits or bytes"),
    ],
)
def test_every_option_reads_units_alike(waystage: Waystage, words: list[str], says: str) -> None:
    ran = waystage(*words)
    text = re.sub(r"[\s│]+", " ", ran.out + ran.err)
    assert ran.code == 2 and says in text, ran


SUFFIXES = re.compile(r"([kmgtp])(i?)(b|bit)?", re.IGNORECASE)

PATTERN = re.compile(r"\\d.*\[[kmgtp]{3,}\]|k\|m\|g", re.IGNORECASE)

OTHERS = {
    "python/waystage/units.py",
    # find's units, where a capital K is none and b is 512 bytes: its page says so.
    "python/waystage/catalog/query.py",
}


def readers_of_units(source: str) -> list[int]:
    """Lines with a table from names of units to numbers, or a pattern that reads them."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Dict):
            keys = [key.value for key in node.keys if isinstance(key, ast.Constant)]
            units = [key for key in keys if isinstance(key, str) and SUFFIXES.fullmatch(key)]
            numbers = [v for v in node.values if not isinstance(v, ast.Name | ast.Tuple | ast.Call)]
            if len(units) >= 2 and len(units) >= len(keys) - 2 and len(numbers) == len(keys):
                lines.append(node.lineno)
        elif isinstance(node, ast.Constant) and PATTERN.search(str(node.value)):
            lines.append(node.lineno)
    return lines


def test_no_other_code_reads_units() -> None:
    found = []
    for folder in ("python", "bench", "examples", "fuzz"):
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            name = str(path.relative_to(REPOSITORY))
            if name not in OTHERS:
                found += [f"{name}:{line}" for line in readers_of_units(path.read_text(encoding="utf-8"))]
    for path in sorted((REPOSITORY / "crates").rglob("*.rs")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if re.search(r"""["']([KMGTkmgt]i?B?)["']\s*(=>|,\s*1)""", line):
                found.append(f"{path.relative_to(REPOSITORY)}:{number}")
    assert found == [], "read sizes and rates with waystage.units"


@pytest.mark.parametrize(
    "source",
    [
        'UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}',
        'F = {"kb": 10**3, "mb": 10**6, "kib": 2**10}',
        'R = {"kbit": 1e3, "mbit": 1e6}',
        're.compile(r"(\\d+)([kmgt]?)")',
    ],
)
def test_another_reader_of_units_would_be_found(source: str) -> None:
    assert readers_of_units(source)
