"""The profiler counts every message of unmodified programs to the byte, whatever sent it, through whatever communicator."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from waystage.patterns import Pattern

SHARED = ("--mca", "btl", "vader,self")
TCP = ("--mca", "btl", "tcp,self", "--mca", "osc", "pt2pt")

Run = Callable[..., Any]


def seen(pattern: Pattern, what: str, kinds: set[str]) -> Counter[tuple[str, int, int]]:
    found: Counter[tuple[str, int, int]] = Counter()
    for name in kinds:
        chosen = pattern.counted(kinds=[name])
        for src, dst, value in zip(chosen.src, chosen.dst, getattr(chosen, what), strict=True):
            found[name, int(src), int(dst)] += int(value)
    return found


def assert_to_the_byte(ran: Any) -> None:
    """What the program says it sent is what was seen: no byte and no message more or less."""
    assert ran.code == 0, ran.err
    assert ran.pattern is not None, ran.err
    assert ran.expected, "the program said nothing"
    kinds = {kind for kind, _, _ in ran.expected}
    assert +seen(ran.pattern, "bytes", kinds) == +ran.expected
    assert seen(ran.pattern, "messages", kinds) == ran.expected_messages
    assert not ran.pattern.warnings and not ran.pattern.unfinished and not ran.parts


def assert_receivers_agree(pattern: Pattern) -> None:
    """For every pair and every kind of message that travels through the point-to-point layer."""
    messages = {k.name for k in pattern.kinds if k.group != "one-sided"}
    for name in sorted(messages):
        sent = pattern.counted(kinds=[name])
        received = pattern.counted(kinds=[name], traffic=pattern.received)
        totals = []
        for traffic in (sent, received):
            pairs: Counter[tuple[int, int, str]] = Counter()
            for src, dst, count, total in zip(
                traffic.src, traffic.dst, traffic.messages, traffic.bytes, strict=True
            ):
                pairs[int(src), int(dst), "messages"] += int(count)
                pairs[int(src), int(dst), "bytes"] += int(total)
            totals.append(+pairs)
        assert totals[0] == totals[1], name


@pytest.mark.parametrize("options", [SHARED, TCP], ids=["shared memory", "tcp"])
@pytest.mark.parametrize("source", ["communicators.c", "sends.c", "collectives.c"])
def test_every_constructor_send_and_collective(run_mpi: Run, source: str, options: tuple[str, ...]) -> None:
    ran = run_mpi(source, ranks=6, options=options)
    assert_to_the_byte(ran)
    assert_receivers_agree(ran.pattern)


def test_where_only_ob1_may_be_loaded(run_mpi: Run) -> None:
    """As in the lab: this excludes Open MPI's own monitoring."""
    assert_to_the_byte(run_mpi("communicators.c", ranks=5, options=("--mca", "pml", "ob1", *TCP)))


@pytest.mark.parametrize("options", [SHARED, TCP], ids=["shared memory", "tcp"])
def test_one_sided_operations_by_what_they_move(run_mpi: Run, options: tuple[str, ...]) -> None:
    """Over TCP messages carry them, which are recorded as such and counted in no total."""
    atomics = ("atomics",) if options is TCP else ()
    ran = run_mpi("onesided.c", *atomics, ranks=4, options=options)
    assert_to_the_byte(ran)
    protocol = ran.pattern.counted(kinds=["rma-protocol"])
    if options is TCP:
        assert int(protocol.bytes.sum()) >= sum(
            v for (kind, _, _), v in ran.expected.items() if kind != "p2p"
        )
    assert int(ran.pattern.counted(groups=["one-sided"]).bytes.sum()) == sum(
        v for (kind, _, _), v in ran.expected.items() if kind != "p2p"
    )


def test_threads_that_send_at_once(run_mpi: Run) -> None:
    ran = run_mpi("threads.c", ranks=3)
    assert_to_the_byte(ran)
    assert_receivers_agree(ran.pattern)


@pytest.mark.parametrize("source", ["plain.cc", "plain.f90", "plain_f08.f90"])
def test_programs_in_other_languages(run_mpi: Run, source: str) -> None:
    ran = run_mpi(source, ranks=4)
    assert_to_the_byte(ran)
    assert_receivers_agree(ran.pattern)


