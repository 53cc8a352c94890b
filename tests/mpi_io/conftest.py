"""MPI programs with MPI-IO, compiled once, run with and without Waystage."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parents[2] / "shim" / "tests"
RANKS = 4
DEADLINE_S = 150


@dataclass(frozen=True)
class Mpi:
    """An MPI implementation: its launcher's command and the suffix of its compilers."""

    name: str
    launcher: tuple[str, ...]

    def compiler(self, language: str) -> str:
        return f"{language}.{self.name}"


OPEN_MPI = Mpi(
    "openmpi",
    ("mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1"),
)
MPICH = Mpi("mpich", ("mpiexec.mpich",))


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


@pytest.fixture(scope="session", params=[OPEN_MPI, MPICH], ids=lambda mpi: mpi.name)
def mpi(request: pytest.FixtureRequest) -> Mpi:
    found: Mpi = request.param
    for program in (found.launcher[0], found.compiler("mpicc")):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is missing: install {found.name}")
    return found


def run_mpi(mpi: Mpi, *program: str, io: tuple[str, ...] | None = ("--verbose",), ranks: int = RANKS) -> Ran:
    """`io` are options of `waystage mpi --io`; None runs the program plainly."""
    waystage = [] if io is None else [sys.executable, "-m", "waystage", "mpi", "--io", *io, "--"]
    done = subprocess.run(
        [*waystage, *mpi.launcher, "-n", str(ranks), *program],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        env={name: value for name, value in os.environ.items() if not name.startswith("WAYSTAGE_IO_")},
    )
    return Ran(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    folder = tmp_path_factory.mktemp("io-programs")

    def compile_once(compiler: str, *sources: str, name: str, flags: tuple[str, ...] = ()) -> Path:
        binary = folder / name
        if not binary.exists():
            if shutil.which(compiler) is None:
                pytest.skip(f"{compiler} is missing")
            done = subprocess.run(
                [compiler, "-O1", "-o", str(binary), *(str(PROGRAMS / source) for source in sources), *flags],
                capture_output=True,
                text=True,
                cwd=folder,
                check=False,
            )
            assert done.returncode == 0, done.stderr
        return binary

    return compile_once
