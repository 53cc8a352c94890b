"""The benchmark harness, through the command line."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path

import pytest

from harness import Waystage, command
from waystage.bench import Limit, benchmarks, durations, least_durations
from waystage.bench.runner import bench_dir
from waystage.cli.bench import USUAL_LIMIT_S

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


IN_TURNS = '''"""How long two ways to wait take."""
import time
from waystage.bench import take_turns
TAKES_S = 120, 3
def wait(turn):
    time.sleep(0.2)
    print("waited", flush=True)
    return {"seconds": 0.2}
def run(options):
    turns = take_turns(options, {"one": wait, "other": wait}, turns=500)
    return {"figures": {"turns": turns.count}, "details": turns.details()}
'''


def test_a_time_limit_ends_the_run_after_complete_turns(folder: Path, waystage: Waystage) -> None:
    (folder / "waiting.py").write_text(IN_TURNS)
    ran = waystage("bench", "waiting", "--json", "--time-limit", "3")
    assert "takes about 2 min" in ran.err
    result = json.loads(ran.out.splitlines()[-1])
    assert 1 <= result["figures"]["turns"] <= 7
    assert "time limit of 3 s" in result["details"]["stopped"]
    assert {len(rows) for rows in result["details"]["runs"].values()} == {result["figures"]["turns"]}


def test_ctrl_c_prints_the_complete_turns(folder: Path) -> None:
    (folder / "waiting.py").write_text(IN_TURNS)
    waiting = command("bench", "waiting", "--json")
    with subprocess.Popen(waiting, stdout=subprocess.PIPE, text=True, cwd=folder.parent) as running:
        assert running.stdout is not None
        for _ in range(3):  # the second turn has begun
            assert running.stdout.readline() == "waited\n"
        running.send_signal(signal.SIGINT)
        result = json.loads(running.stdout.read().splitlines()[-1])
    assert result["figures"]["turns"] >= 1 and result["details"]["stopped"] == "Ctrl-C"


def test_a_part_without_a_complete_turn_leaves_those_before_it(folder: Path, waystage: Waystage) -> None:
    (folder / "waiting.py").write_text(
        IN_TURNS.replace(
            "turns=500)", "turns=1)\n    time.sleep(1)\n    take_turns(options, {'third': wait}, turns=5)"
        )
    )
    ran = waystage("bench", "waiting", "--json", "--time-limit", "0.9")
    result = json.loads(ran.out.splitlines()[-1])
    assert ran.code == 75 and result["figures"] == {}
    assert result["details"]["part 1"]["turns"] == 1


def test_steps_end_before_the_limit() -> None:
    assert list(Limit().steps(range(5))) == [0, 1, 2, 3, 4]
    assert list(Limit(seconds=1e-9).steps(range(5))) == [0]


@pytest.mark.parametrize(
    ("flags", "seconds"),
    [((), 300), (("--quick",), 300), (("--repetitions", "2"), 0), (("--time-limit", "7"), 7)],
)
def test_a_run_ends_within_five_minutes_unless_turns_or_a_limit_are_given(
    folder: Path, waystage: Waystage, flags: tuple[str, ...], seconds: int
) -> None:
    (folder / "limited.py").write_text(
        '"""What limit a run has."""\nTAKES_S = 900, 50\n'
        "def run(options):\n    return {'figures': {'limit': options.limit.seconds or 0}}\n"
    )
    ran = waystage("bench", "limited", "--json", *flags)
    assert ran.json["figures"]["limit"] == seconds
    assert (f"would end after {seconds} s" in ran.err) == bool(seconds)


def test_each_part_of_a_run_has_its_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("waystage.bench.options.time.monotonic", lambda: now[0])
    limit = Limit(seconds=12.0, _began=0.0)
    begun = []
    for number, parts in enumerate((3, 2, 1)):
        for _ in limit.steps(range(9), parts):
            begun.append(number)
            now[0] += 2.0
    assert begun == [0, 0, 1, 1, 2, 2] and now[0] == 12.0
    assert limit.stopped == "the time limit of 12 s"


def test_a_part_that_took_longer_leaves_the_next_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("waystage.bench.options.time.monotonic", lambda: now[0])
    limit = Limit(seconds=5.0, _began=0.0)
    begun = []
    for number, parts in enumerate((3, 2)):
        for _ in limit.steps(range(9), parts):
            begun.append(number)
            now[0] += 9.0
    assert begun == [0, 1]


def test_every_benchmark_says_beforehand_how_long_it_takes() -> None:
    folder = Path(__file__).parents[2] / "bench"
    assert benchmarks()
    without = [name for name in benchmarks() if durations(name) is None]
    assert folder == bench_dir() and without == []
    for name in benchmarks():
        full, quick = durations(name) or (0, 0)
        assert 0 < quick <= full, name


def test_a_benchmark_that_takes_longer_than_the_usual_limit_says_what_its_smallest_turn_takes() -> None:
    for name in benchmarks():
        takes = durations(name) or (0, 0)
        least = least_durations(name)
        if max(takes) > USUAL_LIMIT_S:
            assert least is not None, name
        if least is not None:
            assert all(0 < smallest <= whole for smallest, whole in zip(least, takes, strict=True)), name


@pytest.mark.parametrize(
    ("flags", "announced"),
    [(("--time-limit", "100"), True), (("--quick",), False), ((), False), (("--repetitions", "1"), False)],
)
def test_a_smallest_turn_that_is_longer_than_the_limit_is_announced(
    folder: Path, waystage: Waystage, flags: tuple[str, ...], announced: bool
) -> None:
    (folder / "long.py").write_text(
        '"""What is announced."""\nTAKES_S = 900, 80\nLEAST_S = 120, 40\n'
        "def run(options):\n    return {'figures': {'one': 1}}\n"
    )
    ran = waystage("bench", "long", "--json", *flags)
    assert ("its smallest turn takes about 2 min, longer than the limit of 100 s" in ran.err) == announced
    assert ("smallest" in ran.err) == announced


CASES = '''"""Which of two cases is measured."""
import time
from waystage.bench import take_turns
TAKES_S = 120, 3
def wait(turn):
    time.sleep(0.3)
    return {"seconds": 0.3}
def run(options):
    contestants = {(who, case): wait for case in ("near", "far") for who in ("one", "other")}
    turns = take_turns(options, contestants, turns=5, case=lambda name: name[1])
    figures = {case: lambda case=case: turns.median(("one", case), "seconds") for case in ("near", "far")}
    return {"figures": options.limit.known(figures), "details": turns.details()}
'''


@pytest.mark.parametrize("flags", [("--json",), ()])
def test_a_run_that_ends_within_a_turn_has_the_figures_of_its_cases_and_names_the_others(
    folder: Path, waystage: Waystage, flags: tuple[str, ...]
) -> None:
    (folder / "cases.py").write_text(CASES)
    ran = waystage("bench", "cases", "--time-limit", "0.9", *flags)
    assert ran.code in (0, 7), ran.err
    if not flags:
        assert "not measured: far" in ran.out.splitlines()
        return
    assert ran.json["figures"] == {"near": 0.3}
    assert ran.json["details"]["missing"] == ["far"]
    assert ran.json["details"]["runs"].keys() == {"one, near", "other, near"}


def test_make_bench_runs_every_benchmark() -> None:
    listed = re.search(
        r"^BENCH \?= (.*?[^\\])$", (Path(__file__).parents[2] / "Makefile").read_text(), re.M | re.S
    )
    assert listed is not None
    names = listed[1].replace("\\\n", " ").split()
    assert sorted(names) == sorted(benchmarks())
