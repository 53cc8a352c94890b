"""The mapping benchmark ends, whatever trace it is given, and its bound is one."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from harness import bench_module

MAPPING = bench_module("mapping")


@given(st.lists(st.integers(0, 10_000), max_size=10))
def test_the_most_even_half_is_that_of_all_divisions(amounts: list[int]) -> None:
    total = sum(amounts)
    sums = [sum(chosen) for n in range(len(amounts) + 1) for chosen in itertools.combinations(amounts, n)]
    least = min(max(s, total - s) for s in sums)
    found = MAPPING.most_even_half(np.array(amounts, dtype=np.int64))
    assert found <= least <= found * (1 + MAPPING.EVEN) + 1e-9


def test_the_work_on_thousands_of_amounts_is_bounded() -> None:
    """An all-to-all trace gives one switch thousands of amounts; an exact answer would list 2^4000 sums."""
    rng = np.random.default_rng(1)
    amounts = rng.lognormal(8, 2, 4000).astype(np.int64)
    amounts[0] = amounts.sum() // 2  # no greedy division is even
    found = MAPPING.most_even_half(amounts)
    assert amounts.sum() / 2 <= found <= amounts.sum() * 0.51
    assert MAPPING.most_even_half(amounts, most_work=0) == amounts.sum() / 2
