"""MPI programs that say what they sent, compiled once, and how to run them under the profiler."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from waystage.patterns import Pattern
from waystage.profiler import build

PROGRAMS = Path(__file__).parents[2] / "shim" / "tests"
C_FLAGS = ("-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-stringop-overread")
"""MPI_UNWEIGHTED of Open MPI is an array of no elements, which gcc 12 complains about."""

Key = tuple[str, int, int]


@dataclass(frozen=True)
class MpiRun:
    """`pattern` is None where there is no whole file; `parts` are those of single ranks."""

    code: int
    out: str
    err: str
    pattern: Pattern | None
    parts: list[Path]
    expected: Counter[Key]
    expected_messages: Counter[Key]


RunMpi = Callable[..., MpiRun]


def fortran() -> str | None:
    """Debian may have only gfortran-12, which Open MPI's wrapper does not look for."""
    return next((name for name in ("gfortran", "gfortran-12", "gfortran-13") if shutil.which(name)), None)


@pytest.fixture(scope="session")
def mpi() -> None:
    for command in ("mpirun", "mpicc"):
        if shutil.which(command) is None:
            pytest.skip(f"{command} is missing: install openmpi-bin and libopenmpi-dev")


@pytest.fixture(scope="session")
def profiler(mpi: None) -> Path:
    """The library, from the cache or compiled."""
    return build(launcher="mpirun")


@pytest.fixture(scope="session")
def compiled(mpi: None, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    folder = tmp_path_factory.mktemp("programs")

    def compile_once(source: str, define: str = "NOTHING") -> Path:
        binary = folder / source.replace(".", "-")
        if not binary.exists():
            compiler, flags, env = "mpicc", C_FLAGS, dict(os.environ)
            if source.endswith(".cc"):
                compiler, flags = "mpicxx", ("-O1",)
            elif source.endswith(".f90"):
                if fortran() is None or shutil.which("mpifort") is None:
                    pytest.skip("there is no Fortran compiler: install gfortran")
                compiler, flags = "mpifort", ("-O1", f"-J{folder}")
                env |= {"OMPI_FC": fortran() or ""}
            done = subprocess.run(
                [
                    compiler,
                    *flags,
                    f"-D{define}",
                    "-o",
                    str(binary),
                    str(PROGRAMS / source),
                    "-lpthread",
                    "-ldl",
                ],
                capture_output=True,
                text=True,
                env=env,
                check=False,
            )
            assert done.returncode == 0, done.stderr
        return binary

    return compile_once


@pytest.fixture
def run_mpi(compiled: Callable[..., Path], profiler: Path, tmp_path: Path) -> RunMpi:
    """Run a program of shim/tests on `ranks` ranks with the profiler preloaded, or without it."""

    def run(
        source: str,
        *arguments: str,
        ranks: int = 4,
        options: tuple[str, ...] = (),
        preload: bool = True,
        env: dict[str, str] | None = None,
        output: Path | None = None,
        define: str = "NOTHING",
    ) -> MpiRun:
        output = output or tmp_path / "run.pattern"
        said = tmp_path / "expected"
        environment = {**(env or {})}
        if preload:
            environment |= {"LD_PRELOAD": str(profiler), "WAYSTAGE_PROFILE_OUTPUT": str(output)}
        passed = [word for name, value in environment.items() for word in ("-x", f"{name}={value}")]
        command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]
        command += [
            *options,
            *passed,
            "-np",
            str(ranks),
            str(compiled(source, define)),
            str(said),
            *arguments,
        ]
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, errors="replace", timeout=150, check=False
        )
        expected: Counter[Key] = Counter()
        messages: Counter[Key] = Counter()
        for file in tmp_path.glob("expected.*"):
            for line in file.read_text(encoding="utf-8").splitlines():
                kind, source_rank, target_rank, count, total = line.split()
                expected[kind, int(source_rank), int(target_rank)] += int(total)
                messages[kind, int(source_rank), int(target_rank)] += int(count)
        pattern = Pattern.read(output) if output.is_file() else None
        parts = sorted(output.parent.glob(f"{output.name}.part-*"))
        return MpiRun(done.returncode, done.stdout, done.stderr, pattern, parts, expected, messages)

    return run
