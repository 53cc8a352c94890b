"""What ranks counted outlives them, and worlds that a program spawns are delivered beside its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness import Waystage
from waystage.patterns import Pattern, PatternError
from waystage.patterns.live import parse_live
from waystage.patterns.merge import merge

Run = Callable[..., Any]

LAUNCH = ("mpirun", "--allow-run-as-root", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1")


@contextmanager
def busy() -> Iterator[None]:
    """Every core has something else to do."""
    loops = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(2 * len(os.sched_getaffinity(0)))
    ]
    try:
        yield
    finally:
        for loop in loops:
            loop.send_signal(signal.SIGKILL)
            loop.wait()


@pytest.mark.parametrize("how", ["kill", "vanish", "leave"])
def test_the_command_keeps_what_every_rank_counted_however_one_ends(
    how: str, mpi: None, waystage: Waystage, compiled: Callable[[str], Path], tmp_path: Path
) -> None:
    program = [*LAUNCH, "-np", "3", str(compiled("ending.c")), str(tmp_path / "e"), how]
    with busy() if how == "vanish" else nullcontext():
        ran = waystage("profile", "-o", "a.pattern", "--", *program, timeout=150)
    assert ran.code != 0 and "of an incomplete run: " in ran.err, ran.err
    pattern = Pattern.read(tmp_path / "a.pattern")
    assert pattern.matrix(kinds=["p2p"]).tolist() == [[0, 700, 0], [0, 0, 701], [702, 0, 0]]
    assert not pattern.missing and 1 in pattern.unfinished
    # The others were within MPI_Finalize: as far as is known, they ended regularly.
    assert (pattern.unfinished == (1,)) == (how in ("leave", "vanish"))
    if how in ("leave", "vanish"):
        assert "rank 1 ended before MPI_Finalize" in ran.err
    assert [path.name for path in tmp_path.iterdir() if "pattern" in path.name] == ["a.pattern"]


def test_by_hand_the_counters_of_killed_ranks_are_merged_as_parts_are(run_mpi: Run, tmp_path: Path) -> None:
    ran = run_mpi("ending.c", "vanish", ranks=3)
    live = sorted(tmp_path.glob("run.pattern.live-*"))
    assert [path.name[-6:] for path in live] == ["000000", "000001", "000002"] and ran.pattern is None
    merged = merge([*live, *ran.parts], tmp_path / "merged")
    assert merged.matrix(kinds=["p2p"]).tolist() == [[0, 700, 0], [0, 0, 701], [702, 0, 0]]
    assert (
        merged.matrix(kinds=["p2p"]).tolist()
        == Pattern.read(tmp_path / "merged").matrix(kinds=["p2p"]).tolist()
    )


def test_nothing_is_left_beside_a_whole_file_and_switched_off_there_never_is(
    run_mpi: Run, tmp_path: Path
) -> None:
    assert run_mpi("ending.c", ranks=3).pattern is not None
    assert sorted(path.name for path in tmp_path.glob("run.*")) == ["run.pattern"]
    ran = run_mpi(
        "ending.c", "vanish", ranks=3, env={"WAYSTAGE_PROFILE_LIVE": "off"}, output=tmp_path / "off"
    )
    assert not list(tmp_path.glob("off.live-*")) and ran.code != 0


@pytest.mark.parametrize("memory", ["64", "0.05"])
def test_the_counters_say_what_the_part_says(run_mpi: Run, tmp_path: Path, memory: str) -> None:
    """Of several threads, tables that grew and, where memory is short, phases that were joined."""
    environment = {"WAYSTAGE_PROFILE_INTERVAL": "0.002", "WAYSTAGE_PROFILE_MEMORY": memory}
    run_mpi("growing.c", ranks=2, env=environment)
    part, live = (
        merge([tmp_path / f"run.pattern.{kind}-000001"], tmp_path / kind) for kind in ("part", "live")
    )
    # Where memory is short, phases are joined once more the longer the program runs.
    assert len(part.sent) > (50 if memory == "64" else 10) and int(part.sent.messages.sum()) > 3000
    for one, other in ((part.sent, live.sent), (part.received, live.received)):
        assert all(map(np.array_equal, one.rows(), other.rows()))
    assert part.unfinished == live.unfinished == (1,) and part.nodes == live.nodes
    both = merge(sorted(tmp_path.glob("run.pattern.*-000001")), tmp_path / "both")
    assert int(both.sent.messages.sum()) == int(part.sent.messages.sum())


def test_damaged_counters_are_refused_in_a_sentence(run_mpi: Run, tmp_path: Path) -> None:
    run_mpi("ending.c", "vanish", ranks=3)
    data = (tmp_path / "run.pattern.live-000001").read_bytes()
    for cut in (8, 100, 600, 8192, 20000, 24576, len(data) - 1):
        with pytest.raises(PatternError, match="counters"):
            parse_live(data[:cut], "counters")
    for at in range(8, 40):
        for value in (0, 1, 255):
            changed = data[:at] + bytes([value]) + data[at + 1 :]
            try:
                parse_live(changed, "counters")
            except PatternError as error:
                assert str(error).startswith("counters"), error


def totals(path: Path) -> list[list[int]]:
    return Pattern.read(path).matrix(kinds=["p2p"]).tolist()  # type: ignore[no-any-return]


def test_every_spawned_world_is_delivered_under_a_separate_name(
    mpi: None, waystage: Waystage, compiled: Callable[[str], Path], tmp_path: Path
) -> None:
    program = str(compiled("worlds.c"))
    ran = waystage(
        "profile", "-o", "w.pattern", "--", *LAUNCH, "-np", "2", program, "end", timeout=150
    ).expect()
    assert totals(tmp_path / "w.pattern") == [[0, 7], [0, 0]]
    names = ["w.pattern.spawned", "w.pattern.spawned-2", "w.pattern.spawned-3"]
    # Which of the two that live together is the first is theirs to find out.
    assert sorted(totals(tmp_path / name)[0][1] for name in names) == [100, 200, 300]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["w.pattern", *names]
    for name in ("w.pattern", *names):
        assert f"profile: {name}\n" in ran.err


def test_a_spawned_world_that_dies_leaves_what_it_counted(
    mpi: None, waystage: Waystage, compiled: Callable[[str], Path], tmp_path: Path
) -> None:
    program = str(compiled("worlds.c"))
    ran = waystage("profile", "-o", "w.pattern", "--", *LAUNCH, "-np", "2", program, "kill", timeout=150)
    assert ran.code != 0
    worlds = [Pattern.read(path, allow_missing=True) for path in sorted(tmp_path.glob("w.pattern*"))]
    assert sorted(int(world.matrix(kinds=["p2p"])[0][1]) for world in worlds) == [7, 100, 200, 300]
    assert "w.pattern.spawned" in ran.err and "rank 1 ended before MPI_Finalize" in ran.err
    assert not [path.name for path in tmp_path.iterdir() if "live" in path.name or "part" in path.name]
