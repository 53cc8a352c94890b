"""The expected time of a transfer: how near it is, what the range holds, and that its state is bounded."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from harness import Waystage
from waystage.staging.measured import PER_PAIR, PER_SHAPE, Sample, kept, measured, samples_of
from waystage.staging.rates import estimate


class Storage:
    """A pair of ends at which a transfer takes a + b * bytes + c * files, within 8 %; one of eight meets others."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        uniform = self._draw.uniform
        self._parameters = 10 ** uniform(-2, 0.5), 10 ** uniform(-10, -7), 10 ** uniform(-5, -2)

    def amount(self) -> tuple[int, int]:
        """From one file to 100,000, of 300 bytes to 100 MB each."""
        files = int(10 ** self._draw.uniform(0, 5))
        return min(10**12, int(files * 10 ** self._draw.uniform(2.5, 8))), files

    def seconds(self, size: int, files: int) -> float:
        a, b, c = self._parameters
        return a + b * size + c * files

    def measure(self) -> Sample:
        size, files = self.amount()
        busy = self._draw.choice((3, 6)) if self._draw.random() < 1 / 8 else 1
        return Sample(size, files, self.seconds(size, files) * self._draw.lognormvariate(0, 0.08) * busy)


def test_after_ten_measured_transfers_estimates_are_within_25_percent_and_ranges_hold() -> None:
    near = inside = asked = 0
    for seed in range(24):
        storage = Storage(seed)
        samples = [storage.measure() for _ in range(10 + seed)]
        for _ in range(5):
            size, files = storage.amount()
            found, truth = estimate(samples, size, files), storage.seconds(size, files)
            assert found is not None
            asked += 1
            near += abs(found.seconds / truth - 1) <= 0.25
            inside += found.least <= truth <= found.greatest
    assert near >= 0.95 * asked and inside >= 0.9 * asked, (near, inside, asked)


def test_what_the_measurements_cannot_tell_apart_is_in_the_range() -> None:
    samples = [Sample(10**9, 1000, 10.0)] * 5
    found = estimate(samples, 10**9, 100_000)  # a hundred times as many files, of as many bytes
    assert found is not None and found.least <= 10.0 and found.greatest >= 1000.0
    found = estimate(samples, 4 * 10**9, 4000)
    assert (
        found is not None and found.seconds == pytest.approx(40.0) and found.times_larger == pytest.approx(4)
    )
    assert estimate([Sample(100, 1, 0.001)], 10, 1) is None, "it measured the start of an engine"


def test_storage_that_became_slower_is_followed() -> None:
    old = [Sample(size, 10, size / 1e8) for size in (10**9, 2 * 10**9, 5 * 10**9)] * 20
    new = [Sample(size, 10, size / 1e7) for size in (10**9, 2 * 10**9, 5 * 10**9)] * 12
    found = estimate([*new, *old], 10**9, 10)
    assert found is not None and found.seconds == pytest.approx(100.0, rel=0.25)


amounts = some.builds(
    Sample,
    some.integers(0, 2**62),
    some.integers(0, 2**40),
    some.floats(0, 1e12, allow_nan=False),
)


@settings(max_examples=50, deadline=None)
@given(some.lists(amounts, max_size=12), some.integers(0, 2**62), some.integers(0, 2**40))
def test_any_measurements_give_an_estimate_in_its_range_or_none(
    samples: list[Sample], size: int, files: int
) -> None:
    found = estimate(samples, size, files)
    assert found is None or 0 <= found.least <= found.seconds <= found.greatest < float("inf")


def test_equal_copies_displace_none_of_another_size_and_the_file_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAYSTAGE_RATES", str(tmp_path / "state/rates.json"))
    measured("a -> b", Sample(10**12, 3, 100.0))
    for number in range(50):
        measured("a -> b", Sample(10**6 + number, 10, 1.0))
    found = samples_of("a -> b")
    assert len(found) == PER_SHAPE + 1 and found[-1] == Sample(10**12, 3, 100.0)
    assert found[0].bytes == 10**6 + 49, "the latest are first"
    assert (tmp_path / "state/rates.json").stat().st_mode & 0o777 == 0o600
    for number in range(100):
        measured(f"a -> {number}", Sample(10**6, 1, 1.0))
    assert not samples_of("a -> b") and samples_of("a -> 99")
    many = [Sample(4**i, 4**j, 1.0) for i in range(30) for j in range(20)]
    assert len(kept(many)) == PER_PAIR
    (tmp_path / "state/rates.json").write_bytes(b'{"pairs": {"a": [[1,')
    assert samples_of("a -> 99") == []
    measured("a -> b", Sample(10**6, 1, 1.0))
    assert len(samples_of("a -> b")) == 1


def test_a_dry_run_of_a_copy_expects_what_earlier_copies_took(
    waystage: Waystage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAYSTAGE_RATES", str(tmp_path / "rates.json"))
    (tmp_path / "source").mkdir()
    for number in range(8):
        (tmp_path / "source" / str(number)).write_bytes(bytes(1 << 20))
    before = waystage("copy", "source", "there", "--dry-run")
    assert before.code == 0 and "expected time: unknown" in before.out
    assert waystage("copy", "source", "there").code == 0
    pairs = (
        json.loads((tmp_path / "rates.json").read_text())["pairs"]
        if (tmp_path / "rates.json").exists()
        else {}
    )
    [pair] = pairs or [json.loads(waystage("copy", "source", "x", "--dry-run", "--json").out)["between"]]
    (tmp_path / "rates.json").write_text(json.dumps({"pairs": {pair: [[8 << 20, 8, 3.0]]}}))
    told = waystage("copy", "source", "again", "--dry-run")
    assert "expected time: 3.0 s; " in told.out and f"by 1 measured copies, {pair}" in told.out
    assert waystage("copy", "source", "again", "--bandwidth-limit", "1G").code == 0
    assert len(json.loads((tmp_path / "rates.json").read_text())["pairs"][pair]) == 1, (
        "a limited one measures the limit"
    )
