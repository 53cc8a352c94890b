"""Rates and ending times are SimGrid's, where SimGrid is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from waystage.bench import BenchOptions, run_benchmark


@pytest.mark.skipif(
    not Path("/usr/include/simgrid/s4u.hpp").is_file(), reason="libsimgrid-dev is not installed"
)
def test_rates_and_ending_times_are_those_of_simgrid() -> None:
    answer = run_benchmark("simgrid", BenchOptions(quick=True))
    assert answer["details"]["flows"] > 100
    assert answer["figures"]["max_rel_error"] < 1e-6
