"""However a program ends, it ends as without the profiler, and what was seen of it is kept."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness import Waystage, ran
from waystage.patterns import Pattern
from waystage.patterns.merge import merge

Run = Callable[..., Any]


def told(text: str) -> list[str]:
    return sorted(line for line in text.splitlines() if "was here" in line or "own handler" in line)


@pytest.mark.parametrize("how", ["abort", "error", "segv", "kill", "term", "handler", "exit"])
def test_a_program_that_dies_dies_as_without_the_profiler(run_mpi: Run, tmp_path: Path, how: str) -> None:
    plain = run_mpi("ending.c", how, ranks=3, preload=False)
    # From SIGTERM to SIGKILL the others have a second by default, which is little on a busy machine.
    patient = ("--mca", "odls_base_sigkill_timeout", "8") if how == "kill" else ()
    ran = run_mpi("ending.c", how, ranks=3, options=patient)
    assert ran.code == plain.code != 0
    # mpirun may drop what other ranks have said when it ends a job.
    assert set(told(ran.out)) <= {f"rank {rank} was here" for rank in range(3)} | {"own handler"}
    assert "waystage" not in ran.err
    if how == "handler":
        return  # The program's own handler, set after MPI_Init, ends the process at once.
    # mpirun kills the others with SIGTERM and perhaps SIGKILL; rank 1 itself always has time, except on SIGKILL.
    left = {int(part.name[-6:]) for part in ran.parts}
    assert (1 in left) == (how != "kill")
    assert left, ran.err
    merged = merge(ran.parts, tmp_path / "merged.pattern")
    assert set(merged.unfinished) == left and set(merged.missing) == {0, 1, 2} - left
    for rank in left:
        sent = merged.matrix(kinds=["p2p"])[rank]
        assert {(rank, to): int(sent[to]) for to in range(3) if sent[to]} == {
            (s, d): total for (_, s, d), total in ran.expected.items() if s == rank
        }


def test_output_that_cannot_be_written_costs_one_line(run_mpi: Run, tmp_path: Path) -> None:
    ran = run_mpi("ending.c", ranks=3, output=tmp_path / "no" / "such" / "folder" / "x")
    assert ran.code == 0 and len(told(ran.out)) == 3
    [line] = [line for line in ran.err.splitlines() if "waystage" in line]
    assert "could not be written: No such file or directory" in line


def test_a_full_disk_costs_one_line(run_mpi: Run) -> None:
    """/dev/full itself cannot be renamed to, so a link leads the draft's folder into a file system without room."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    import subprocess
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", folder], check=False)
        if made.returncode != 0:
            pytest.skip("a file system cannot be mounted here")
        try:
            (Path(folder) / "filler").write_bytes(bytes(4096))
            ran = run_mpi("ending.c", ranks=3, output=Path(folder) / "x")
            assert sorted(p.name for p in Path(folder).iterdir()) == ["filler"]
        finally:
            subprocess.run(["umount", folder], check=True)
    assert ran.code == 0 and len(told(ran.out)) == 3
    [line] = [line for line in ran.err.splitlines() if "waystage" in line]
    assert "No space left on device" in line


def test_bad_values_in_the_environment_are_reported_and_not_used(run_mpi: Run) -> None:
    ran = run_mpi("ending.c", ranks=2, env={"WAYSTAGE_PROFILE_INTERVAL": "often"})
    assert ran.code == 0 and ran.pattern is not None
    assert ran.err.count("'often' is no number") == 1


def test_switched_off(run_mpi: Run) -> None:
    ran = run_mpi("ending.c", ranks=2, env={"WAYSTAGE_PROFILE": "off"})
    assert ran.code == 0 and ran.pattern is None and not ran.parts


def test_a_job_of_several_programs_leaves_parts_and_does_not_wait(
    compiled: Callable[[str], Path], profiler: Path, tmp_path: Path
) -> None:
    """Only the first has the profiler: anything collective would wait for ever."""

    program = str(compiled("ending.c"))
    first = ["-np", "2", "-x", f"LD_PRELOAD={profiler}", "-x", f"WAYSTAGE_PROFILE_OUTPUT={tmp_path}/p"]
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", *first, program, str(tmp_path / "e")]
    command += [":", "-np", "1", "env", "-u", "LD_PRELOAD", program, str(tmp_path / "e")]
    ran(command).expect()
    merged = merge(sorted(tmp_path.glob("p.part-*")), tmp_path / "merged")
    assert merged.missing == (2,) and not merged.unfinished


def test_a_process_without_mpi_is_left_alone(profiler: Path) -> None:

    done = ran(["cat", "/proc/self/maps"], env={**os.environ, "LD_PRELOAD": str(profiler)})
    assert done.code == 0 and done.err == ""
    assert profiler.name in done.out and "libmpi" not in done.out


# -- the command line --------------------------------------------------------------------------------


def test_the_command_passes_on_output_and_status(
    mpi: None, waystage: Waystage, compiled: Callable[[str], Path], tmp_path: Path
) -> None:
    mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2"]
    program = [str(compiled("ending.c")), str(tmp_path / "e")]
    ran = waystage("profile", "-o", "a.pattern", "--", *mpirun, *program)
    assert ran.code == 0 and len(told(ran.out)) == 2 and "profile: a.pattern" in ran.err
    assert Pattern.read(tmp_path / "a.pattern").matrix(kinds=["p2p"]).tolist() == [[0, 700], [701, 0]]

    died = waystage("profile", "-o", "b.pattern", "--", *mpirun, *program, "abort")
    assert died.code == 5 and "of an incomplete run" in died.err
    left = Pattern.read(tmp_path / "b.pattern", allow_missing=True)
    assert 1 in left.unfinished and left.matrix(kinds=["p2p"])[1].tolist() == [701, 0]
    assert not list(tmp_path.glob(".*pattern*")), "nothing else is left behind"


def test_the_command_says_so_where_there_was_no_mpi(mpi: None, waystage: Waystage, tmp_path: Path) -> None:
    ran = waystage("profile", "--", "sh", "-c", "echo hello; exit 3")
    assert ran.code == 3 and ran.out == "hello\n"
    assert ran.err.count("\n") == 1 and "did not reach MPI_Init" in ran.err
    assert waystage("profile", "--", "no-such-program").code == 1
    assert waystage("profile", "-o", "no/such/x", "--", "true").code == 1


def test_without_a_compiler_the_package_is_named(waystage: Waystage, tmp_path: Path) -> None:
    ran = waystage("profile", "--mpicc", "no-such-mpicc", "--", "true")
    assert ran.code == 4 and "--mpicc" in ran.err and ran.err.count("\n") == 1
