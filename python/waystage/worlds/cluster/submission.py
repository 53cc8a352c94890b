"""Jobs of an experiment in Slurm: submitted by sbatch, awaited, cancelled.

Arrives: an order, a folder that the job's nodes see.
Leaves: the job's record, or `WorldError` and `JobFailed` with Slurm's own words.
Must not know: policies, controllers, how a job does its parts.
"""

from __future__ import annotations

import re
import shlex
import sys
import threading
import time
from pathlib import Path

import msgspec

from waystage.outputs import write_whole
from waystage.slurm import commands
from waystage.slurm.errors import SlurmError
from waystage.worlds.base import JobFailed
from waystage.worlds.cluster.order import JobDone, JobOrder

POLL_S = 0.3
GRACE_S = 10.0
"""From the end of a job by Slurm's account to its record in the folder: shared file systems show it late."""

OVERHEAD_S = 120.0
"""Of the requested time beyond the limits of the job's parts."""


class Prefix(msgspec.Struct, frozen=True):
    """The words before Slurm's commands: none, but in a lab, whose Slurm is in another namespace."""

    words: tuple[str, ...] = ()


def submit(order: JobOrder, folder: Path, name: str, enter: Prefix) -> str:
    """The job's id in Slurm. Raises JobFailed with sbatch's words."""
    order_file, record_file, script = (
        folder / f"{name}.{kind}" for kind in ("order.json", "record.json", "sh")
    )
    write_whole(order_file, msgspec.json.encode(order))
    run = [sys.executable, "-m", "waystage.worlds.cluster.job", str(order_file), str(record_file)]
    # exec: Slurm's signals reach the job itself. PATH of sbatch's environment is the job's.
    script.write_text(f"#!/bin/sh\nexec {shlex.join(run)}\n", encoding="utf-8")
    limits, request = order.limits, order.request
    minutes = int((2 * limits.staging_s + limits.compute_s + OVERHEAD_S) / 60) + 1
    words = [*enter.words, "sbatch", "--parsable", f"--job-name={name}", f"--time={minutes}", "--exclusive"]
    per_node = (request.collective or request.compute).processes_per_node
    words += [f"--nodes={request.nodes}", f"--ntasks={request.nodes * per_node}"]
    words += [f"--ntasks-per-node={per_node}", "--overcommit", "--no-requeue"]
    words += [f"--output={folder / name}.out", "--signal=B:TERM@30"]
    if order.nodes:
        words.append(f"--nodelist={','.join(order.nodes)}")
    try:
        answer = commands.run([*words, *order.options.sbatch, str(script)])
    except SlurmError as error:
        raise JobFailed(str(error)) from None
    found = re.match(r"\d+", answer.strip())
    if found is None:
        raise JobFailed(f"sbatch printed no job id: {ascii(answer)[:100]}")
    return found[0]


def wait(job_id: str, record_file: Path, enter: Prefix, stop: threading.Event) -> JobDone:
    """The job's record once it has ended. Raises JobFailed; then it is cancelled."""
    ended_at: float | None = None
    state = ""
    while True:
        if stop.is_set():
            cancel(job_id, enter)
            raise JobFailed("was stopped with the run")
        if record_file.exists():
            return msgspec.json.decode(record_file.read_bytes(), type=JobDone)
        state, reason = _state(job_id, enter)
        if state in ("", "PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED"):
            ended_at = None
            if "held" in reason.lower() or ("burst_buffer" in reason and "fail" in reason.lower()):
                cancel(job_id, enter)
                raise JobFailed(f"Slurm holds job {job_id}: {reason}")
        elif ended_at is None:
            ended_at = time.monotonic()
        elif time.monotonic() - ended_at > GRACE_S:
            raise JobFailed(f"job {job_id} ended as {state} without a record: see its output in the folder")
        stop.wait(POLL_S)


def cancel(job_id: str, enter: Prefix) -> None:
    """End a job; one that has ended is left alone."""
    try:
        commands.run([*enter.words, "scancel", job_id])
    except SlurmError:
        pass


def nodes_of(enter: Prefix) -> set[str]:
    """Names of the nodes that Slurm has. Raises SlurmError."""
    return set(commands.run([*enter.words, "sinfo", "--noheader", "--Node", "--format=%N"]).split())


def _state(job_id: str, enter: Prefix) -> tuple[str, str]:
    """Slurm's state and reason of a job; empty while slurmctld does not answer."""
    try:
        line = commands.run(
            [*enter.words, "squeue", "--noheader", "--states=all", "--jobs", job_id, "--format=%T|%r"]
        )
    except SlurmError as error:
        return ("GONE", "") if "Invalid job id" in str(error) else ("", "")
    state, _, reason = line.strip().partition("|")
    return state or "GONE", reason
