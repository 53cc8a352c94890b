"""Benchmarks that measure in separate processes: a file beside them may have the name of a module of Python's."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import Waystage

BENCH = Path(__file__).parents[2] / "bench"


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "figure"), [("sim-scale", "peak_gib"), ("catalog-scale", "peak_gib")])
def test_it_runs_and_says_what_its_child_measured(waystage: Waystage, name: str, figure: str) -> None:
    ran = waystage("bench", name, "--quick", "--json", WAYSTAGE_BENCH_DIR=str(BENCH), timeout=580)
    assert ran.code in (0, 7), ran.out + ran.err
    assert ran.json["figures"][figure] > 0
