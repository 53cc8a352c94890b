"""Large collectives in another order of ranks give what they gave before, on Open MPI and MPICH."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flow_support import Heard, Serve
from harness import WAIT_S
from waystage import events
from waystage.flows.agent import FlowAgent

OPEN_MPI = ("mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1")
MPICH = ("mpiexec.mpich",)
LIBRARIES = pytest.mark.parametrize("launcher", [OPEN_MPI, MPICH], ids=["open-mpi", "mpich"])
SOURCE = Path(__file__).with_name("ordered.c")
LIMIT_S = 4 * WAIT_S

Answer = Callable[[events.CollectiveDeclared], tuple[int, ...] | None]


class Controller(threading.Thread):
    """Answers what an agent publishes, as a controller with this order of ranks would; None: not at all."""

    def __init__(self, agent: FlowAgent, heard: Heard, answer: Answer) -> None:
        super().__init__()
        self.declared: list[events.CollectiveDeclared] = []
        self._agent, self._heard, self._answer = agent, heard, answer

    def run(self) -> None:
        while not isinstance(event := self._heard.queue.get(), events.MpiProgramFinished):
            if not isinstance(event, events.CollectiveDeclared):
                continue
            self.declared.append(event)
            asked = event.algorithm == "rank-order"
            order = self._answer(event) if asked else None
            if order is not None or not asked:
                self._agent.adjusted(
                    events.CollectivePlaced(app=event.app, agent=event.agent, key=event.key, order=order)
                )

    def asked(self, primitive: str) -> set[tuple[int, ...]]:
        return {e.ranks for e in self.declared if (e.primitive, e.algorithm) == (primitive, "rank-order")}

    def used(self, primitive: str) -> set[tuple[int, ...]]:
        """Orders of ranks in which the collective was carried out."""
        return {e.ranks for e in self.declared if e.primitive == primitive and e.algorithm != "rank-order"}


Play = Callable[..., Controller]


@pytest.fixture
def play(serve: Serve, heard: Heard, tmp_path: Path) -> Iterator[Play]:
    running: list[Controller] = []

    def run(
        launcher: tuple[str, ...],
        *arguments: str,
        answer: Answer,
        ranks: int = 5,
        options: tuple[str, ...] = ("--rank-order",),
        wait_ms: int = 60_000,
        **variables: str,
    ) -> Controller:
        compiler = {OPEN_MPI[0]: "mpicc.openmpi", MPICH[0]: "mpicc.mpich"}[launcher[0]]
        if shutil.which(launcher[0]) is None or shutil.which(compiler) is None:
            pytest.skip(f"needs {launcher[0]} and {compiler}")
        subprocess.run([compiler, "-w", "-O1", "-o", tmp_path / "p", SOURCE], check=True)
        controller = Controller(serve(), heard, answer)
        controller.start()
        running.append(controller)
        words = ["mpi", "--quiet", "--paths", *options, "--mpicc", compiler, "--", *launcher]
        done = subprocess.run(
            [sys.executable, "-m", "waystage", *words, "-n", str(ranks), str(tmp_path / "p"), *arguments],
            env=os.environ
            | {"WAYSTAGE_RANK_ORDER_FROM": "2000", "WAYSTAGE_RANK_ORDER_WAIT_MS": str(wait_ms)}
            | variables,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        controller.join(WAIT_S)
        assert not controller.is_alive()
        return controller

    yield run
    for controller in running:
        heard.queue.put(events.MpiProgramFinished(app="", agent="", host=""))
        controller.join(WAIT_S)


def turned(event: events.CollectiveDeclared) -> tuple[int, ...]:
    """Not its own inverse, so that a permutation taken the wrong way round shows."""
    return (*range(2, len(event.ranks)), 0, 1)


def stays(_: events.CollectiveDeclared) -> tuple[int, ...]:
    return ()


@LIBRARIES
@pytest.mark.parametrize("primitive", ["allreduce", "bcast", "allgather"])
def test_results_in_another_order_are_those_of_the_present_one(
    play: Play, launcher: tuple[str, ...], primitive: str
) -> None:
    told = play(launcher, "1000", primitive, answer=turned)
    asked = told.asked(primitive)
    assert {len(ranks) for ranks in asked} == {4, 5}
    assert {(*ranks[2:], *ranks[:2]) for ranks in asked} <= told.used(primitive)


@LIBRARIES
@pytest.mark.parametrize(("option", "other"), [("--rank-order", False), ("--rank-order-floats", True)])
def test_sums_of_floating_point_numbers_keep_their_order_unless_asked(
    play: Play, launcher: tuple[str, ...], option: str, other: bool
) -> None:
    told = play(launcher, "1000", "floats", answer=turned, ranks=4, options=(option,))
    assert bool(told.asked("allreduce")) == other
    assert ((2, 3, 0, 1) in told.used("allreduce")) == other


@LIBRARIES
@pytest.mark.parametrize("answer", [stays, lambda _: None], ids=["no-better-order", "no-answer"])
def test_without_another_order_the_program_runs_in_the_present_one(
    play: Play, launcher: tuple[str, ...], answer: Answer
) -> None:
    told = play(launcher, "1000", "bcast", answer=answer, wait_ms=100)
    assert told.asked("bcast")
    assert (2, 3, 4, 0, 1) not in told.used("bcast")


@LIBRARIES
@pytest.mark.parametrize("bad", [(0, 0, 1, 2, 3), (0, 1, 2), (4, 3, 2, 1, 5)])
def test_what_is_no_permutation_is_not_followed(
    play: Play, launcher: tuple[str, ...], bad: tuple[int, ...]
) -> None:
    told = play(launcher, "1000", "bcast", answer=lambda _: bad)
    assert bad not in told.used("bcast")


@LIBRARIES
def test_an_error_is_the_communicator_s_on_which_it_was_made(play: Play, launcher: tuple[str, ...]) -> None:
    told = play(launcher, "1000", "errors", answer=turned)
    assert (2, 3, 4, 0, 1) in told.used("bcast")


@LIBRARIES
def test_short_communicators_ask_for_nothing(play: Play, launcher: tuple[str, ...]) -> None:
    told = play(launcher, "1000", "many", answer=turned, ranks=3)
    asked = [event for event in told.declared if event.algorithm == "rank-order"]
    assert 1 <= len(asked) <= 3, "one in a hundred of 300 lives to its third large call"


@LIBRARIES
def test_orders_at_a_time_are_bounded_in_a_process(play: Play, launcher: tuple[str, ...]) -> None:
    play(launcher, "1000", "kept", answer=turned, ranks=3)


@LIBRARIES
def test_without_an_agent_the_program_runs_as_before(
    play: Play, launcher: tuple[str, ...], tmp_path: Path, heard: Heard
) -> None:
    threading.Timer(0, lambda: heard.queue.put(events.MpiProgramFinished(app="", agent="", host=""))).start()
    told = play(launcher, "1000", "bcast", answer=turned, WAYSTAGE_FLOWS=str(tmp_path / "none"))
    assert not told.declared
