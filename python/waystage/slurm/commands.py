"""Slurm's commands: run with a limit, their first complaint as an error.

Arrives: words.
Leaves: output; typed facts about jobs.
Must not know: hooks, files of ours.

Words are never joined for a shell. What Slurm prints of users (names, comments) is data.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence

import msgspec

from waystage.slurm.errors import SlurmError, SlurmMissing

LIMIT_S = 60.0
"""Slurm's own message timeout is 10 s; a slurmctld that restarts answers within some more."""

_WIDEST = 1 << 20
"""Characters of a field: 64 directives with the longest paths fit."""

HOLDING = frozenset({"RUNNING", "SUSPENDED", "CONFIGURING", "COMPLETING", "STOPPED", "SIGNALING", "RESIZING"})
"""Job states with nodes."""


class JobLine(msgspec.Struct, frozen=True, kw_only=True):
    """A job as squeue shows it."""

    job_id: str
    state: str
    nodes: str
    user: str = ""
    reason: str = ""


def run(words: Sequence[str], *, limit_s: float | None = LIMIT_S) -> str:
    """stdout of a command. Raises SlurmMissing, SlurmError with its last line."""
    if shutil.which(words[0]) is None:
        raise SlurmMissing(f"{words[0]} is not installed: install Debian's slurm-client on this host")
    try:
        done = subprocess.run(
            list(words),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            check=False,
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
    words = ["squeue", "--noheader", "--array", "--states=all", "--format=%A|%T|%N|%u|%r"]
    found = []
    for line in run(words).splitlines():
        parts = line.split("|", 4)
        if len(parts) == 5 and parts[0].isdigit():
            job_id, state, nodes, user, reason = parts
            found.append(JobLine(job_id=job_id, state=state, nodes=nodes, user=user, reason=reason))
    return found


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
