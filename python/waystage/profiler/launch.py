"""Starting a program with the profiler preloaded, and collecting its files.

Arrives: a command line, and where the pattern goes.
Leaves: the program's exit status, also where profiling failed, and the pattern file.
Must not know: how the library intercepts messages.
"""

from __future__ import annotations

import glob
import os
import re
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from waystage.mpi_launchers import launcher_of, passing
from waystage.outputs import refuse_special
from waystage.patterns import PatternError
from waystage.patterns.live import is_live
from waystage.patterns.merge import merge
from waystage.profiler.errors import ProfilerError
from waystage.profiler.library import build
from waystage.program import preloading, run_to_end

OF_WORLD = re.compile(r"(?P<world>\.spawned(-[^.]+)?)?(\.(part|live)-\d+|\.draft-\d+-\d+)?")
"""The library's suffix of the output's name."""

PASSED_ON = ("LD_PRELOAD", "WAYSTAGE_PROFILE_OUTPUT", "WAYSTAGE_PROFILE_INTERVAL")
"""Variables that ranks on other hosts need."""

THROUGH_NETWORK = {"MPIR_CVAR_NOLOCAL": "1"}
"""Makes MPICH treat every rank as remote; other implementations ignore it."""


@dataclass(frozen=True)
class Profiled:
    """`status` is the program's, as a shell gives it. `output` is None where it left nothing; `problem` says what went
    wrong with the profile. `early` are ranks that did not reach MPI_Finalize, `missing` those that left nothing.
    `spawned` are the same of worlds that the program spawned."""

    status: int
    output: Path | None
    problem: str | None = None
    early: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    spawned: tuple[Profiled, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether all ranks of the program reached MPI_Finalize."""
        return self.output is not None and not self.early and not self.missing


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
    launcher = launcher_of(command)
    recording = record(
        output, launcher=launcher, interval_s=interval_s, mpicc=mpicc, through_network=through_network
    )
    try:
        status = run_to_end(passing(command, launcher, PASSED_ON), recording.environment)
    except OSError as error:
        raise ProfilerError(f"{command[0]} cannot be started: {error.strerror}") from None
    return recording.collect(status)


@dataclass(frozen=True)
class Recording:
    """What a program that is about to start needs, and where its ranks leave their files."""

    environment: Mapping[str, str]
    library: Path
    draft: Path
    output: Path

    def collect(self, status: int) -> Profiled:
        """Once the program has ended with `status`: the pattern file under its name."""
        return _collect(self.draft, self.output, status)


def record(
    output: Path,
    *,
    launcher: str | None,
    interval_s: float = 1.0,
    mpicc: str | None = None,
    through_network: bool = False,
) -> Recording:
    """Prepare the recording of a program that `launcher` starts. Raises ProfilerError."""
    if not output.resolve().parent.is_dir():
        raise ProfilerError(
            f"the folder {output.resolve().parent} does not exist: create it, or name another output"
        )
    try:
        refuse_special(output)
    except OSError as error:
        raise ProfilerError(f"{output}: {error.strerror}") from None
    library = build(mpicc, launcher=launcher)
    # Under a temporary name until it is complete: an older file of this name must not pass for this run's.
    draft = output.resolve().with_name(f".{output.name}.{secrets.token_hex(4)}")
    environment = environment_for(library, draft, interval_s) | (THROUGH_NETWORK if through_network else {})
    return Recording(environment, library, draft, output)


def environment_for(library: Path, output: Path, interval_s: float) -> dict[str, str]:
    """Variables to add to a program's environment."""
    return {
        "LD_PRELOAD": preloading(str(library)),
        "WAYSTAGE_PROFILE_OUTPUT": str(output),
        "WAYSTAGE_PROFILE_INTERVAL": repr(interval_s),
    }


def _collect(draft: Path, output: Path, status: int) -> Profiled:
    """Give every world's file its name. Spawned worlds have the program's name and what is behind the draft's."""
    worlds: dict[str, list[Path]] = {"": []}
    for path in sorted(draft.parent.glob(f"{glob.escape(draft.name)}*")):
        found = OF_WORLD.fullmatch(path.name.removeprefix(draft.name))
        if found is not None:
            worlds.setdefault(found["world"] or "", []).append(path)
    collected = {
        world: _collect_world(
            draft.with_name(draft.name + world), output.with_name(output.name + world), status, left
        )
        for world, left in worlds.items()
    }
    main = collected.pop("")
    order = sorted(collected.items(), key=lambda item: (len(item[0]), item[0]))
    return replace(main, spawned=tuple(world for _, world in order))


def _collect_world(draft: Path, output: Path, status: int, left: Sequence[Path]) -> Profiled:
    try:
        if draft in left:
            refuse_special(output)
            os.replace(draft, output)
            return Profiled(status, output)
        parts = [path for path in left if ".part-" in path.name or (".live-" in path.name and _counts(path))]
        if not parts:
            problem = "it left no profile: it did not reach MPI_Init, or its MPI is linked statically"
            return Profiled(status, None, problem)
        try:
            merged = merge(parts, output)
        except PatternError as error:
            return Profiled(status, None, str(error))
        return Profiled(status, output, early=merged.unfinished, missing=merged.missing)
    except OSError as error:
        return Profiled(status, None, f"{output} cannot be written: {error.strerror}")
    finally:
        for path in left:
            path.unlink(missing_ok=True)


def _counts(path: Path) -> bool:
    """Whether a rank had started counting in this file."""
    with path.open("rb") as file:
        return is_live(file.read(8))
