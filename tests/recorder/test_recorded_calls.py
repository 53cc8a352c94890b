"""Every call that changes a file is seen: the catalog is afterwards what a walk would make."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recorder_support import PROGRAMS, differences, run_in
from waystage.catalog import build as build_catalog
from waystage.catalog import refresh

CALLS = [
    line.split("(")[1].split(",")[0].strip()
    for line in (PROGRAMS / "calls.c").read_text(encoding="utf-8").splitlines()
    if line.lstrip().startswith("X(")
]
UNTELLABLE = {"deep": "unplaced"}
"""A working directory whose path is longer than the system can return: counted, and repaired by a refresh."""


@pytest.mark.parametrize("tell_stat", [False, True], ids=["looked", "told"])
@pytest.mark.parametrize("call", CALLS)
def test_a_catalog_knows_what_a_call_changed(
    call: str, tell_stat: bool, tree: Path, catalogued: Path, compiled: Callable[[str], str]
) -> None:
    ran = run_in(tree, catalogued, [compiled("calls"), call], tell_stat=tell_stat)
    if ran.status == 77:
        pytest.skip(f"this machine has no {call}")
    assert ran.status == 0
    assert ran.applied is not None
    if call in UNTELLABLE:
        assert ran.applied.gaps.keys() == {UNTELLABLE[call]}
        refresh(catalogued)
    else:
        assert ran.applied.gaps == {}
        assert ran.counts["records"] > 0
    assert not differences(catalogued)


def test_the_list_of_calls_is_the_programs(compiled: Callable[[str], str]) -> None:
    said = subprocess.run([compiled("calls")], capture_output=True, text=True, check=True).stdout.split()
    assert said == CALLS


@pytest.mark.parametrize("tell_stat", [False, True], ids=["looked", "told"])
def test_a_storm_of_threads_and_killed_children_loses_nothing(
    tell_stat: bool, tree: Path, catalogued: Path, compiled: Callable[[str], str]
) -> None:
    ran = run_in(tree, catalogued, [compiled("storm"), "12000"], tell_stat=tell_stat)
    assert ran.status == 0
    assert ran.applied is not None and ran.applied.gaps == {}
    assert not differences(catalogued)
    assert ran.applied.entries > 8_000


OPERATIONS = """
import os, random, sys
seed, names = int(sys.argv[1]), [f"{a}{b}" for a in ("", "p/", "p/q/", "r/") for b in "abcpqr"]
chance = random.Random(seed)
def content(path):
    with open(path, chance.choice(["w", "a", "r+"])) as file:
        file.write("x" * chance.randrange(9000))
def either(function, count):
    return lambda: function(*chance.choices(names, k=count))
calls = [either(content, 1)] * 6 + [either(os.mkdir, 1)] * 4 + [either(os.rename, 2)] * 4 + [
    either(os.unlink, 1), either(os.rmdir, 1), either(os.link, 2), either(os.symlink, 2),
    either(lambda path: os.truncate(path, 3), 1), either(lambda path: os.chmod(path, 0o640), 1),
    either(lambda path: os.chdir(path), 1), lambda: os.chdir(sys.argv[2])]
for _ in range(chance.randrange(1, 60)):
    try:
        chance.choice(calls)()
    except OSError:
        pass
"""


@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(before=st.integers(0, 2**31), then=st.integers(0, 2**31), tell_stat=st.booleans())
def test_any_sequence_of_changes_gives_the_catalog_of_a_walk(
    before: int, then: int, tell_stat: bool, tmp_path: Path
) -> None:
    """The naive model is the walk; one thing it cannot give is a link pointed elsewhere in between, which is said."""
    tree = Path(tempfile.mkdtemp(dir=tmp_path))
    target = tmp_path / f"{tree.name}.catalog"
    script = [sys.executable, "-S", "-E", "-c", OPERATIONS]
    subprocess.run([*script, str(before), str(tree)], cwd=tree, check=True, timeout=150)
    build_catalog(tree, target)
    ran = run_in(tree, target, [*script, str(then), str(tree)], tell_stat=tell_stat)
    assert ran.status == 0 and ran.applied is not None
    if ran.applied.gaps:
        assert ran.applied.gaps.keys() == {"doubtful"}
        refresh(target)
    assert not differences(target)
