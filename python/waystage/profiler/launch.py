"""Starting a program with the profiler preloaded, and collecting what it left.

Arrives: a command line, and where the pattern goes.
Leaves: the program's exit status, whatever became of the profile, and the pattern file.
Must not know: how the library sees messages.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from waystage.patterns import PatternError
from waystage.patterns.merge import merge
from waystage.profiler.errors import ProfilerError
from waystage.profiler.library import LAUNCHERS, build
from waystage.program import preloading, run_to_end

DEFAULT_OUTPUT = "waystage.pattern"
PASSED_ON = ("LD_PRELOAD", "WAYSTAGE_PROFILE_OUTPUT", "WAYSTAGE_PROFILE_INTERVAL")
"""What ranks on other hosts need in their environment."""

THROUGH_NETWORK = {"MPIR_CVAR_NOLOCAL": "1"}
"""Makes MPICH take every rank for one of another host; others do not know it."""


@dataclass(frozen=True)
class Profiled:
    """`status` is the program's, as a shell gives it. `output` is None where it left nothing; `complete` is false
    where ranks are missing or did not reach MPI_Finalize; `problem` says what went wrong with the profile."""

    status: int
    output: Path | None
    complete: bool = False
    problem: str | None = None


def profile(
    command: Sequence[str],
    output: Path,
    *,
    interval_s: float = 1.0,
    mpicc: str | None = None,
    through_network: bool = False,
) -> Profiled:
    """Run `command` to its end. Raises ProfilerError where it was not started. With `through_network` MPICH sends what
    stays within a host through the network layer too, where it is seen."""
    if not command:
        raise ProfilerError("there is no program to profile: waystage profile -- mpirun -np 4 PROGRAM")
    if shutil.which(command[0]) is None:
        raise ProfilerError(f"there is no program {command[0]}")
    if not output.resolve().parent.is_dir():
        raise ProfilerError(
            f"the folder {output.resolve().parent} does not exist: create it, or name another output"
        )
    launcher = command[0] if os.path.basename(command[0]).split(".")[0] in LAUNCHERS else None
    library = build(mpicc, launcher=launcher)
    # Under a name of its own until it is whole: an older file of this name must not pass for this run's.
    draft = output.resolve().with_name(f".{output.name}.{secrets.token_hex(4)}")
    environment = environment_for(library, draft, interval_s) | (THROUGH_NETWORK if through_network else {})
    try:
        status = run_to_end(with_environment(command, launcher), environment)
    except OSError as error:
        raise ProfilerError(f"{command[0]} cannot be started: {error.strerror}") from None
    return _collect(draft, output, status)


def environment_for(library: Path, output: Path, interval_s: float) -> dict[str, str]:
    """What to add to a program's environment."""
    return {
        "LD_PRELOAD": preloading(str(library)),
        "WAYSTAGE_PROFILE_OUTPUT": str(output),
        "WAYSTAGE_PROFILE_INTERVAL": repr(interval_s),
    }


def with_environment(command: Sequence[str], launcher: str | None) -> list[str]:
    """Open MPI passes to other hosts only what `-x` names; MPICH and Slurm pass everything."""
    if launcher is None or not _is_open_mpi(launcher):
        return list(command)
    passed = [word for name in PASSED_ON for word in ("-x", name)]
    return [command[0], *passed, *command[1:]]


def _is_open_mpi(launcher: str) -> bool:
    try:
        done = subprocess.run(
            [launcher, "--version"], capture_output=True, text=True, errors="replace", timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return "Open MPI" in done.stdout or "OpenRTE" in done.stdout or "PRTE" in done.stdout


def _collect(draft: Path, output: Path, status: int) -> Profiled:
    parts = sorted(draft.parent.glob(f"{draft.name}.part-*"))
    leftovers = sorted(draft.parent.glob(f"{draft.name}.draft-*"))
    try:
        if draft.exists():
            os.replace(draft, output)
            return Profiled(status, output, complete=True)
        if not parts:
            problem = "it left no profile: it did not reach MPI_Init, or its MPI is linked statically"
            return Profiled(status, None, problem=problem)
        try:
            merged = merge(parts, output)
        except PatternError as error:
            return Profiled(status, None, problem=str(error))
        return Profiled(status, output, complete=not merged.missing and not merged.unfinished)
    except OSError as error:
        return Profiled(status, None, problem=f"{output} cannot be written: {error.strerror}")
    finally:
        for path in (*parts, *leftovers):
            path.unlink(missing_ok=True)
