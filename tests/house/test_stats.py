"""Statistics: against definitions, and reproducible."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystage.stats import (
    bootstrap_interval,
    median,
    percentile,
    reduction_interval,
    reduction_pct,
    summary,
)

samples = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40)


@given(samples)
def test_half_of_a_sample_lies_on_each_side_of_its_median(values: list[float]) -> None:
    middle = median(values)
    assert sum(v <= middle for v in values) * 2 >= len(values)
    assert sum(v >= middle for v in values) * 2 >= len(values)


@given(samples, st.floats(0, 100))
def test_percentiles_lie_within_the_sample_and_grow(values: list[float], percent: float) -> None:
    assert percentile(values, 0) == min(values) and percentile(values, 100) == max(values)
    assert min(values) <= percentile(values, percent) <= max(values)
    assert percentile(values, percent / 2) <= percentile(values, percent)


def test_an_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    """Of 200 samples of a known distribution, 95 % should cover its median; a bootstrap of 25 values does a bit less."""
    generator = random.Random(7)
    covered = 0
    for trial in range(200):
        values = [generator.gauss(10, 2) for _ in range(25)]
        interval = bootstrap_interval(values, seed=trial, resamples=300)
        covered += interval.low <= 10 <= interval.high
    assert 175 <= covered <= 200


def test_the_same_sample_has_the_same_interval() -> None:
    values = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0]
    assert bootstrap_interval(values, seed=3) == bootstrap_interval(values, seed=3)
    assert bootstrap_interval([2.0] * 5) == bootstrap_interval([2.0] * 5, seed=9)


def test_rows_are_resampled_whole() -> None:
    """Each `after` is exactly half its `before`, so every resample says 50 %."""
    before = [10.0, 400.0, 7000.0, 2.0]
    after = [v / 2 for v in before]
    assert reduction_pct(before, after) == pytest.approx(50)
    interval = reduction_interval(before, after)
    assert (interval.low, interval.high) == (pytest.approx(50), pytest.approx(50))


def test_a_rise_is_a_negative_reduction() -> None:
    assert reduction_pct([10.0], [15.0]) == pytest.approx(-50)


def test_a_summary_agrees_with_its_parts() -> None:
    values = [float(v) for v in range(1, 102)]
    found = summary(values)
    assert (found.count, found.median, found.minimum, found.maximum) == (101, 51.0, 1.0, 101.0)
    assert found.low <= found.median <= found.high
    assert found.p99 == pytest.approx(float(np.percentile(values, 99)))
    assert set(found.as_dict()) == {"count", "median", "low", "high", "mean", "minimum", "maximum", "p99"}


def test_what_cannot_be_computed_is_an_error() -> None:
    with pytest.raises(ValueError, match="no value"):
        median([])
    with pytest.raises(ValueError, match="between 0 and 100"):
        percentile([1.0], 101)
    with pytest.raises(ValueError, match="no pairs"):
        reduction_pct([1.0, 2.0], [1.0])
