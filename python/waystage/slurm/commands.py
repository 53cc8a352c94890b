"""Slurm's commands: run with a limit, their first complaint as an error.

Arrives: words.
Leaves: output; typed facts about jobs.
Must not know: hooks, files of ours.

Words are never joined for a shell. What Slurm prints of users (names, comments) is data.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from waystage.slurm.errors import SlurmError, SlurmMissing

LIMIT_S = 60.0
"""Slurm's own message timeout is 10 s; a slurmctld that restarts answers within some more."""

_WIDEST = 1 << 20
"""Characters of a field: 64 directives with the longest paths fit."""

COMMANDS = frozenset({"sbatch", "scancel", "scontrol", "sinfo", "squeue"})

HOLDING = frozenset({"RUNNING", "SUSPENDED", "CONFIGURING", "COMPLETING", "STOPPED", "SIGNALING", "RESIZING"})
"""Job states with nodes."""


class JobLine(msgspec.Struct, frozen=True, kw_only=True):
    """A job as squeue shows it."""

    job_id: str
    state: str
    nodes: str
    user: str = ""
    reason: str = ""
    submitted: float = 0.0
    """Seconds since 1970."""
    dependency: str = ""
    array_id: str = ""
    task: str = ""
    """Index in its array; empty where the job is of none."""

    @property
    def name(self) -> str:
        """For Slurm's commands: one task of an array has the array's id, and commands would act on all."""
        return f"{self.array_id}_{self.task}" if self.task else self.job_id


def run(words: Sequence[str], *, limit_s: float | None = LIMIT_S) -> str:
    """stdout of a command. Raises SlurmMissing, SlurmError with its last line."""
    if shutil.which(words[0]) is None:
        raise SlurmMissing(f"{words[0]} is not installed: install Debian's slurm-client on this host")
    conf = os.environ.get("SLURM_CONF")
    if conf and Path(words[0]).name in COMMANDS and not Path(conf).exists():
        # Slurm's commands wait a minute for such a file before they say so.
        raise SlurmError(f"SLURM_CONF names {conf}, which does not exist: give Slurm's configuration file")
    try:
        done = subprocess.run(
            list(words),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            check=False,
            env={**os.environ, "SLURM_TIME_FORMAT": "standard"},
        )
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{words[0]} did not answer within {limit_s:g} s") from None
    if done.returncode != 0:
        raise SlurmError(f"{words[0]}: {last_line(done.stderr or done.stdout, done.returncode)}")
    return done.stdout


def last_line(text: str, status: int) -> str:
    """The last line of what a command wrote, without our own prefix; its status where it wrote nothing."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1].removeprefix("waystage: error: ")[:500] if lines else f"exit status {status}"


def jobs() -> list[JobLine]:
    """Every job that squeue shows, tasks of arrays one by one. Raises SlurmError."""
    # The reason comes last: a hook's words are part of it, and may hold the separator.
    words = ["squeue", "--noheader", "--array", "--states=all", "--format=%A|%F|%K|%T|%N|%u|%V|%E|%r"]
    found = []
    for line in run(words).splitlines():
        parts = line.split("|", 8)
        if len(parts) == 9 and parts[0].isdigit():
            job_id, array_id, task, state, nodes, user, submitted, dependency, reason = parts
            found.append(
                JobLine(
                    job_id=job_id,
                    array_id=array_id,
                    task=task if task.isdigit() else "",
                    state=state,
                    nodes=nodes,
                    user=user,
                    submitted=_seconds(submitted),
                    dependency=dependency,
                    reason=reason,
                )
            )
    return found


def buffers() -> set[str]:
    """The ids of jobs whose burst buffers slurmctld knows. Raises SlurmError where it does not answer."""
    found = re.findall(
        r"^ *JobID=(?:\d+_\d+\()?(\d+)", run(["scontrol", "show", "burstbuffer"]), re.MULTILINE
    )
    return set(found)


def started() -> float:
    """When slurmctld started, seconds since 1970. Raises SlurmError where it does not answer."""
    return _seconds(setting("BOOT_TIME", run(["scontrol", "show", "config"])))


def buffer_state(name: str) -> str:
    """Slurm's state of a job's burst buffer, such as `staging-in`; empty where it has none. Raises SlurmError.

    The job's own text is before it in that output, and may hold a field of that name: a user deceives about own jobs.
    """
    return run(["scontrol", "-o", "show", "job", name]).rpartition(" BurstBufferState=")[2].partition(" ")[0]


def _seconds(text: str) -> float:
    """A time as Slurm prints it, of this host's time zone; 0 where it is none."""
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except (ValueError, OverflowError):
        return 0.0


def job_field(job_id: str, name: str) -> str:
    """A field of a job by its name for `squeue --Format`. Raises SlurmError where Slurm does not know the job."""
    words = ["squeue", "--noheader", "--states=all", "--jobs", job_id, f"--Format={name}:{_WIDEST}"]
    return run(words).rstrip()


def setting(name: str, text: str) -> str:
    """The value of a setting in the output of `scontrol show config`; empty where it has none."""
    for line in text.splitlines():
        key, sign, value = line.partition("=")
        if sign and key.strip().lower() == name.lower():
            found = value.strip()
            return "" if found == "(null)" else found
    return ""
