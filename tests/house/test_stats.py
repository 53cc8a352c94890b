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
    reduction_pct,
    reduction_spread,
    spread,
    student_t,
    summary,
)

samples = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40)


@given(samples)
def test_half_of_a_sample_is_on_each_side_of_its_median(values: list[float]) -> None:
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
    """Each `after` is exactly half its `before`, so every sample says 50 %."""
    before = [10.0, 400.0, 7000.0, 2.0, 77.0]
    after = [v / 2 for v in before]
    assert reduction_pct(before, after) == pytest.approx(50)
    for count in (2, 5):
        found = reduction_spread(before[:count], after[:count])
        assert found is not None and found.is_range is (count == 2)
        assert (found.low, found.high) == (pytest.approx(50), pytest.approx(50))


def test_few_samples_have_a_range_and_no_interval() -> None:
    assert spread([1.0]) is None
    two = spread([3.0, 1.0])
    assert two is not None and (two.low, two.high, two.is_range) == (1.0, 3.0, True)
    assert two.text(1, "sets") == "range: 1.0 .. 3.0 (2 sets)"
    five = spread([1.0, 2.0, 3.0, 4.0, 5.0])
    assert five is not None and not five.is_range
    # Mean 3, standard deviation 1.5811, t 2.776 at 4 degrees of freedom.
    assert (five.low, five.high) == (pytest.approx(1.0371, abs=1e-3), pytest.approx(4.9629, abs=1e-3))


@pytest.mark.parametrize(("freedom", "t"), [(4, 2.776), (7, 2.365), (9, 2.262), (29, 2.045), (1000, 1.962)])
def test_students_quantiles_are_those_of_the_tables(freedom: int, t: float) -> None:
    assert student_t(freedom) == pytest.approx(t, abs=6e-4)


def test_an_interval_of_five_covers_the_mean_as_often_as_it_says() -> None:
    generator = random.Random(3)
    covered = 0
    for _ in range(400):
        found = spread([generator.gauss(10, 2) for _ in range(5)])
        assert found is not None
        covered += found.low <= 10 <= found.high
    assert 367 <= covered <= 394  # 380 expected, within three standard deviations


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
