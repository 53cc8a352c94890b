"""Jobs whose burst buffer slurmctld forgot when it was killed: each is brought on by Slurm's own commands.

Arrives: the folder of the hooks, Slurm's jobs and buffers, the time at which slurmctld started.
Leaves: stage-outs at the staging service; jobs that Slurm stages anew; buffers that Slurm waits for no longer.
Must not know: how data moves, controllers.

slurmctld saves jobs up to 5 s and burst buffers up to 30 s late (Slurm 22.05: SAVE_MAX_WAIT, AGENT_INTERVAL). Killed
between, it would find a job in a state of staging without a buffer, and start no hook for it. burst_buffer.lua puts
those buffers into slurmctld's file before it is read (docs/decisions/0094). What is left is for this module: a Slurm
whose file it does not know, or a setup that had not begun. A cancelled job can be requeued under its id, which begins
with its setup; the results of one that has ended are staged out, and its buffer is cleared.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Container, Sequence
from pathlib import Path

from waystage.outputs import write_whole
from waystage.slurm import commands, transfers
from waystage.slurm.commands import JobLine
from waystage.slurm.errors import SlurmError
from waystage.slurm.facts import LEFT_OVER
from waystage.slurm.hook_client import FINAL, HookError, Stager

RESOURCES = "BurstBufferResources"
WAITS = ("BurstBufferStageIn", RESOURCES)
"""Reasons of a waiting job whose buffer is in some state of staging."""

KEEP_S = 120.0
"""How long a requeued job is watched for a kill that undoes the requeue: Slurm saves it within some seconds."""

MOST_PATIENCE_S = 5.0


class Recovery:
    """`look` at intervals; what was begun is on disk, so that a kill of this process leaves no job cancelled.

    `age_s`: how long a job must have been in one state without a hook of this slurmctld, seconds.
    """

    def __init__(self, folder: Path, age_s: float, *, clock: Callable[[], float] = time.time) -> None:
        self._folder, self._age_s, self._clock = folder, age_s, clock
        self._since: dict[tuple[str, str, float], float] = {}
        self._cleared: set[str] = set()

    def look(self, jobs: Sequence[JobLine], started: float, buffers: Container[str]) -> list[str]:
        """A sentence for each job that was brought on.

        `started`: when slurmctld started, seconds since 1970. `buffers`: the jobs whose buffers it knows, whose hooks
        it runs itself.
        """
        said, now = [], self._clock()
        for path in self._folder.glob("again-*"):
            if path.name.removeprefix("again-") not in {job.job_id for job in jobs}:
                path.unlink(missing_ok=True)
        self._cleared &= {job.job_id for job in jobs}
        seen = {}
        for job in jobs:
            key = (job.job_id, job.state, started)
            if job.job_id not in buffers and self._abandoned(job, started):
                seen[key] = self._since.get(key, now)
        self._since = seen
        for job in jobs:
            begun = self._begun(job.job_id)
            ready = now - seen.get((job.job_id, job.state, started), now) >= self._age_s
            try:
                if begun.exists():
                    said += self._go_on(job, begun, started, ready)
                elif ready and job.state == "PENDING":
                    said += self._begin(job, jobs)
                elif ready and job.job_id not in self._cleared:
                    said += self._end_stage_out(job)
            except (SlurmError, HookError) as error:
                said.append(f"job {job.job_id}: {error}")
        return said

    def _abandoned(self, job: JobLine, started: float) -> bool:
        """Whether no hook of this slurmctld can be at work for the job, which waits for one."""
        waits = job.state == "PENDING" and job.reason in WAITS
        if not waits and job.state != "STAGE_OUT":
            return False
        generation = self._generation(job.job_id)
        if generation:
            return generation <= started
        # No record: setup has not come to it, or teardown has removed it.
        return not waits or job.submitted <= started

    def _generation(self, job_id: str) -> float:
        """When the job's setup was run, seconds since 1970; 0 where its record is missing."""
        match = re.search(r"^generation=(\d{1,12})", self._record(job_id), re.MULTILINE)
        return float(match[1]) if match else 0.0

    def _record(self, job_id: str) -> str:
        try:
            return (self._folder / f"job-{job_id}").read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""

    def _begun(self, job_id: str) -> Path:
        return self._folder / f"again-{job_id}"

    # -- before the job ---------------------------------------------------------------------------------

    def _begin(self, job: JobLine, jobs: Sequence[JobLine]) -> list[str]:
        """Cancel the job, and requeue it at once: its stage-in begins anew, and resumes."""
        if job.reason == RESOURCES and not commands.buffer_state(job.name).startswith("teardown"):
            return []  # its turn to stage has not come
        waiting = [each.job_id for each in jobs if _depends(each.dependency, job)]
        if waiting:
            text = (
                f"slurmctld has forgotten its stage-in, and job {waiting[0]} depends on it: submit both again"
            )
            mark = self._folder / f"job-{job.job_id}.told"
            if mark.exists():
                return []
            mark.touch()
            commands.run(["scontrol", "update", f"JobId={job.name}", f"Comment=waystage: {text}"])
            return [f"job {job.job_id}: {text}"]
        requeue = commands.job_field(job.name, "Requeue").strip() or "1"
        begun = self._begun(job.job_id)
        write_whole(begun, json.dumps({"requeue": requeue, "at": 0}).encode(), 0o600)
        return self._cancel(job, begun)

    def _cancel(self, job: JobLine, begun: Path) -> list[str]:
        commands.run(["scontrol", "update", f"JobId={job.name}", "Requeue=1"])
        commands.run(["scancel", job.name])
        return self._requeue(job, begun)

    def _requeue(self, job: JobLine, begun: Path) -> list[str]:
        commands.run(["scontrol", "requeue", job.name])
        kept = json.loads(begun.read_bytes())
        write_whole(begun, json.dumps(kept | {"at": self._clock()}).encode(), 0o600)
        # Slurm would start a requeued job two minutes later.
        commands.run(
            ["scontrol", "update", f"JobId={job.name}", "StartTime=now", f"Requeue={kept['requeue']}"]
        )
        return [f"job {job.job_id}: slurmctld had forgotten its stage-in, which begins again"]

    def _go_on(self, job: JobLine, begun: Path, started: float, ready: bool) -> list[str]:
        """After a kill between cancelling and requeueing, or one that undid the requeue."""
        at = float(json.loads(begun.read_bytes())["at"])
        if job.state == "CANCELLED" and (not at or at - self._age_s < started):
            return self._requeue(job, begun)
        if job.state == "PENDING" and ready:
            return self._cancel(job, begun)
        if (at and self._clock() - at > KEEP_S) or job.state not in ("PENDING", "CANCELLED"):
            begun.unlink(missing_ok=True)
        return []

    # -- after the job ----------------------------------------------------------------------------------

    def _end_stage_out(self, job: JobLine) -> list[str]:
        """Submit the job's stage-outs, which changes nothing where a hook has; once they end, clear the buffer."""
        record = dict(line.split("=", 1) for line in self._record(job.job_id).splitlines() if "=" in line)
        stager = Stager(patience_s=MOST_PATIENCE_S)
        asked = transfers.forgotten(job.job_id, record)
        ids = [number for number, _ in stager.submit(asked)]
        if ids:
            found = stager.call({"op": "status", "ids": ids})["requests"]
            if not all(each["state"] in FINAL for each in found):
                return []
        try:
            commands.run(["scontrol", "update", f"JobId={job.name}", "BurstBuffer="])
        except SlurmError as error:
            if "already finished" not in str(error):
                raise  # Slurm 22.05 says so of every change to such a job, also of this, which it makes
        self._cleared.add(job.job_id)
        for ending in ("", *LEFT_OVER):
            (self._folder / f"job-{job.job_id}{ending}").unlink(missing_ok=True)
        ended = "slurmctld had forgotten its stage-out, which has ended"
        return [f"job {job.job_id}: {ended}; squeue shows STAGE_OUT until Slurm purges the job"]


def _depends(dependency: str, job: JobLine) -> bool:
    """Whether a text such as `afterok:12_*(unfulfilled)` names the job, or the array that it is of."""
    return bool({job.job_id, job.array_id} & set(re.findall(r"(?<=:)\d+", dependency)))
