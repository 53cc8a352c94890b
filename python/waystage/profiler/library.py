"""The preloaded library, compiled on first use.

Arrives: which MPI compiler, or the launcher it belongs to.
Leaves: the path of the library, from the cache or compiled now.
Must not know: what the library does.

Handles and constants differ between MPI implementations, so the library is compiled on the machine, against the MPI
that the program runs with. It is cached by sources, flags and the compiler's description of itself.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from waystage.compiled import preloaded_library
from waystage.profiler.errors import CompilerMissing, ProfilerError

FLAGS = (
    "-std=c11",
    "-O3",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-fno-semantic-interposition",
    "-Wl,--as-needed",
)
"""The library references no MPI symbol, so with --as-needed it does not load MPI into other processes. Warnings are not
errors here, since a newer compiler may have new ones; scripts/lint treats them as errors."""

LAUNCHERS = ("mpirun", "mpiexec", "orterun", "prterun", "hydra_mpiexec")


def build(mpicc: str | None = None, *, launcher: str | None = None) -> Path:
    """The library for `mpicc`, or for the MPI that `launcher` belongs to. Raises ProfilerError."""
    compiler = find_compiler(mpicc, launcher)
    return preloaded_library(
        "profiler",
        "libwaystage-profile",
        compiler,
        FLAGS,
        _sources(),
        # Open MPI and MPICH print the command line, with the folders of their versions.
        version_flag="-show",
        failed=ProfilerError,
    )


def find_compiler(mpicc: str | None, launcher: str | None) -> str:
    """The path of the MPI compiler: the one named, the one beside the launcher, the one of the search path."""
    if mpicc is not None:
        found = shutil.which(mpicc)
        if found is None:
            raise CompilerMissing(
                f"there is no program {mpicc}: name the MPI compiler of this machine with --mpicc"
            )
        return found
    for candidate in (*_beside(launcher), shutil.which("mpicc")):
        if candidate is not None and os.access(candidate, os.X_OK):
            return candidate
    raise CompilerMissing(
        "mpicc is missing: install libopenmpi-dev or libmpich-dev, or name another with --mpicc"
    )


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


def _sources() -> Mapping[str, bytes]:
    folder = resources.files("waystage") / "data" / "shim"
    return {e.name: e.read_bytes() for e in folder.iterdir() if e.name.endswith((".c", ".h"))}
