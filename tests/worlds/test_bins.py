"""Bins of link use are as short as their number allows, and lose nothing when they are merged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from waystage.worlds import bins
from waystage.worlds.bins import Bin, Bins

KEYS = range(4)
PART = 100_000_000


def add(kept: Bins, end_ns: int, took_ns: int, counts: Mapping[int, int]) -> None:
    keys, values = np.array(list(counts), dtype=np.int64), np.array(list(counts.values()), dtype=np.int64)
    kept.add(end_ns, took_ns, keys, values)


def counts_of(one: Bin) -> dict[int, int]:
    return dict(zip(one.keys.tolist(), one.counts.tolist(), strict=True))


def test_a_short_set_has_a_bin_for_each_reading() -> None:
    kept = Bins(len(KEYS))
    for n in range(1, 61):
        add(kept, n * PART, PART, {KEYS[0]: n})
    assert [(each.end_ns, each.took_ns, counts_of(each)) for each in kept] == [
        (n * PART, PART, {KEYS[0]: n}) for n in range(1, 61)
    ]


def test_a_long_set_has_longer_bins_and_no_more_than_the_bound() -> None:
    kept = Bins(len(KEYS))
    for n in range(1, 36_001):  # an hour
        add(kept, n * PART, PART, {KEYS[0]: 1})
    kept.close()
    found = list(kept)
    assert len(found) <= bins.MOST_BINS
    assert kept.interval_s > 1
    assert sum(counts_of(each)[KEYS[0]] for each in found) == 36_000


def test_a_large_fabric_gets_bins_of_a_second_at_most_for_its_size() -> None:
    kept = Bins(20_000)
    counts = dict.fromkeys(range(20_000), 1)
    for n in range(1, 101):
        add(kept, n * PART, PART, counts)
    assert 0.8 <= kept.interval_s <= 1.6


def test_bins_of_a_given_time_stay_as_they_are() -> None:
    kept = Bins(len(KEYS), 2.0)
    for n in range(1, 101):
        add(kept, n * PART, PART, {KEYS[0]: 1})
    assert [each.took_ns for each in kept] == [2_000_000_000] * 5 and kept.interval_s == 2.0


@given(
    st.lists(
        st.tuples(st.integers(1, 3 * PART), st.dictionaries(st.sampled_from(KEYS), st.integers(0, 10**9))),
        max_size=200,
    ),
    st.integers(2, 20),
)
def test_every_byte_is_in_one_bin_and_bins_follow_each_other(
    readings: list[tuple[int, dict[int, int]]], most: int
) -> None:
    before, bins.MOST_BINS = bins.MOST_BINS, most
    try:
        kept, now = Bins(len(KEYS)), 0
        expected: Counter[int] = Counter()
        for took, counts in readings:
            now += took
            add(kept, now, took, counts)
            expected.update(counts)
        kept.close()
    finally:
        bins.MOST_BINS = before
    found: Counter[int] = Counter()
    end = 0
    for each in kept:
        assert each.end_ns - each.took_ns == end
        end = each.end_ns
        found.update(counts_of(each))
    assert end == now and found == expected and len(list(kept)) <= most


def test_a_day_on_a_large_fabric_has_a_bounded_number_of_counts() -> None:
    kept = Bins(10_000)
    counts = dict.fromkeys(range(10_000), 1)
    for n in range(1, 401):
        add(kept, n * 10 * PART, 10 * PART, counts)
    kept.close()
    assert sum(each.keys.size for each in kept) <= bins.MOST_LONG_COUNTS
    assert sum(counts_of(each)[0] for each in kept) == 400
