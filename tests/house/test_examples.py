"""The examples run as their first lines say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
EXAMPLES = sorted((REPOSITORY / "examples").glob("*.py"))


def run(*argv: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY / "examples")}
    return subprocess.run(
        [sys.executable, *argv], cwd=cwd, env=env, capture_output=True, text=True, timeout=150, check=False
    )


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_an_example_runs_and_prints_something(path: Path, tmp_path: Path) -> None:
    ran = run(str(path), cwd=tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.strip()
    assert f"python examples/{path.name}" in path.read_text(encoding="utf-8").split('"""')[1]


def test_the_example_policy_moves_staging_to_the_last_core_and_back(tmp_path: Path) -> None:
    lines = run(str(REPOSITORY / "examples/own_policy.py"), cwd=tmp_path).stdout.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "TopologyChanged",
        "StagingStarted",
        "StagingFinished",
    ]
    assert "'staging': ('core2',)" in lines[1] and "every core" in lines[2]


def test_the_example_policy_loads_by_its_dotted_path(tmp_path: Path) -> None:
    program = "from waystage.policies.base import load_policy; print(load_policy('own_policy:LastCore', seed=3).name)"
    assert run("-c", program, cwd=tmp_path).stdout == "last-core\n"
