"""`make bench-quick`: what `scripts/bench` gives each benchmark of the time that it has."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from waystage.bench import benchmarks, durations

SCRIPT = Path(__file__).parents[1] / "scripts" / "bench"
WHOLE_S = 1800
STAND_IN = """#!/bin/sh
echo $(date +%s) "$@" >> calls
echo '{}'
"""


class Limit(NamedTuple):
    """What a smoke run is given, and at most how long the runs had been going on by then."""

    seconds: int
    elapsed_s: int


def limits(folder: Path, names: list[str]) -> dict[str, Limit]:
    """By name, where no benchmark takes any time."""
    binaries = folder / ".venv" / "bin"
    binaries.mkdir(parents=True)
    (binaries / "python").symlink_to(sys.executable)
    (binaries / "waystage").write_text(STAND_IN, encoding="utf-8")
    (binaries / "waystage").chmod(0o755)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    began = int(time.time())
    subprocess.run(
        ["bash", SCRIPT, "--quick", *names], cwd=folder, env=environment, check=True, capture_output=True
    )
    calls = [line.split() for line in (folder / "calls").read_text(encoding="utf-8").splitlines()]
    assert all(words[1] == "bench" and "--quick" in words for words in calls)
    return {
        words[2]: Limit(int(words[words.index("--time-limit") + 1]), int(words[0]) - began + 1)
        for words in calls
    }


def test_every_benchmark_says_how_long_it_takes() -> None:
    assert [name for name in benchmarks() if durations(name) is None] == []


@pytest.mark.timeout(600)
def test_smoke_runs_share_the_time_by_what_they_say_they_take(tmp_path: Path) -> None:
    names = list(benchmarks())
    given = limits(tmp_path, names)
    assert list(given) == names
    quick_s = {name: (durations(name) or (0, 0))[1] for name in names}
    first, last = given[names[0]], given[names[-1]]
    share = quick_s[names[0]] / sum(quick_s.values())
    # None takes any time here, so that each leaves its part to those after it.
    assert share * (WHOLE_S - first.elapsed_s) - 1 <= first.seconds <= share * WHOLE_S
    assert WHOLE_S - last.elapsed_s <= last.seconds <= WHOLE_S
    longest = max(names[: len(names) // 4], key=lambda name: quick_s[name])
    shortest = min(names[: len(names) // 4], key=lambda name: quick_s[name])
    assert given[longest].seconds > given[shortest].seconds
