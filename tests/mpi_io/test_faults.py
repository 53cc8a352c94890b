"""What programs see of MPI-IO when ranks die, several programs share a file, and hints make no sense."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from mpi_io.conftest import DEADLINE_S, Mpi, run_mpi
from mpi_io.test_launch import WAYSTAGE, wait_until

HINTS = """
import sys
from mpi4py import MPI
comm = MPI.COMM_WORLD
info = MPI.Info.Create()
for key, value in (("cb_nodes", "-7"), ("cb_buffer_size", "plenty"), ("striping_unit", "9" * 30), ("colour", "blue")):
    info.Set(key, value)
file = MPI.File.Open(comm, sys.argv[1], MPI.MODE_CREATE | MPI.MODE_RDWR, info)
file.Write_at_all(4 * comm.rank, bytes([comm.rank]) * 4)
said = file.Get_info()
if comm.rank == 0:
    print(said.Get("cb_nodes"), said.Get("striping_unit"))
file.Close()
"""


def ranks_of(program: Path, tag: str) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().split(b"\0")
            if (folder / "comm").read_text().strip() == "waystage-io":
                continue  # a node's supervisor, forked from a rank
            if command[0] == str(program).encode() and tag.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return sorted(found)


def test_a_killed_rank_ends_the_program_and_leaves_nothing(
    mpi: Mpi, compiled: Callable[..., Path], tmp_path: Path
) -> None:
    program = compiled(mpi.compiler("mpicc"), "io_loop.c", name=f"io-loop-{mpi.name}")
    process = subprocess.Popen(
        [
            *WAYSTAGE,
            "mpi",
            "--io",
            "--",
            *mpi.launcher,
            "-n",
            "3",
            str(program),
            str(tmp_path / "file"),
            "1000000",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "WAYSTAGE_TEST_TAG": str(tmp_path)},
        start_new_session=True,
    )
    try:
        file = tmp_path / "file"
        wait_until(lambda: file.exists() and file.stat().st_size > 0, "the file grows")
        os.kill(ranks_of(program, str(tmp_path))[-1], signal.SIGKILL)
        assert process.wait(DEADLINE_S) != 0
        wait_until(lambda: not ranks_of(program, str(tmp_path)), "the other ranks end")
    finally:
        process.kill()


def test_hints_that_make_no_sense_are_as_if_they_were_not_given(mpi: Mpi, tmp_path: Path) -> None:
    if mpi.name != "openmpi":
        return  # mpi4py is Open MPI's here
    ran = run_mpi(mpi, "/usr/bin/python3", "-c", HINTS, str(tmp_path / "file"), ranks=2)
    assert ran.code == 0, ran.err[-2000:]
    assert ran.out.split() == ["1", "1048576"]
    assert "in units of 1048576 bytes (default)" in ran.err
    assert (tmp_path / "file").read_bytes() == b"\0\0\0\0\1\1\1\1"


def test_two_programs_on_one_file_keep_their_parts(
    mpi: Mpi, compiled: Callable[..., Path], tmp_path: Path
) -> None:
    program = compiled(mpi.compiler("mpicc"), "io_loop.c", name=f"io-loop-{mpi.name}")
    words = [
        *WAYSTAGE,
        "mpi",
        "--io",
        "--",
        *mpi.launcher,
        "-n",
        "2",
        str(program),
        str(tmp_path / "file"),
        "30",
    ]
    both = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        # Both write the same bytes to the same places: any other byte would be a third program's.
        assert [process.communicate(timeout=DEADLINE_S)[0].strip() for process in both] == ["wrong 0"] * 2
    finally:
        for process in both:
            process.kill()


def test_the_profile_and_aggregators_work_in_one_run(
    mpi: Mpi, compiled: Callable[..., Path], tmp_path: Path
) -> None:
    program = compiled(mpi.compiler("mpicc"), "io_loop.c", name=f"io-loop-{mpi.name}")
    pattern = tmp_path / "run.pattern"
    options = ("--verbose", "--profile", str(pattern))
    ran = run_mpi(mpi, str(program), str(tmp_path / "file"), "5", io=options, ranks=2)
    assert (ran.code, ran.out.strip()) == (0, "wrong 0"), ran.err[-2000:]
    assert "through aggregators" in ran.err
    assert pattern.stat().st_size > 0
