"""Unmodified programs above MPI-IO: Fortran, HDF5, h5py and PnetCDF."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mpi_io.conftest import OPEN_MPI, Mpi, run_mpi

H5PY = """
import sys
from mpi4py import MPI
import h5py._debian_h5py_mpi as h5py
import numpy as np
comm = MPI.COMM_WORLD
with h5py.File(sys.argv[1], "w", driver="mpio", comm=comm) as file:
    data = file.create_dataset("x", (40, 4 * comm.size), dtype="f8")
    mine = np.arange(160, dtype="f8").reshape(40, 4) + 1000 * comm.rank
    columns = slice(4 * comm.rank, 4 * comm.rank + 4)
    with data.collective:
        data[:, columns] = mine
    with data.collective:
        back = data[:, columns]
    wrong = comm.reduce(int((back != mine).sum()))
if comm.rank == 0:
    print("wrong", wrong)
"""


def goes_through_aggregators(mpi: Mpi, path: Path, *program: str) -> str:
    ran = run_mpi(mpi, *program, str(path))
    assert ran.code == 0, ran.err
    assert f"{path}: through aggregators" in ran.err
    assert "does it" not in ran.err, "part of the program's I/O was not native"
    return ran.out


@pytest.mark.parametrize("module", ["mpi", "mpi_f08"])
def test_a_fortran_program_writes_the_same_file(
    module: str, mpi: Mpi, compiled: Callable[..., Path], tmp_path: Path
) -> None:
    if (mpi.name, module) == ("mpich", "mpi_f08"):
        pytest.skip("mpi_f08 of Debian's MPICH crashes in MPI_File_write_all by itself")
    flags = ("-DF08",) if module == "mpi_f08" else ()
    program = compiled(
        mpi.compiler("mpifort"), "io_fortran.F90", name=f"fortran-{mpi.name}-{module}", flags=flags
    )
    out = goes_through_aggregators(mpi, tmp_path / "io", str(program))
    assert out.split() == ["count", "600", "wrong", "0", "bytes", "9600", "missing", "T"]
    assert run_mpi(mpi, str(program), str(tmp_path / "plain"), io=None).out == out
    assert (tmp_path / "io").read_bytes() == (tmp_path / "plain").read_bytes()


@pytest.mark.parametrize("ranks", [4, 3])
def test_parallel_hdf5_reads_what_it_wrote(
    ranks: int, mpi: Mpi, compiled: Callable[..., Path], tmp_path: Path
) -> None:
    """hdf5#1227: an odd number of ranks hung."""
    program = compiled(mpi.compiler("h5pcc"), "io_hdf5.c", name=f"hdf5-{mpi.name}")
    ran = run_mpi(mpi, str(program), str(tmp_path / "file.h5"), ranks=ranks)
    assert (ran.code, ran.out) == (0, "wrong 0\n"), ran.err
    assert "file.h5: through aggregators" in ran.err
    assert "does it" not in ran.err, "part of the program's I/O was not native"


def test_pnetcdf_reads_what_it_wrote(compiled: Callable[..., Path], tmp_path: Path) -> None:
    """Debian builds it for Open MPI."""
    if not Path("/usr/include/pnetcdf.h").is_file():
        pytest.skip("pnetcdf.h is missing: install libpnetcdf-dev")
    program = compiled("mpicc.openmpi", "io_pnetcdf.c", name="pnetcdf", flags=("-lpnetcdf",))
    assert goes_through_aggregators(OPEN_MPI, tmp_path / "file.nc", str(program)) == "wrong 0\n"


def test_h5py_reads_what_it_wrote(tmp_path: Path) -> None:
    if not Path("/usr/lib/python3/dist-packages/h5py/_debian_h5py_mpi").is_dir():
        pytest.skip("h5py with MPI is missing: install python3-h5py-mpi")
    (tmp_path / "program.py").write_text(H5PY, encoding="utf-8")
    out = goes_through_aggregators(
        OPEN_MPI, tmp_path / "file.h5", "/usr/bin/python3", str(tmp_path / "program.py")
    )
    assert out == "wrong 0\n"
