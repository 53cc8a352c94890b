"""Bins of link use are as short as their number allows, and lose nothing when they are merged."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from waystage.worlds import bins
from waystage.worlds.bins import Bins

KEYS = [("core1", port, traffic) for port in (1, 2) for traffic in ("all", "mpi")]
PART = 100_000_000


def test_a_short_set_has_a_bin_for_each_reading() -> None:
    kept = Bins()
    for n in range(1, 61):
        kept.add(n * PART, PART, {KEYS[0]: n})
    assert [(each.end_ns, each.took_ns, each.counts) for each in kept] == [
        (n * PART, PART, {KEYS[0]: n}) for n in range(1, 61)
    ]


def test_a_long_set_has_longer_bins_and_no_more_than_the_bound() -> None:
    kept = Bins()
    for n in range(1, 36_001):  # an hour
        kept.add(n * PART, PART, {KEYS[0]: 1})
    kept.close()
    found = list(kept)
    assert len(found) <= bins.MOST_BINS
    assert kept.interval_s > 1
    assert sum(each.counts[KEYS[0]] for each in found) == 36_000


def test_a_large_fabric_gets_bins_of_a_second_at_most_for_its_size() -> None:
    kept = Bins()
    counts = {("s", port, "all"): 1 for port in range(20_000)}
    for n in range(1, 101):
        kept.add(n * PART, PART, counts)
    assert 0.8 <= kept.interval_s <= 1.6


def test_bins_of_a_given_time_stay_as_they_are() -> None:
    kept = Bins(2.0)
    for n in range(1, 101):
        kept.add(n * PART, PART, {KEYS[0]: 1})
    assert [each.took_ns for each in kept] == [2_000_000_000] * 5 and kept.interval_s == 2.0


@given(
    st.lists(
        st.tuples(st.integers(1, 3 * PART), st.dictionaries(st.sampled_from(KEYS), st.integers(0, 10**9))),
        max_size=200,
    ),
    st.integers(2, 20),
)
def test_every_byte_is_in_one_bin_and_bins_follow_each_other(
    readings: list[tuple[int, dict[bins.Key, int]]], most: int
) -> None:
    before, bins.MOST_BINS = bins.MOST_BINS, most
    try:
        kept, now = Bins(), 0
        expected: Counter[bins.Key] = Counter()
        for took, counts in readings:
            now += took
            kept.add(now, took, counts)
            expected.update(counts)
        kept.close()
    finally:
        bins.MOST_BINS = before
    found: Counter[bins.Key] = Counter()
    end = 0
    for each in kept:
        assert each.end_ns - each.took_ns == end
        end = each.end_ns
        found.update(each.counts)
    assert end == now and found == expected and len(list(kept)) <= most


def test_a_day_on_a_large_fabric_has_a_bounded_number_of_counts() -> None:
    kept = Bins()
    counts = {("s", port, "all"): 1 for port in range(10_000)}
    for n in range(1, 401):
        kept.add(n * 10 * PART, 10 * PART, counts)
    kept.close()
    assert sum(len(each.counts) for each in kept) <= bins.MOST_LONG_COUNTS
    assert sum(each.counts["s", 0, "all"] for each in kept) == 400
