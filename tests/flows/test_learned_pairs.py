"""Whom collectives really send to: learned from the first call, where no prediction says it or where one is wrong."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flow_support import Heard, Serve
from harness import WAIT_S
from learned_pairs_support import PROGRAM, Told
from waystage import events
from waystage.patterns import Pattern

OPEN_MPI = ("mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1")
MPICH = ("mpiexec.mpich",)


LIMIT_S = 150
"""Of a program of four ranks on two processors that others use, too."""

Play = Callable[..., Told]


@pytest.fixture
def play(serve: Serve, heard: Heard, tmp_path: Path) -> Play:
    def run(
        launcher: tuple[str, ...], *arguments: str, ranks: int = 4, profile: bool = True, **variables: str
    ) -> Told:
        compiler = {OPEN_MPI[0]: "mpicc.openmpi", MPICH[0]: "mpicc.mpich"}[launcher[0]]
        if shutil.which(launcher[0]) is None or shutil.which(compiler) is None:
            pytest.skip(f"needs {launcher[0]} and {compiler}")
        agent = serve()
        (tmp_path / "p.c").write_text(PROGRAM)
        subprocess.run([compiler, "-w", "-o", tmp_path / "p", tmp_path / "p.c"], check=True)
        command = [
            *(sys.executable, "-m", "waystage", "mpi", "--quiet", "--paths", "--mpicc", compiler),
            *(("--profile", str(tmp_path / "pattern")) if profile else ()),
            *("--", *launcher, "-n", str(ranks)),
            *(str(tmp_path / "p"), *arguments),
        ]
        environment = os.environ | {
            "WAYSTAGE_FLOWS": str(agent.path),
            "WAYSTAGE_PATHS_STATS": str(tmp_path / "stats"),
            **variables,
        }
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr
        said: list[events.Event] = []
        while not said or not isinstance(said[-1], events.MpiProgramFinished):
            said.append(heard.queue.get(timeout=WAIT_S))
        stats = [json.loads(file.read_text()) for file in tmp_path.glob("stats.*")]
        pattern = Pattern.read(tmp_path / "pattern") if profile else None
        return Told(said, pattern, stats)

    return run


def tuned(primitive: str, algorithm: int) -> tuple[str, ...]:
    words = {"coll_tuned_use_dynamic_rules": 1, f"coll_tuned_{primitive}_algorithm": algorithm}
    return (*OPEN_MPI, *(word for name in words for word in ("--mca", name, str(words[name]))))


def test_a_prediction_that_is_wrong_is_corrected_by_what_the_first_call_sent(play: Play) -> None:
    # Open MPI's ring falls back to recursive doubling where there are fewer elements than ranks.
    told = play(tuned("allreduce", 4), "allreduce", "20", "1")
    (declared,) = told.of("allreduce")
    assert declared.algorithm == "ring"
    assert told.controllers(declared) == told.recorded("allreduce")
    assert (1, 0) in told.controllers(declared)
    assert {event.key for event in told.observed} == {declared.key}


def test_without_a_profile_the_same_is_learned_and_no_file_is_left(play: Play, tmp_path: Path) -> None:
    told = play(tuned("allreduce", 4), "allreduce", "20", "1", profile=False)
    (declared,) = told.of("allreduce")
    doubling = {(0, 1), (1, 0), (2, 3), (3, 2), (0, 2), (2, 0), (1, 3), (3, 1)}
    assert told.controllers(declared) == doubling
    left = {path.name.partition(".")[0] for path in tmp_path.iterdir()}
    assert left <= {"p", "stats", "flows"}


def test_a_prediction_that_holds_is_not_told_again(play: Play) -> None:
    told = play(tuned("allreduce", 3), "allreduce", "5", "1")
    (declared,) = told.of("allreduce")
    assert told.controllers(declared) == told.recorded("allreduce")
    assert not told.observed


@pytest.mark.parametrize("algorithm", [4, 7])
def test_an_algorithm_whose_steps_are_not_known_gets_those_of_its_first_call(
    play: Play, algorithm: int
) -> None:
    told = play(tuned("bcast", algorithm), "bcast", "5", "4096")
    (declared,) = told.of("bcast")
    assert told.controllers(declared) == told.recorded("bcast")
    assert len(told.recorded("bcast")) > 2


@pytest.mark.parametrize("primitive", ["allreduce", "bcast", "alltoall", "gather"])
def test_under_mpich_the_second_call_is_declared_with_what_the_first_one_sent(
    play: Play, primitive: str
) -> None:
    told = play(MPICH, primitive, "5", "4096", MPIR_CVAR_NOLOCAL="1")
    (declared,) = told.of(primitive)
    assert declared.algorithm == "observed"
    assert told.controllers(declared) == told.recorded(primitive)
    assert told.recorded(primitive)


def test_open_mpi_without_a_decision_of_tuned_is_learned(play: Play) -> None:
    told = play(OPEN_MPI, "gather", "5", "64")
    (declared,) = told.of("gather")
    assert declared.algorithm == "observed"
    assert told.controllers(declared) == told.recorded("gather")
    assert len(told.recorded("gather")) == 3


@pytest.mark.parametrize("launcher", [OPEN_MPI, MPICH])
def test_communicators_that_are_freed_are_learned_once_for_their_ranks(
    play: Play, launcher: tuple[str, ...]
) -> None:
    told = play(launcher, "alltoall", "300", "64", "halves", MPIR_CVAR_NOLOCAL="1")
    halves = told.of("alltoall", size=2)
    assert {event.ranks for event in halves} == {(0, 2), (1, 3)} and len(halves) == 2
    assert told.controllers(*halves) == told.recorded("alltoall") == {(0, 2), (2, 0), (1, 3), (3, 1)}
    # Of 300 calls, all but the first ones are later ones, which say nothing and wait for nothing.
    assert all(stats["later"] >= 290 for stats in told.stats)
