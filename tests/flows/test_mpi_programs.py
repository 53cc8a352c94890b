"""Ranks of MPI programs at the flow agent: real programs declare collectives once, and no process speaks for another."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flow_support import Heard, Lines, Serve
from harness import WAIT_S
from waystage import events, mpi_paths
from waystage.flows import mpi_wire
from waystage.flows.agent import FlowAgent
from waystage.flows.mpi_programs import DECLARED_BURST, MpiPrograms

ME = f"{os.getuid()}/a"
START = {"type": "mpi-start", "app": "a", "host": "c1", "rank": 0, "size": 4}
KEY = "0123456789abcdef"
PROGRAM = r"""
#include <mpi.h>
int main(int argc, char **argv)
{
    int rank, one = 1, sum = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int i = 0; i < 2000; i++) {
        MPI_Comm half;
        MPI_Comm_split(MPI_COMM_WORLD, rank % 2, 0, &half);
        MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, half);
        MPI_Comm_free(&half);
        if (sum != 2)
            MPI_Abort(MPI_COMM_WORLD, 1);
    }
    MPI_Finalize();
    return 0;
}
"""


def begin(agent: FlowAgent, **more: object) -> Lines:
    lines = Lines(agent.path)
    lines.client.send(json.dumps(START | more).encode())
    return lines


def tell(lines: Lines, **message: object) -> None:
    lines.client.send(json.dumps(message).encode())


def test_ranks_of_a_host_are_reported_and_end_with_their_connections(agent: FlowAgent, heard: Heard) -> None:
    ranks = [begin(agent, rank=rank) for rank in range(3)]
    seen: tuple[int, ...] = ()
    while seen != (0, 1, 2):
        reported = heard.next(events.MpiRanksReported)
        seen = reported.ranks
        assert (reported.app, reported.host, reported.size) == (ME, "c1", 4)
    for rank in ranks:
        rank.client.close()
    assert heard.next(events.MpiProgramFinished).app == ME


def test_a_declared_collective_is_published_and_every_waiting_rank_may_begin(
    agent: FlowAgent, heard: Heard
) -> None:
    first, other = begin(agent), begin(agent, rank=1)
    tell(other, type="mpi-wait", key=KEY)
    tell(
        first, type="mpi-collective", key=KEY, primitive="bcast", algorithm="binomial", bytes=9, ranks=[0, 1]
    )
    declared = heard.next(events.CollectiveDeclared)
    assert (declared.app, declared.primitive, declared.ranks) == (ME, "bcast", (0, 1))
    agent.adjusted(
        events.CollectivePlaced(app="999/a", agent="n1", key=KEY)
    )  # another user's of the same name
    agent.adjusted(events.CollectivePlaced(app=ME, agent="n1", key=KEY))
    for rank in (first, other):
        assert rank.answer() == {"type": "mpi-placed", "key": KEY}
    late = begin(agent, rank=2)
    tell(late, type="mpi-wait", key=KEY)
    assert late.answer() == {"type": "mpi-placed", "key": KEY}


def sent(at: int, *to: tuple[int, int], **more: object) -> dict[str, object]:
    line = {"type": "mpi-sent", "key": KEY, "primitive": "allreduce", "algorithm": "ring", "bytes": 4096}
    return line | {"size": 4, "at": at, "to": to} | more


def test_what_ranks_sent_is_published_where_it_is_not_what_their_algorithm_says(
    agent: FlowAgent, heard: Heard
) -> None:
    first, other = begin(agent), begin(agent, rank=1)
    tell(first, **sent(0, (1, 9)))  # as a ring does
    tell(other, **sent(1, (0, 5), (3, 6)))
    tell(first, **sent(0, (2, 7), key=KEY[::-1], algorithm="observed"))
    found = [heard.next(events.CollectiveObserved) for _ in range(2)]
    assert {event.key: event.sent for event in found} == {
        KEY: {1: ((0, 5), (3, 6))},
        KEY[::-1]: {0: ((2, 7),)},
    }
    assert found[0].app == ME


class Rank:
    """A connection of user 7."""

    peer = SimpleNamespace(uid=7)

    def send(self, line: bytes) -> None:
        """Nothing is waited for."""


def test_an_agent_compares_a_bounded_number_of_collectives_of_one_user() -> None:
    published: list[events.Event] = []
    due: list[Callable[[], object]] = []
    programs = MpiPrograms(
        "n1", lambda make: published.append(make()), str, lambda _, call: due.append(call), most=9
    )
    rank: Any = Rank()
    assert not programs.line(rank, mpi_wire.MpiStart(app="a", host="c1", rank=0, size=4), 0.0)
    for number in range(5000):
        line = mpi_wire.MpiSent(
            key=f"{number:016x}", primitive="alltoall", algorithm="linear", size=4, at=0, to=((1, 9),)
        )
        assert not programs.line(rank, line, 0.0)
    for call in due:
        call()
    observed = [event for event in published if isinstance(event, events.CollectiveObserved)]
    assert 0 < len(observed) <= DECLARED_BURST


@pytest.mark.parametrize(
    "line",
    [
        sent(4),
        sent(0, (4, 1)),
        sent(0, (-1, 1)),
        sent(0, (1, -1)),
        sent(0, size=5000),
        sent(0, *[(1, 1)] * 1025),
        {"type": "mpi-wait", "key": KEY},
        START | {"rank": 4},
        START | {"app": "a\nb"},
        {
            "type": "mpi-collective",
            "key": "x",
            "primitive": "bcast",
            "algorithm": "binomial",
            "ranks": [0, 1],
        },
        {
            "type": "mpi-collective",
            "key": KEY,
            "primitive": "b",
            "algorithm": "b",
            "ranks": list(range(5000)),
        },
    ],
)
def test_what_makes_no_sense_is_refused(agent: FlowAgent, line: dict[str, object]) -> None:
    lines = Lines(agent.path)
    tell(lines, **line)
    answer = lines.answer()
    assert answer is not None and answer["type"] == "refused"


# Four ranks that wait for one another thousands of times get little of a machine with other work.
@pytest.mark.timeout(900)
@pytest.mark.skipif(shutil.which("mpirun.openmpi") is None, reason="needs Open MPI")
def test_an_unmodified_program_with_thousands_of_communicators_declares_each_set_of_ranks_once(
    serve: Serve, heard: Heard, tmp_path: Path
) -> None:
    agent = serve()
    (tmp_path / "p.c").write_text(PROGRAM)
    subprocess.run(["mpicc.openmpi", "-o", tmp_path / "p", tmp_path / "p.c"], check=True)
    library = mpi_paths.build("mpicc.openmpi")
    variables = mpi_paths.environment_for() | {"LD_PRELOAD": str(library), "WAYSTAGE_FLOWS": str(agent.path)}
    options = [word for name in variables for word in ("-x", f"{name}={variables[name]}")]
    command = [
        "mpirun.openmpi",
        "--allow-run-as-root",
        "--oversubscribe",
        "--mca",
        "mpi_yield_when_idle",
        "1",
    ]
    done = subprocess.run(
        [*command, "-np", "4", *options, str(tmp_path / "p")], timeout=800, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    # There was no answer: the program went on by itself.
    said: list[events.Event] = []
    while not said or not isinstance(said[-1], events.MpiProgramFinished):
        said.append(heard.queue.get(timeout=WAIT_S))
    declared = [event for event in said if isinstance(event, events.CollectiveDeclared)]
    of_halves = [event for event in declared if event.ranks in ((0, 2), (1, 3))]
    assert {event.ranks for event in of_halves} == {(0, 2), (1, 3)}
    assert len(of_halves) == len({event.key for event in of_halves}) and len(declared) < 20


def test_a_program_without_an_agent_runs_as_ever(tmp_path: Path) -> None:
    if shutil.which("mpirun.openmpi") is None:
        pytest.skip("needs Open MPI")
    variables = os.environ | mpi_paths.environment_for()
    variables |= {
        "LD_PRELOAD": str(mpi_paths.build("mpicc.openmpi")),
        "WAYSTAGE_FLOWS": str(tmp_path / "none"),
    }
    done = subprocess.run(["/bin/echo", "fine"], env=variables, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("fine\n", "")
