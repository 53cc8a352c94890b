"""Launchers of MPI programs, and the compiler that belongs to one.

Arrives: a command line, names of environment variables.
Leaves: the command line with what passes the variables to ranks on other hosts; a compiler.
Must not know: what the variables say.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

LAUNCHERS = ("mpirun", "mpiexec", "orterun", "prterun", "hydra_mpiexec")


class NoCompiler(RuntimeError):
    """There is no C compiler for MPI."""


def launcher_of(command: Sequence[str]) -> str | None:
    """The MPI launcher that a command line starts with."""
    return command[0] if os.path.basename(command[0]).split(".")[0] in LAUNCHERS else None


def passing(command: Sequence[str], launcher: str | None, variables: Iterable[str]) -> list[str]:
    """Open MPI passes to other hosts only what `-x` names; MPICH and Slurm pass everything."""
    if launcher is None or not is_open_mpi(launcher):
        return list(command)
    passed = [word for name in variables for word in ("-x", name)]
    return [command[0], *passed, *command[1:]]


def is_open_mpi(launcher: str) -> bool:
    """Whether a launcher is Open MPI's."""
    try:
        done = subprocess.run(
            [launcher, "--version"], capture_output=True, text=True, errors="replace", timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return "Open MPI" in done.stdout or "OpenRTE" in done.stdout or "PRTE" in done.stdout


def find_compiler(mpicc: str | None, launcher: str | None) -> str:
    """The path of the MPI compiler: the one named, the one beside the launcher, the one of the search path."""
    if mpicc is not None:
        found = shutil.which(mpicc)
        if found is None:
            raise NoCompiler(
                f"there is no program {mpicc}: name the MPI compiler of this machine with --mpicc"
            )
        return found
    for candidate in (*_beside(launcher), shutil.which("mpicc")):
        if candidate is not None and os.access(candidate, os.X_OK):
            return candidate
    raise NoCompiler("mpicc is missing: install libopenmpi-dev or libmpich-dev, or name another with --mpicc")


def _beside(launcher: str | None) -> list[str]:
    """Debian has mpirun.openmpi beside mpicc.openmpi; elsewhere mpirun is beside mpicc."""
    found = shutil.which(launcher) if launcher is not None else None
    if found is None:
        return []
    real = Path(os.path.realpath(found))
    suffixes = {
        "orterun": ".openmpi",
        "prterun": ".openmpi",
        "mpiexec.hydra": ".mpich",
        "hydra_mpiexec": ".mpich",
    }
    suffix = suffixes.get(real.name, real.suffix)
    return [str(real.with_name(f"mpicc{suffix}")), str(Path(found).with_name("mpicc"))]
