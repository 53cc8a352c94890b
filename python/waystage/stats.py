"""Statistics of results and benchmarks.

Arrives: plain numbers.
Leaves: medians, percentiles and intervals.
Must not know: what was measured.

Intervals of means are Student's; every other is a percentile bootstrap (Efron and Tibshirani, "An Introduction to the
Bootstrap", 1993, chapter 13) from a seeded generator, so that the same samples always give the same interval.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 2000
"""The bounds of a 95 % interval then vary by about 1 % of its width between seeds."""

Statistic = Callable[[NDArray[np.float64]], float]


@dataclass(frozen=True)
class Interval:
    """A confidence interval."""

    low: float
    high: float


@dataclass(frozen=True)
class Summary:
    """Summary of a sample; `low` and `high` bound the median with 95 % confidence."""

    count: int
    median: float
    low: float
    high: float
    mean: float
    minimum: float
    maximum: float
    p99: float

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


def median(values: Sequence[float]) -> float:
    """The middle value. Raises ValueError on an empty sample."""
    return float(np.median(_array(values)))


def percentile(values: Sequence[float], percent: float) -> float:
    """The value below which `percent` of the sample is, interpolated linearly between neighbours."""
    if not 0 <= percent <= 100:
        raise ValueError(f"a percentile is between 0 and 100, not {percent}")
    return float(np.percentile(_array(values), percent))


def bootstrap_interval(
    values: Sequence[float] | Sequence[Sequence[float]],
    statistic: Statistic | None = None,
    *,
    confidence: float = 0.95,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Interval:
    """The interval of `statistic` (the median by default) over `values`.

    A sample of rows, such as (before, after) pairs, is resampled by row; `statistic` receives the resampled rows as an
    array.
    """
    sample = _array(values)
    compute: Statistic = statistic if statistic is not None else (lambda rows: float(np.median(rows)))
    generator = np.random.default_rng(seed)
    count = len(sample)
    found = [compute(sample[generator.integers(0, count, count)]) for _ in range(resamples)]
    tail = (1 - confidence) / 2 * 100
    low, high = np.percentile(np.asarray(found), [tail, 100 - tail])
    return Interval(float(low), float(high))


LEAST_SAMPLES = 5
"""For smaller samples, the range is given instead of an interval."""


@dataclass(frozen=True)
class Spread:
    """`low` and `high` of a statistic over `count` samples: a 95 % interval, or the range where they are few."""

    low: float
    high: float
    count: int
    is_range: bool

    def text(self, digits: int, of: str) -> str:
        """`95 %: 1.2 .. 1.4 (10 sets)`, or `range: 1.2 .. 1.4 (2 sets)`."""
        kind = "range" if self.is_range else "95 %"
        return f"{kind}: {self.low:.{digits}f} .. {self.high:.{digits}f} ({self.count} {of})"


def spread(
    rows: Sequence[float] | Sequence[Sequence[float]], statistic: Statistic | None = None
) -> Spread | None:
    """An interval of `statistic` (the mean by default) from independent `rows`; None for fewer than two.

    Student's t on the jackknife's pseudo-values (Tukey, 1958), which for the mean are the values themselves. A
    percentile bootstrap of ten samples is too narrow by a tenth; the jackknife is not. Of fewer than `LEAST_SAMPLES`
    rows the range of the statistic over single rows is given.
    """
    sample = _array(rows)
    compute: Statistic = statistic if statistic is not None else (lambda values: float(np.mean(values)))
    count = len(sample)
    if count < 2:
        return None
    if count < LEAST_SAMPLES:
        single = [compute(sample[i : i + 1]) for i in range(count)]
        return Spread(min(single), max(single), count, True)
    whole = compute(sample)
    pseudo = [count * whole - (count - 1) * compute(np.delete(sample, i, axis=0)) for i in range(count)]
    half = student_t(count - 1) * float(np.std(pseudo, ddof=1)) / count**0.5
    return Spread(whole - half, whole + half, count, False)


def median_spread(values: Sequence[float]) -> Spread | None:
    """The median's bootstrap interval, or the range of few values; None for fewer than two."""
    if len(values) < 2:
        return None
    if len(values) < LEAST_SAMPLES:
        return Spread(min(values), max(values), len(values), True)
    interval = bootstrap_interval(values)
    return Spread(interval.low, interval.high, len(values), False)


def student_t(freedom: int) -> float:
    """The 97.5 % quantile of Student's t.

    Exact to three digits to 4 degrees of freedom, beyond them Cornish and Fisher's expansion (Abramowitz and Stegun,
    26.7.5), wrong by less than 0.001.
    """
    if freedom < len(_T_OF_FEW):
        return _T_OF_FEW[freedom]
    z, n = 1.959963984540054, float(freedom)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / n ** (i + 1) for i, term in enumerate(terms))


_T_OF_FEW = (float("inf"), 12.706, 4.303, 3.182, 2.776, 2.571, 2.447)


def reduction_pct(before: Sequence[float], after: Sequence[float]) -> float:
    """By how many percent the mean of `after` is below that of `before`; negative where it is above."""
    rows = _pairs(before, after)
    return _reduction(rows)


def reduction_spread(before: Sequence[float], after: Sequence[float]) -> Spread | None:
    """The spread of `reduction_pct`; `before[i]` and `after[i]` belong to the same repetition."""
    return spread(_pairs(before, after).tolist(), _reduction)


def summary(values: Sequence[float], *, seed: int = 0) -> Summary:
    """Everything a table shows of `values`."""
    sample = _array(values)
    interval = bootstrap_interval(values, seed=seed)
    return Summary(
        count=len(sample),
        median=float(np.median(sample)),
        low=interval.low,
        high=interval.high,
        mean=float(np.mean(sample)),
        minimum=float(np.min(sample)),
        maximum=float(np.max(sample)),
        p99=float(np.percentile(sample, 99)),
    )


def _array(values: Sequence[Any]) -> NDArray[np.float64]:
    sample = np.asarray(values, dtype=np.float64)
    if sample.size == 0:
        raise ValueError("no values to compute a statistic of")
    return sample


def _pairs(before: Sequence[float], after: Sequence[float]) -> NDArray[np.float64]:
    if len(before) != len(after):
        raise ValueError(f"{len(before)} values before and {len(after)} after are no pairs")
    return np.column_stack((_array(before), _array(after)))


def _reduction(rows: NDArray[np.float64]) -> float:
    before, after = rows.mean(axis=0)
    return float(100 * (1 - after / before))
