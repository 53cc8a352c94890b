"""Starting a program whose ranks find the aggregator of their node, and cleaning up after it.

Arrives: a command line, options.
Leaves: the program's exit status; no process, socket or folder on this node.
Must not know: how I/O is intercepted; what a rank does to start its node's aggregator (shim/io/start.c).

The token travels in the environment alone: command lines are public on a node.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import secrets
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from waystage import mpi_multicast, mpi_paths
from waystage.mpi_io import tags
from waystage.mpi_io.errors import Missing, MpiIoError
from waystage.mpi_io.products import Way, build, client_library
from waystage.mpi_launchers import launcher_of, passing
from waystage.mpi_paths import RankOrder
from waystage.profiler import Profiled, ProfilerError
from waystage.profiler.errors import CompilerMissing
from waystage.profiler.launch import PASSED_ON as PASSED_ON_BY_PROFILER
from waystage.profiler.launch import record
from waystage.program import preloading, run_to_end

CLEANED_UP_WITHIN_S = 10.0
"""A supervisor ends an aggregator within 5 s: GRACE_MS in shim/io/supervise.c."""

AGGREGATOR = (sys.executable, "-m", "waystage", "aggregator", "--quiet")
"""What a node's supervisor starts; WAYSTAGE_IO_SOCKET and the token are in the environment."""

COMPONENT_PATH = "OMPI_MCA_mca_base_component_path"

PASSED_ON = (
    "LD_PRELOAD",
    "WAYSTAGE_COUPLING",
    "WAYSTAGE_COUPLING_COMMIT",
    "WAYSTAGE_COUPLING_DEPTH",
    "WAYSTAGE_COUPLING_LEASE_S",
    "WAYSTAGE_COUPLING_STORE",
    "WAYSTAGE_COUPLING_TIMEOUT_S",
    "WAYSTAGE_IO_AGGREGATOR",
    "WAYSTAGE_IO_APP",
    "WAYSTAGE_IO_BASE",
    "WAYSTAGE_IO_LIBRARY",
    "WAYSTAGE_IO_LEASE_S",
    "WAYSTAGE_IO_DELAY_FILE",
    "WAYSTAGE_IO_TOKEN",
    "WAYSTAGE_IO_VERBOSE",
    "WAYSTAGE_IO_WAY",
    "WAYSTAGE_IO_WRITE_BEHIND",
    "WAYSTAGE_JOB",
)
"""Variables that ranks on other hosts need. Open MPI passes its own, OMPI_MCA_*, itself."""


@dataclass(frozen=True)
class Options:
    """`memory` is in bytes, of each node's aggregator; `network` an interface or a prefix between aggregators;
    `profile` a pattern file to write; `job` the id of the job; `storage_timeout_s` seconds that a request to the storage
    may take; with `write_behind` writes are acknowledged with a copy at a second aggregator; with `tags` the packets of
    messages carry tags, with `multicast` switches copy broadcasts; `rank_order` needs `paths`, and lets large collectives
    go in another order of ranks.
    """

    io: bool = True
    paths: bool = False
    tags: bool = False
    multicast: bool = False
    rank_order: RankOrder | None = None
    profile: Path | None = None
    verbose: bool = False
    job: str | None = None
    memory: int | None = None
    network: str | None = None
    storage_timeout_s: float | None = None
    write_behind: bool = False
    mpicc: str | None = None


@dataclass(frozen=True)
class Ended:
    """`status` is the program's, as a shell gives it; `untagged` says why its packets got no tags, though they should
    have, `not_multicast` the same of broadcasts."""

    status: int
    profiled: Profiled | None = None
    untagged: str = ""
    not_multicast: str = ""


