"""`waystage:NAME` in place of a file: programs of two launches that know of files alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from harness import wait_until
from mpi_io.conftest import DEADLINE_S, MPICH, OPEN_MPI, Mpi

NAME = "waystage:flow"
H5PY_MPI = Path("/usr/lib/python3/dist-packages/h5py/_debian_h5py_mpi")

H5PY_WRITER = """
import sys
from mpi4py import MPI
import h5py._debian_h5py_mpi as h5py
import numpy as np
comm = MPI.COMM_WORLD
for step in range(3):
    with h5py.File(sys.argv[1], "w", driver="mpio", comm=comm) as file:
        file.attrs["step"] = step
        data = file.create_dataset("fluid/u", (60, 50, 40), dtype="f8")
        rows = slice(60 * comm.rank // comm.size, 60 * (comm.rank + 1) // comm.size)
        with data.collective:
            data[rows] = step * 1000 + np.arange(rows.start, rows.stop)[:, None, None] * np.ones((1, 50, 40))
        parts = file.create_dataset("parts", (4, 30), dtype="i4", chunks=(1, 7))
        with parts.collective:
            mine = slice(comm.rank, None, comm.size)
            parts[mine] = np.tile(np.arange(30) + step, (len(range(4)[mine]), 1))
"""

H5PY_READER = """
import sys
from mpi4py import MPI
import h5py._debian_h5py_mpi as h5py
import numpy as np
comm = MPI.COMM_WORLD
step = 0
while True:
    try:
        file = h5py.File(sys.argv[1], "r", driver="mpio", comm=comm)
    except OSError:
        break
    with file:
        assert file.attrs["step"] == step
        columns = slice(40 * comm.rank // comm.size, 40 * (comm.rank + 1) // comm.size)
        part = file["fluid/u"][:, :, columns]
        assert (part == step * 1000 + np.arange(60)[:, None, None]).all()
        assert (file["parts"][...] == np.arange(30) + step).all()
    step += 1
assert step == 3, step
if comm.rank == 0:
    print("steps", step)
"""


class Pair:
    """Two launches that share the directory of names."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[subprocess.Popen[str]] = []

    def start(self, mpi: Mpi, ranks: int, *program: object, **variables: str) -> subprocess.Popen[str]:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("WAYSTAGE_IO_")}
        environment |= {"WAYSTAGE_COUPLING": str(self._folder / "names"), **variables}
        words = [sys.executable, "-m", "waystage", "mpi", "--io", "--", *mpi.launcher, "-n", str(ranks)]
        process = subprocess.Popen(
            [*words, *map(str, program)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def end(self) -> None:
        for process in self._started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    found = Pair(tmp_path)
    yield found
    found.end()


def finished(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, err + out
    return out


@pytest.mark.parametrize(
    ("writer", "reader"), [(OPEN_MPI, MPICH), (MPICH, OPEN_MPI)], ids=["openmpi to mpich", "mpich to openmpi"]
)
def test_three_ranks_write_steps_that_two_of_another_library_read(
    writer: Mpi, reader: Mpi, pair: Pair, compiled: Callable[..., Path], tmp_path: Path
) -> None:
    programs = [
        compiled(mpi.compiler("mpicc"), "named.c", name=f"named-{mpi.name}") for mpi in (writer, reader)
    ]
    writing = pair.start(
        writer, 3, programs[0], "write", NAME, 4, WAYSTAGE_COUPLING_STORE=str(tmp_path / "kept")
    )
    reading = pair.start(reader, 2, programs[1], "read", NAME)
    assert finished(reading).splitlines() == [*(f"step {n}" for n in range(4)), "no further file"]
    assert finished(writing) == ""
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == [f"flow.{n}" for n in range(4)]
    kept = (tmp_path / "kept" / "flow.3").read_bytes()
    assert kept[:15] == b"step          3" and len(kept) == 16 + 4 * 96 * 4096
    assert (np.frombuffer(kept[16:], dtype="<i4") == 3 * 1000003 + np.arange(96 * 4096)).all()
    assert not list((tmp_path / "names").iterdir()), "the name is still published"


def test_each_sync_of_an_open_file_is_a_version_if_the_user_says_so(
    pair: Pair, compiled: Callable[..., Path]
) -> None:
    program = compiled("mpicc.openmpi", "named.c", name="named-openmpi")
    writing = pair.start(OPEN_MPI, 3, program, "sync", NAME, 3, WAYSTAGE_COUPLING_COMMIT="sync")
    reading = pair.start(OPEN_MPI, 2, program, "read", NAME)
    assert finished(reading).splitlines() == ["step 0", "step 1", "step 2", "no further file"]
    finished(writing)


def test_a_fortran_program_writes_a_version(
    mpi: Mpi, pair: Pair, compiled: Callable[..., Path], tmp_path: Path
) -> None:
    program = compiled(mpi.compiler("mpifort"), "io_fortran.F90", name=f"fortran-{mpi.name}-mpi")
    store = str(tmp_path / "kept")
    writing = pair.start(
        mpi, 3, program, NAME, WAYSTAGE_COUPLING_STORE=store, WAYSTAGE_COUPLING_TIMEOUT_S="12"
    )
    # No program reads it: the writers end after the time that they wait.
    out, err = writing.communicate(timeout=DEADLINE_S)
    assert out.split() == ["count", "600", "wrong", "0", "bytes", "7200", "missing", "T"], err
    values = np.fromfile(tmp_path / "kept" / "flow.0", dtype="<i4").reshape(200, 3, 3)
    assert (values == (np.arange(600).reshape(200, 1, 3) + 1 + 1000 * np.arange(3)[:, None])).all()


@pytest.mark.skipif(not H5PY_MPI.is_dir(), reason="h5py with MPI is missing: install python3-h5py-mpi")
def test_h5py_reads_each_file_that_h5py_of_another_program_writes(pair: Pair, tmp_path: Path) -> None:
    for name, text in (("writer.py", H5PY_WRITER), ("reader.py", H5PY_READER)):
        (tmp_path / name).write_text(text, encoding="utf-8")
    store = str(tmp_path / "kept")
    python = "/usr/bin/python3"
    writing = pair.start(OPEN_MPI, 3, python, tmp_path / "writer.py", NAME, WAYSTAGE_COUPLING_STORE=store)
    reading = pair.start(OPEN_MPI, 2, python, tmp_path / "reader.py", NAME)
    assert finished(reading) == "steps 3\n"
    finished(writing)
    look = "import h5py, sys; print(h5py.File(sys.argv[1])['fluid/u'][:, 0, 0].sum())"
    seen = subprocess.run([python, "-c", look, tmp_path / "kept" / "flow.2"], capture_output=True, text=True)
    assert seen.stdout == f"{60 * 2000 + sum(range(60)):.1f}\n", seen.stderr


def test_a_killed_writer_is_an_error_of_the_readers(pair: Pair, compiled: Callable[..., Path]) -> None:
    """With a depth of 1 the second step begins once the first was read."""
    program = compiled("mpicc.openmpi", "named.c", name="named-openmpi")
    pair.start(OPEN_MPI, 3, program, "die", NAME, 2, WAYSTAGE_COUPLING_DEPTH="1")
    out, err = pair.start(OPEN_MPI, 2, program, "read", NAME).communicate(timeout=DEADLINE_S)
    assert out.splitlines() == ["step 0", "another error"], err
    assert "has died" in err or "has ended" in err


def test_a_name_that_is_written_already_takes_no_second_program(
    pair: Pair, compiled: Callable[..., Path], tmp_path: Path
) -> None:
    program = compiled("mpicc.openmpi", "named.c", name="named-openmpi")
    pair.start(OPEN_MPI, 2, program, "write", NAME, 2, WAYSTAGE_COUPLING_DEPTH="1")
    wait_until((tmp_path / "names" / "flow").exists)
    _, err = pair.start(OPEN_MPI, 2, program, "write", NAME, 1).communicate(timeout=DEADLINE_S)
    assert "waystage:flow: flow is in use by writers" in err


def test_what_a_name_cannot_do_is_said_in_a_sentence(pair: Pair, compiled: Callable[..., Path]) -> None:
    program = compiled("mpicc.openmpi", "named.c", name="named-openmpi")
    alone = pair.start(OPEN_MPI, 2, program, "read", NAME, WAYSTAGE_COUPLING_TIMEOUT_S="1")
    out, err = alone.communicate(timeout=DEADLINE_S)
    assert out == "no further file\n"
    assert "waystage:flow: no writer has opened flow in" in err
    bad = pair.start(OPEN_MPI, 2, program, "write", "waystage:a/b", 1)
    assert '"a/b" is no name: use letters' in bad.communicate(timeout=DEADLINE_S)[1]
