"""Files given to a benchmark instead of its defaults."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import Waystage

TAKES_A_TRACE = '''"""How long a trace is."""
INPUTS = ("trace",)


def run(options):
    return {"figures": {"bytes": options.inputs["trace"].stat().st_size if options.inputs else 0}}
'''


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    bench = tmp_path / "bench"
    bench.mkdir()
    (bench / "length.py").write_text(TAKES_A_TRACE)
    path = tmp_path / "some.trace"
    path.write_bytes(b"12345")
    return path


def test_a_benchmark_gets_the_trace_it_takes(trace: Path, waystage: Waystage) -> None:
    assert waystage("bench", "length", "--json", "--trace", str(trace)).json["figures"] == {"bytes": 5}
    assert waystage("bench", "length", "--json").json["figures"] == {"bytes": 0}


def test_an_input_that_a_benchmark_does_not_take_is_refused(trace: Path, waystage: Waystage) -> None:
    ran = waystage("bench", "length", "--topology", str(trace))
    assert ran.code == 3 and "length takes no --topology" in ran.err
