"""What a program's ranks need to broadcast by multicast: a component of Open MPI and its variables.

Arrives: an MPI compiler or a launcher.
Leaves: a folder with the component, compiled on first use, and variables to add to the program's environment.
Must not know: how a broadcast is carried out (shim/multicast), who makes trees.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

from waystage import _native
from waystage.compiled import component_folder, preloaded_library
from waystage.mpi_launchers import NoCompiler, find_compiler

FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-Wl,-z,lazy")
HEADER = Path("ompi/mca/coll/coll.h")
COMPONENT_PATH = "OMPI_MCA_mca_base_component_path"

PASSED_ON = (
    "WAYSTAGE_FLOWS",
    "WAYSTAGE_JOB",
    "WAYSTAGE_MULTICAST",
    "WAYSTAGE_MULTICAST_FROM",
    "WAYSTAGE_MULTICAST_STATS",
    "WAYSTAGE_MULTICAST_WAIT_MS",
    "WAYSTAGE_PATHS_APP",
)
"""Variables that ranks on other hosts need, where they are set. Open MPI passes its own, OMPI_MCA_*, itself."""


class MulticastError(RuntimeError):
    """The component cannot be made; the message says why. The program runs without."""


def build(mpicc: str | None = None, *, launcher: str | None = None) -> Path:
    """The folder with the component for `mpicc`, or for the MPI that `launcher` belongs to. Raises MulticastError."""
    try:
        compiler = find_compiler(mpicc, launcher)
        done = subprocess.run(
            [compiler, "--showme:incdirs"], capture_output=True, text=True, timeout=30, check=False
        )
    except (NoCompiler, OSError, subprocess.TimeoutExpired) as error:
        raise MulticastError(str(error)) from None
    folders = [Path(word) for word in shlex.split(done.stdout)] if done.returncode == 0 else []
    headers = next((folder for folder in folders if (folder / HEADER).is_file()), None)
    if headers is None:
        raise MulticastError(f"{compiler} is not Open MPI's with the headers of its components")
    component = preloaded_library(
        "multicast",
        "libwaystage-multicast",
        compiler,
        (*FLAGS, f"-I{headers}"),
        {name: text.encode() for name, text in _native.shim_sources("multicast")},
        version_flag="-showme",
        failed=MulticastError,
    )
    return component_folder(component, "mca_coll_waystage.so", failed=MulticastError)


def environment_for(folder: Path, beside: str | None = None) -> dict[str, str]:
    """Variables to add to a program's environment; `beside` is what the component path is to have too."""
    others = beside or os.environ.get(COMPONENT_PATH) or "SYSTEM_DEFAULT:USER_DEFAULT"
    return {
        COMPONENT_PATH: f"{folder}:{others}",
        "WAYSTAGE_MULTICAST": os.environ.get("WAYSTAGE_MULTICAST") or "on",
    }
