"""What a program's ranks need to declare their collectives: a preloaded library and its variables.

Arrives: an MPI compiler or a launcher, a job.
Leaves: the library, compiled on first use, and variables to add to the program's environment.
Must not know: how collectives are seen, what is done with them.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Literal

from waystage import _native
from waystage.compiled import preloaded_library
from waystage.mpi_launchers import NoCompiler, find_compiler
from waystage.profiler import library as profiler
from waystage.profiler.errors import ProfilerError

FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-Wl,--as-needed")
"""No symbol of MPI is referenced: launchers and shells, which it is loaded into as well, do not load MPI."""

PASSED_ON = (
    "LD_PRELOAD",
    "WAYSTAGE_FLOWS",
    "WAYSTAGE_JOB",
    "WAYSTAGE_PATHS_APP",
    "WAYSTAGE_PATHS_STATS",
    "WAYSTAGE_PROFILE",
    "WAYSTAGE_RANK_ORDER",
    "WAYSTAGE_RANK_ORDER_FROM",
    "WAYSTAGE_RANK_ORDER_WAIT_MS",
)
"""Variables that ranks on other hosts need, where they are set."""


RankOrder = Literal["exact", "floats"]

WATCH = {"WAYSTAGE_PROFILE": "watch"}
"""Lets the profiler's library tell the one for paths whom calls send to, and do nothing else."""


class PathsError(RuntimeError):
    """The library cannot be made; the message says why."""


class CompilerMissing(PathsError):
    """There is no MPI compiler."""


def build(mpicc: str | None = None, *, launcher: str | None = None) -> Path:
    """The library for `mpicc`, or for the MPI that `launcher` belongs to. Raises PathsError."""
    try:
        compiler = find_compiler(mpicc, launcher)
    except NoCompiler as error:
        raise CompilerMissing(str(error)) from None
    sources = {name: text.encode() for name, text in _native.shim_sources("paths")}
    return preloaded_library(
        "paths",
        "libwaystage-paths",
        compiler,
        FLAGS,
        sources,
        # Open MPI and MPICH print the command line, with the folders of their versions.
        version_flag="-show",
        failed=PathsError,
    )


def preloads(mpicc: str | None = None, *, launcher: str | None = None) -> tuple[Path, Path]:
    """The library, and the profiler's behind it, by which first calls are learned; WATCH is in the environment unless
    the program is profiled as well. Raises PathsError."""
    library = build(mpicc, launcher=launcher)
    try:
        return library, profiler.build(mpicc, launcher=launcher)
    except ProfilerError as error:
        raise PathsError(str(error)) from None


def environment_for(job: str | None = None, rank_order: RankOrder | None = None) -> dict[str, str]:
    """Variables to add to a program's environment, but LD_PRELOAD; a name for this launch among them.

    With `rank_order`, large collectives whose results do not depend on it go in the order of ranks that the controller
    gives: `floats` also sums of floating-point numbers.
    """
    job = job or os.environ.get("SLURM_JOB_ID") or ""
    named = {"WAYSTAGE_PATHS_APP": f"{job or 'app'}.{secrets.token_hex(4)}"}
    if rank_order is not None:
        named["WAYSTAGE_RANK_ORDER"] = rank_order
    return named | ({"WAYSTAGE_JOB": job} if job else {})
