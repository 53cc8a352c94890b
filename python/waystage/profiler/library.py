"""The preloaded library, compiled when first used.

Arrives: which MPI compiler, or the launcher it belongs to.
Leaves: the path of the library, from the cache or compiled now.
Must not know: what the library does.

Handles and constants of MPI differ between its implementations, so the library is compiled on the machine, against the
MPI that the program runs with; its sources come with the package. It is cached by sources, flags and what the compiler
says of itself.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from waystage.compiled import CompileError, compile_into, kept_at
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
"""The library calls nothing of MPI by name, so that with --as-needed it does not drag MPI into other processes. Warnings
are no errors here, since a newer compiler may have new ones; scripts/lint has them as errors."""

LAUNCHERS = ("mpirun", "mpiexec", "orterun", "prterun", "hydra_mpiexec")


def build(mpicc: str | None = None, *, launcher: str | None = None) -> Path:
    """The library for `mpicc`, or for the MPI that `launcher` belongs to. Raises ProfilerError."""
    compiler = find_compiler(mpicc, launcher)
    sources = _sources()
    made_by = (*FLAGS, os.path.realpath(compiler), _self_description(compiler))
    library = kept_at("profiler", "libwaystage-profile", sources, *made_by, suffix=".so")
    if not library.exists():
        _compile(compiler, sources, library)
    return library


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


def _self_description(compiler: str) -> str:
    """`-show` is understood by Open MPI and by MPICH: the command line, with its versions' folders."""
    try:
        done = subprocess.run([compiler, "-show"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ProfilerError(f"{compiler} cannot be run: {error}") from None
    return done.stdout


def _compile(compiler: str, sources: Mapping[str, bytes], library: Path) -> None:
    try:
        compile_into(library, (compiler, *FLAGS), sources, ("-ldl", "-lpthread"))
    except CompileError as error:
        said = next((line for line in error.said.splitlines() if "error" in line), error.said[:200])
        raise ProfilerError(f"{compiler} could not compile the profiler: {said.strip()}") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ProfilerError(f"the profiler cannot be compiled in {library.parent}: {error}") from None