def test_an_mpi_that_is_loaded_late_and_apart(run_mpi: Run, mpi: None, tmp_path: Path) -> None:
    """As under Python: the program itself knows no MPI, and what it loads is in no global scope."""
    library = tmp_path / "liblate.so"
    source = Path(__file__).parents[2] / "shim" / "tests" / "late.c"
    subprocess.run(["mpicc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    assert_to_the_byte(run_mpi("late.c", str(library), ranks=3, define="PROGRAM"))


def test_what_leaves_the_world_is_said_and_spawned_processes_have_a_separate_file(
    run_mpi: Run, tmp_path: Path
) -> None:
    ran = run_mpi("spawn.c", str(tmp_path / "child"), ranks=2)
    assert ran.code == 0, ran.err
    assert seen(ran.pattern, "bytes", {"p2p"}) == ran.expected
    [warning] = ran.pattern.warnings
    assert warning == "1 messages of 123 bytes went to processes outside MPI_COMM_WORLD (rank 0)"
    child = Pattern.read(tmp_path / "run.pattern.spawned")
    assert child.ranks == 1 and not len(child.counted(kinds=["p2p"]))


def test_collectives_are_split_by_operation(run_mpi: Run) -> None:
    """Blocking and non-blocking ones, by the messages beneath them."""
    pattern = run_mpi("collectives.c", ranks=5).pattern
    operations = {k.name for k in pattern.kinds if k.group == "collective"}
    rest = {"nonblocking", "collective", "setup", "neighbour"}
    assert {name for name in operations - rest if not len(pattern.counted(kinds=[name]))} == set()
    assert not len(pattern.counted(kinds=["nonblocking"])), "a message told no operation"
    assert not len(pattern.counted(kinds=["p2p"])), "the program sends none itself"
    # A gather to one of 5 ranks takes 4 messages, however they are ordered; there are a blocking one on each of two
    # communicators, and a non-blocking one.
    assert int(pattern.counted(kinds=["gather"]).messages.sum()) == 3 * 4


def test_collectives_past_the_messages_are_said_to_be_missing(run_mpi: Run) -> None:
    """Open MPI's collectives in shared memory send none."""
    ran = run_mpi("collectives.c", ranks=4, options=("--mca", "coll_sm_priority", "100"))
    assert ran.code == 0, ran.err
    [warning] = ran.pattern.warnings
    assert "past the point-to-point layer" in warning and "missing" in warning


def test_phases_follow_the_clock_and_hold_what_was_sent_in_them(run_mpi: Run) -> None:
    """A ring to the right, then one to the left."""
    ran = run_mpi("phases.c", "500", "500", ranks=3, env={"WAYSTAGE_PROFILE_INTERVAL": "0.1"})
    assert_to_the_byte(ran)
    pattern = ran.pattern
    # The program sends for a second at least; a busy machine takes longer.
    assert pattern.phases >= 8 and np.diff(pattern.phase_edges)[:-1] == pytest.approx(0.1)
    counts = [pattern.matrix(kinds=["p2p"], phase=phase) for phase in range(pattern.phases)]
    right, left = ([n for n, sent in enumerate(counts) if sent[ends] > 0] for ends in ((0, 1), (0, 2)))
    assert right and left and right[-1] <= left[0] and right[0] < left[-1]


def test_little_memory_makes_phases_longer_and_loses_nothing(run_mpi: Run) -> None:
    env = {"WAYSTAGE_PROFILE_INTERVAL": "0.001", "WAYSTAGE_PROFILE_MEMORY": "0.02"}
    ran = run_mpi("phases.c", "1500", ranks=3, env=env)
    assert_to_the_byte(ran)
    assert ran.pattern.phase_edges[1] > 0.0015


def test_interval_0_is_one_phase(run_mpi: Run) -> None:
    ran = run_mpi("phases.c", "100", ranks=2, env={"WAYSTAGE_PROFILE_INTERVAL": "0"})
    assert_to_the_byte(ran)
    assert ran.pattern.phases == 1
