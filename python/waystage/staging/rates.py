"""How long a transfer is expected to take, by what was measured between the same ends.

Arrives: measured transfers, the latest first; an amount.
Leaves: the expected time with its range, or None where nothing was measured.
Must not know: where measurements are kept.

A transfer takes a + b * bytes + c * files, with a, b, c >= 0: the start, the bytes at the rate of the slower end, and what
each file costs (open, create, attributes). The parameters are those with the least absolute logarithms of expected over measured,
by iteratively reweighted least squares, so that a transfer that shared its storage with others does not decide; later ones
count more. A model has as many parameters as the measurements can tell apart: transfers of one size and one number of
files say nothing of either alone, and a file then counts as `FILE_BYTES`. The range has what every model says that fits
about as well, and the residuals; where there are fewer kinds of measurements than a model has parameters, also what
bytes alone and files alone say.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

LEAST_SECONDS = 0.05
"""Shorter transfers measure the start of an engine."""

FILE_BYTES = 256 * 1024
"""What a file costs beside its bytes, in bytes, where measurements do not tell: 1 ms at 250 MB/s."""

HALF_LIFE = 32
"""Later measurements after which one counts half."""

ROUNDS = 20
"""Of reweighting; the fit has settled before."""

EXACT = 0.02
"""Residuals below this share are noise of the clock and the scheduler."""

PER_PARAMETER = 0.02
"""By how much a further parameter must lower the mean residual."""

ABOUT_AS_GOOD = 1.3
"""Models whose mean residual is within this factor of the best one's, or `PER_PARAMETER` of it, are in the range."""


class Measured(Protocol):
    @property
    def bytes(self) -> int: ...
    @property
    def files(self) -> int: ...
    @property
    def seconds(self) -> float: ...


class Estimate(msgspec.Struct, frozen=True):
    """Expected seconds with their range, by `count` measured transfers.

    `times_larger`: how many times larger the amount is than the largest one measured; 1 or less: none is extrapolated.
    """

    seconds: float
    least: float
    greatest: float
    count: int
    times_larger: float = 1.0


Terms = tuple[float, ...]

_START, _BYTES, _FILES, _BOTH = range(4)

_MODELS = (
    (_BOTH,),
    (_BYTES,),
    (_FILES,),
    (_START, _BOTH),
    (_START, _BYTES),
    (_START, _FILES),
    (_BYTES, _FILES),
    (_START, _BYTES, _FILES),
)
"""Each by its terms; `_BOTH` is bytes and files at the price of `FILE_BYTES`."""


def shape_of(size: int, files: int) -> tuple[int, int]:
    """The class of an amount: its bytes and its files by powers of 4."""
    return size.bit_length() // 2, files.bit_length() // 2


def estimate(samples: Sequence[Measured], size: int, files: int) -> Estimate | None:
    """The expected time for `files` files with `size` bytes together."""
    usable = [each for each in samples if each.seconds >= LEAST_SECONDS and (each.bytes or each.files)]
    if not usable:
        return None
    shapes = len({shape_of(each.bytes, each.files) for each in usable})
    fits = [fit for model in _MODELS if len(model) <= max(1, shapes - 1) and (fit := _fitted(model, usable))]
    best = min(fits, key=lambda fit: fit.residual + PER_PARAMETER * len(fit.model))
    limit = max(ABOUT_AS_GOOD * best.residual, best.residual + PER_PARAMETER)
    wanted = _terms(size, files)
    expected = best.of(wanted)
    few = shapes <= len(_MODELS[-1])
    possible = [fit.of(wanted) for fit in fits if fit.residual <= limit or (few and len(fit.model) == 1)]
    spread = math.exp(best.spread * (1 + 2 / len(usable)))
    largest = max(_terms(each.bytes, each.files)[_BOTH] for each in usable)
    return Estimate(
        expected,
        min(possible) / spread,
        max(possible) * spread,
        len(usable),
        round(wanted[_BOTH] / largest, 3),
    )


