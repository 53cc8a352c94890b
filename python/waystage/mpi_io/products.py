"""The libraries that a program loads, compiled on first use against its MPI.

Arrives: which MPI compiler, or the launcher it belongs to.
Leaves: the paths of the libraries, from the cache or compiled now.
Must not know: what the libraries do.

Open MPI gets an io component, which Fortran, C and every binding pass through. Other implementations, and an Open MPI
without its component headers, get functions that are preloaded.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from waystage import _native
from waystage.compiled import component_folder, preloaded_library
from waystage.mpi_io.errors import Missing, MpiIoError
from waystage.mpi_launchers import NoCompiler, find_compiler

FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-Wl,-z,lazy")
"""Lazily bound: processes that open no file, such as the launcher, have no MPI to bind to."""

START = ("start.c", "supervise.c")
WRAPPERS = ("wrap.c", "wrap_ops.c")
COMPONENT = ("component.c",)

HEADER = Path("ompi/mca/io/io.h")
"""Of Open MPI's components, in a folder that its compiler searches."""


@dataclass(frozen=True)
class Way:
    """`preload` goes into LD_PRELOAD. `components` is a folder of Open MPI's components, or None."""

    preload: Path
    components: Path | None = None

    @property
    def name(self) -> str:
        """The way, as the preloaded library knows it: shim/io/start.c."""
        return "wrappers" if self.components is None else "component"


def client_library() -> Path:
    """libwaystage_io.so, which is part of the installation. Raises Missing."""
    named = os.environ.get("WAYSTAGE_IO_LIBRARY")
    if named:
        return Path(named)
    path = Path(str(resources.files("waystage") / "data" / "lib" / "libwaystage_io.so"))
    if not path.is_file():
        raise Missing(
            f"{path} is missing: install Waystage again, with its client library for collective I/O"
        )
    return path


def build(mpicc: str | None = None, *, launcher: str | None = None) -> Way:
    """The libraries for `mpicc`, or for the MPI that `launcher` belongs to. Raises MpiIoError."""
    try:
        compiler = find_compiler(mpicc, launcher)
    except NoCompiler as error:
        raise Missing(str(error)) from None
    sources = {name: text.encode() for name, text in _native.shim_sources("io")}
    folders = _open_mpi_folders(compiler)
    headers = next((folder for folder in folders or () if (folder / HEADER).is_file()), None)
    if headers is None:
        version = "-show" if folders is None else "-showme"
        flags = ("-include", "weak.h", "-Wl,--as-needed")
        library = _compiled("wrappers", compiler, flags, _without(sources, COMPONENT), version)
        return Way(library)
    include = (f"-I{headers}",)
    component = _compiled("component", compiler, include, _without(sources, START + WRAPPERS), "-showme")
    # No symbol of MPI: launchers and shells, which it is loaded into as well, do not load MPI.
    start = _compiled("start", compiler, ("-Wl,--as-needed",), _only(sources, (*START, "say.c")), "-showme")
    return Way(start, component_folder(component, "mca_io_waystage.so", failed=MpiIoError))


def _open_mpi_folders(compiler: str) -> list[Path] | None:
    """Folders of headers where `compiler` is Open MPI's; None where it is not."""
    try:
        done = subprocess.run(
            [compiler, "--showme:incdirs"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MpiIoError(f"{compiler} cannot be run: {error}") from None
    if done.returncode != 0:
        return None
    return [Path(word) for word in shlex.split(done.stdout)]


def _compiled(
    name: str, compiler: str, flags: Sequence[str], sources: Mapping[str, bytes], version_flag: str
) -> Path:
    return preloaded_library(
        f"mpi-io-{name}",
        f"libwaystage-mpi-io-{name}",
        compiler,
        (*FLAGS, *flags),
        sources,
        version_flag=version_flag,
        failed=MpiIoError,
    )


def _without(sources: Mapping[str, bytes], left_out: Sequence[str]) -> dict[str, bytes]:
    return {name: text for name, text in sources.items() if name not in left_out}


def _only(sources: Mapping[str, bytes], wanted: Sequence[str]) -> dict[str, bytes]:
    return {name: text for name, text in sources.items() if name in wanted or name.endswith(".h")}
