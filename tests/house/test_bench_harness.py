"""The benchmark harness, through the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import Waystage

GOOD = '''"""How fast one and one make two.

Details.
"""
def run(options):
    options.progress("adding", 0.5)
    if options.out is not None:
        (options.out / "note.txt").write_text("kept")
    return {
        "figures": {"sum": 1 + 1, "quick": int(options.quick), "repetitions": options.repetitions or 0},
        "peers": {"by_hand": 2.0},
        "details": {"why": "because"},
    }
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    bench = tmp_path / "bench"
    bench.mkdir()
    (bench / "adding.py").write_text(GOOD)
    (bench / "_helper.py").write_text("raise RuntimeError('not a benchmark')")
    return bench


def test_json_is_one_object_with_the_machine(folder: Path, waystage: Waystage) -> None:
    ran = waystage("bench", "adding", "--json", "--quick", "--repetitions", "3", "--out", "kept")
    assert ran.code in (0, 7), ran.err
    result = ran.json
    assert set(result) == {"name", "figures", "peers", "machine", "details"}
    assert result["figures"] == {"sum": 2, "quick": 1, "repetitions": 3}
    assert {"cores", "kernel", "idle_pct", "steal_pct", "short_of_cpu"} <= set(result["machine"])
    assert (folder.parent / "kept" / "note.txt").read_text() == "kept"


def test_the_table_shows_figures_and_peers(folder: Path, waystage: Waystage) -> None:
    ran = waystage("bench", "adding")
    assert "sum" in ran.out and "by_hand" in ran.out and "machine:" in ran.out


def test_without_a_name_the_benchmarks_are_listed(folder: Path, waystage: Waystage) -> None:
    ran = waystage("bench", "--json")
    assert ran.json == {"benchmarks": {"adding": "How fast one and one make two."}}


def test_an_unknown_benchmark_names_the_known_ones(folder: Path, waystage: Waystage) -> None:
    ran = waystage("bench", "subtracting")
    assert ran.code == 3 and "subtracting" in ran.err and "adding" in ran.err


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ("def run(options): return 1", "no mapping"),
        ("def run(options): return {'figures': {'a': 'many'}}", "no number"),
        ("x = 1", "no function run"),
    ],
)
def test_a_wrong_answer_is_named(folder: Path, waystage: Waystage, body: str, word: str) -> None:
    (folder / "wrong.py").write_text(body)
    ran = waystage("bench", "wrong")
    assert ran.code == 3 and word in ran.err and "wrong" in ran.err


def test_a_benchmark_that_fails_is_no_bad_input(folder: Path, waystage: Waystage) -> None:
    (folder / "late.py").write_text(
        "from waystage.bench import BenchError\ndef run(o): raise BenchError('the paths had not changed')"
    )
    ran = waystage("bench", "late")
    assert ran.code == 1 and "the paths had not changed" in ran.err


def test_a_run_that_calls_itself_invalid_exits_with_7(folder: Path, waystage: Waystage) -> None:
    (folder / "bad.py").write_text("def run(o): return {'figures': {'a': 1}, 'details': {'valid': False}}")
    ran = waystage("bench", "bad", "--json")
    assert ran.code == 7 and ran.json["figures"] == {"a": 1}


def test_medians_with_intervals_and_dropped_measurements_are_printed(
    folder: Path, waystage: Waystage
) -> None:
    (folder / "late.py").write_text(
        "from waystage.bench import take_turns\n"
        "def run(o):\n"
        "    turns = take_turns(o, {'ours': lambda turn: {'s': 1.0}}, turns=3, invalid=lambda f: None if f['turn'] else 'late')\n"
        "    return {'figures': {'s': turns.median('ours', 's')}, 'details': turns.details()}\n"
    )
    ran = waystage("bench", "late")
    assert "dropped: ours, turn 1: late" in ran.out
    assert ["ours", "s", "1", "1", "1", "2"] in [line.split() for line in ran.out.splitlines()]
