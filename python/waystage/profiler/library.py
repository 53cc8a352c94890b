"""The preloaded library, compiled on first use.

Arrives: which MPI compiler, or the launcher it belongs to.
Leaves: the path of the library, from the cache or compiled now.
Must not know: what the library does.

Handles and constants differ between MPI implementations, so the library is compiled on the machine, against the MPI
that the program runs with. It is cached by sources, flags and the compiler's description of itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from waystage.compiled import preloaded_library
from waystage.mpi_launchers import NoCompiler, find_compiler
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


def build(mpicc: str | None = None, *, launcher: str | None = None) -> Path:
    """The library for `mpicc`, or for the MPI that `launcher` belongs to. Raises ProfilerError."""
    try:
        compiler = find_compiler(mpicc, launcher)
    except NoCompiler as error:
        raise CompilerMissing(str(error)) from None
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


def _sources() -> Mapping[str, bytes]:
    folder = resources.files("waystage") / "data" / "shim"
    return {e.name: e.read_bytes() for e in folder.iterdir() if e.name.endswith((".c", ".h"))}