def run(command: Sequence[str], options: Options) -> Ended:
    """Run `command` to its end. Raises MpiIoError where it was not started."""
    if shutil.which(command[0]) is None:
        raise MpiIoError(f"there is no program {command[0]}")
    launcher = launcher_of(command)
    environment: dict[str, str] = {}
    preloads: list[str] = []
    passed: tuple[str, ...] = ()
    recording = None
    if options.profile is not None:
        try:
            recording = record(options.profile, launcher=launcher, mpicc=options.mpicc)
        except CompilerMissing as error:
            raise Missing(str(error)) from None
        except ProfilerError as error:
            raise MpiIoError(str(error)) from None
        environment |= recording.environment
        preloads.append(str(recording.library))
        passed += PASSED_ON_BY_PROFILER
    if options.io:
        way = build(options.mpicc, launcher=launcher)
        environment |= environment_for(way, options)
        preloads.append(str(way.preload))
        passed += tuple(
            name for name in PASSED_ON if name in environment or name in os.environ or name == "LD_PRELOAD"
        )
    if options.paths:
        try:
            library, watching = mpi_paths.preloads(options.mpicc, launcher=launcher)
        except mpi_paths.CompilerMissing as error:
            raise Missing(str(error)) from None
        except mpi_paths.PathsError as error:
            raise MpiIoError(str(error)) from None
        preloads.insert(0, str(library))
        environment |= mpi_paths.environment_for(options.job, options.rank_order)
        if recording is None:
            preloads.insert(1, str(watching))
            environment |= {name: value for name, value in mpi_paths.WATCH.items() if name not in os.environ}
        passed += tuple(name for name in mpi_paths.PASSED_ON if name in environment or name in os.environ)
        passed += ("LD_PRELOAD",)
    not_multicast = ""
    if options.multicast:
        try:
            folder = mpi_multicast.build(options.mpicc, launcher=launcher)
            if not options.paths:
                environment |= mpi_paths.environment_for(options.job)
            environment |= mpi_multicast.environment_for(folder, environment.get(COMPONENT_PATH))
            passed += tuple(
                name for name in mpi_multicast.PASSED_ON if name in environment or name in os.environ
            )
        except mpi_multicast.MulticastError as error:
            not_multicast = str(error)
    untagged = ""
    with contextlib.ExitStack() as held:
        if options.tags:
            try:
                environment |= held.enter_context(tags.ticket())
                preloads.append(str(tags.library(options.mpicc, launcher)))
                passed += tags.PASSED_ON
            except tags.NoTags as error:
                untagged = str(error)
        if preloads:
            environment["LD_PRELOAD"] = preloading(":".join(preloads))
        try:
            status = run_to_end(passing(command, launcher, dict.fromkeys(passed)), environment)
        except OSError as error:
            raise MpiIoError(f"{command[0]} cannot be started: {error.strerror}") from None
    if options.io:
        _wait_for_supervisors(environment["WAYSTAGE_IO_BASE"])
    return Ended(
        status, recording.collect(status) if recording is not None else None, untagged, not_multicast
    )


def environment_for(way: Way, options: Options) -> dict[str, str]:
    """Variables to add to a program's environment, but LD_PRELOAD."""
    job = options.job or os.environ.get("SLURM_JOB_ID") or ""
    launch = secrets.token_hex(8)
    arguments: tuple[str, ...] = ()
    if options.memory is not None:
        arguments += ("--memory", f"{options.memory}B")
    if options.network is not None:
        arguments += ("--network", options.network)
    if options.storage_timeout_s is not None:
        arguments += ("--storage-timeout", str(options.storage_timeout_s))
    environment = {
        # Of a node, and short: a socket's path has at most 108 bytes.
        "WAYSTAGE_IO_BASE": f"/tmp/waystage-io-{os.geteuid()}-{launch}",
        "WAYSTAGE_IO_TOKEN": secrets.token_hex(32),
        "WAYSTAGE_IO_APP": f"{job or 'app'}.{launch[:6]}",
        "WAYSTAGE_IO_LIBRARY": str(client_library()),
        "WAYSTAGE_IO_AGGREGATOR": "\n".join((*AGGREGATOR, *arguments)),
        "WAYSTAGE_IO_WAY": way.name,
    }
    if job:
        environment["WAYSTAGE_JOB"] = job
    if options.verbose:
        environment["WAYSTAGE_IO_VERBOSE"] = "1"
    if options.write_behind:
        environment["WAYSTAGE_IO_WRITE_BEHIND"] = "1"
    if way.components is not None:
        environment[COMPONENT_PATH] = _component_path(way.components, os.environ)
    return environment


def _component_path(folder: Path, environment: Mapping[str, str]) -> str:
    """Before the user's; else before Open MPI's own folders, by the names that it has for them."""
    return f"{folder}:{environment.get(COMPONENT_PATH) or 'SYSTEM_DEFAULT:USER_DEFAULT'}"


def _wait_for_supervisors(base: str) -> None:
    """Those of this node see the ranks' end within a second. What a killed one has left is removed here."""
    until = time.monotonic() + CLEANED_UP_WITHIN_S
    while (folders := glob.glob(f"{glob.escape(base)}-*")) and time.monotonic() < until:
        for folder in folders:
            if _is_left(Path(folder)):
                shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.02)


def _is_left(folder: Path) -> bool:
    """No rank and no supervisor holds its lock: shim/io/start.h."""
    with contextlib.ExitStack() as stack:
        try:
            for name in ("lock", "supervisor"):
                lock = stack.enter_context((folder / name).open())
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
    return True