class _Fit(msgspec.Struct, frozen=True):
    """`residual`: weighted mean of absolute logarithms of expected over measured; `spread`: nine of ten are below."""

    model: tuple[int, ...]
    parameters: Terms
    residual: float
    spread: float

    def of(self, terms: Terms) -> float:
        return sum(value * terms[term] for term, value in zip(self.model, self.parameters, strict=True))


def _terms(size: int, files: int) -> Terms:
    return 1.0, float(size), float(files), float(size + files * FILE_BYTES)


def _fitted(model: tuple[int, ...], samples: Sequence[Measured]) -> _Fit | None:
    """None where a parameter would be negative: then a model without it is the better one."""
    rows = [[_terms(each.bytes, each.files)[term] / each.seconds for term in model] for each in samples]
    # In units in which parameters are near 1: bytes and files differ by many orders of magnitude.
    scale = [max(row[i] for row in rows) for i in range(len(model))]
    if not all(scale):
        return None
    rows = [[value / unit for value, unit in zip(row, scale, strict=True)] for row in rows]
    age = [0.5 ** (i / HALF_LIFE) for i in range(len(rows))]
    weights, ratios = age, [0.0] * len(rows)
    parameters: list[float] = []
    for _ in range(ROUNDS):
        found = _least_squares(rows, weights)
        if found is None or min(found) < 0:
            return None
        before, ratios = ratios, [max(_dot(row, found), 1e-9) for row in rows]
        # Half of the weight expects more and half less, where one median of them all is out.
        middle = _median(ratios, age)
        parameters, ratios = [value / middle for value in found], [ratio / middle for ratio in ratios]
        if max(abs(a - b) for a, b in zip(before, ratios, strict=True)) < EXACT / 10:
            break
        weights = [old * _weight(ratio) for old, ratio in zip(age, ratios, strict=True)]
    logarithms = [abs(math.log(ratio)) for ratio in ratios]
    residual = _dot(age, logarithms) / sum(age)
    spread = max(EXACT, sorted(logarithms)[math.ceil(0.9 * len(rows)) - 1])
    values = tuple(value / unit for value, unit in zip(parameters, scale, strict=True))
    return _Fit(model, values, residual, spread)


def _weight(ratio: float) -> float:
    """Of a squared residual, so that the sum is that of absolute logarithms: too much and too little count alike."""
    residual = max(abs(ratio - 1), EXACT)
    return max(abs(math.log(ratio)), EXACT) / residual**2


def _median(values: Sequence[float], weights: Sequence[float]) -> float:
    half, so_far = sum(weights) / 2, 0.0
    for value, weight in sorted(zip(values, weights, strict=True)):
        so_far += weight
        if so_far >= half:
            return value
    return 1.0


def _least_squares(rows: Sequence[Sequence[float]], weights: Sequence[float]) -> list[float] | None:
    """Parameters by which every row gives 1, weighted; None where the rows do not determine them."""
    count = len(rows[0])
    matrix = [
        [sum(w * row[i] * row[j] for w, row in zip(weights, rows, strict=True)) for j in range(count)]
        + [sum(w * row[i] for w, row in zip(weights, rows, strict=True))]
        for i in range(count)
    ]
    largest = max(matrix[i][i] for i in range(count))
    for i in range(count):
        pivot = max(range(i, count), key=lambda k: abs(matrix[k][i]))
        matrix[i], matrix[pivot] = matrix[pivot], matrix[i]
        if abs(matrix[i][i]) <= 1e-9 * largest:
            return None
        for k in itertools.chain(range(i), range(i + 1, count)):
            factor = matrix[k][i] / matrix[i][i]
            matrix[k] = [a - factor * b for a, b in zip(matrix[k], matrix[i], strict=True)]
    return [matrix[i][count] / matrix[i][i] for i in range(count)]


def _dot(one: Iterable[float], other: Iterable[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))
