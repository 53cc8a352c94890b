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
from waystage import events
from waystage.forecast.collectives import messages
from waystage.patterns import Pattern
from waystage.state import State

Pairs = set[tuple[int, int]]

PROGRAM = r"""
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

static int rank, size;

static void call(const char *what, MPI_Comm comm, int count)
{
    static int in[4096], out[4 * 4096];
    if (strcmp(what, "allreduce") == 0)
        MPI_Allreduce(in, out, count, MPI_INT, MPI_SUM, comm);
    else if (strcmp(what, "bcast") == 0)
        MPI_Bcast(in, count, MPI_INT, 0, comm);
    else if (strcmp(what, "gather") == 0)
        MPI_Gather(in, count, MPI_INT, out, count, MPI_INT, 0, comm);
    else
        MPI_Alltoall(in, count / 4, MPI_INT, out, count / 4, MPI_INT, comm);
}

/* What is in the air while collectives are called: rank 3's messages to rank 0 are of no one else. */
static void others(MPI_Request *requests)
{
    static int value, sum, got;
    MPI_Isend(&value, 1, MPI_INT, (rank + 1) % size, 1, MPI_COMM_WORLD, &requests[0]);
    MPI_Irecv(&got, 1, MPI_INT, (rank + size - 1) % size, 1, MPI_COMM_WORLD, &requests[1]);
    MPI_Iscan(&value, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &requests[2]);
}

int main(int argc, char **argv)
{
    int calls = atoi(argv[2]), count = atoi(argv[3]);
    MPI_Request requests[3];
    MPI_Comm half;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int i = 0; i < calls; i++) {
        others(requests);
        if (argc > 4) {
            MPI_Comm_split(MPI_COMM_WORLD, rank % 2, 0, &half);
            call(argv[1], half, count);
            MPI_Comm_free(&half);
        } else {
            call(argv[1], MPI_COMM_WORLD, count);
        }
        MPI_Waitall(3, requests, MPI_STATUSES_IGNORE);
    }
    MPI_Finalize();
    return 0;
}
"""

OPEN_MPI = ("mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1")
MPICH = ("mpiexec.mpich",)


class Told:
    """What an agent published of a program, and the state that a controller makes of it."""

    def __init__(
        self, said: list[events.Event], pattern: Pattern | None, stats: list[dict[str, int]]
    ) -> None:
        self.pattern, self.stats = pattern, stats
        self.declared = [event for event in said if isinstance(event, events.CollectiveDeclared)]
        self.observed = [event for event in said if isinstance(event, events.CollectiveObserved)]
        self.state = State()
        for number, event in enumerate(said):
            if not isinstance(event, events.MpiProgramFinished):
                self.state.apply(events.Envelope(event=event, event_id=str(number), time_ns=number + 1))

    def of(self, primitive: str, size: int = 4) -> list[events.CollectiveDeclared]:
        return [e for e in self.declared if e.primitive == primitive and len(e.ranks) == size]

    def controllers(self, *declared: events.CollectiveDeclared) -> Pairs:
        """Ranks of the world that send to each other, as policies see it."""
        found: Pairs = set()
        for one in declared:
            for step in messages(one, self.state.mpi.programs[one.app].sent(one.key)):
                found |= {(one.ranks[a], one.ranks[b]) for a, b in step}
        return found

    def recorded(self, kind: str) -> Pairs:
        """The same in the profiler's record."""
        assert self.pattern is not None
        chosen = self.pattern.counted(kinds=[kind], traffic=self.pattern.sent)
        return {(int(a), int(b)) for a, b in zip(chosen.src, chosen.dst, strict=True) if a != b}


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
            command, env=environment, capture_output=True, text=True, timeout=WAIT_S, cwd=tmp_path
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
