"""The prolog and epilog of slurmctld: report the job; without burst buffers, also stage its data.

Arrives: the environment of PrologSlurmctld or EpilogSlurmctld.
Leaves: the job's start or end at a controller, or kept until one answers; requests at the staging service.
Must not know: how data moves, policies.

A job is never lost or held up because a controller is away: its start and end are on disk first, and are delivered by a
later hook or by `waystage slurm watch`. A stage-in that fails puts the job back into the queue, held, with the reason.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from waystage.backplane import Backplane, BackplaneConfig, BackplaneError
from waystage.events import EventError
from waystage.jobs.hostlist import HostlistError, expand
from waystage.jobs.notify import Notifier
from waystage.slurm import commands, transfers
from waystage.slurm.errors import SlurmError
from waystage.slurm.facts import LEFT_OVER, Fact, FactStore
from waystage.slurm.hook_client import HookError, Stager

Hook = Literal["prolog", "epilog"]
Say = Callable[[str], None]

PATIENCE_S = 5.0


def report(hook: Hook, environment: Mapping[str, str], store: FactStore) -> str:
    """Keep the job's start or end for delivery; the job's id. Raises SlurmError where Slurm has set no job."""
    job_id = environment.get("SLURM_JOB_ID", "")
    if not job_id.isdigit():
        raise SlurmError(
            "SLURM_JOB_ID is not set: slurmctld calls this hook as PrologSlurmctld or EpilogSlurmctld"
        )
    nodes: tuple[str, ...] = ()
    if hook == "prolog":
        try:
            nodes = expand(environment.get("SLURM_JOB_NODELIST", ""))
        except HostlistError as error:
            raise SlurmError(str(error)) from None
    store.add(Fact(job_id=job_id, nodes=nodes, user=environment.get("SLURM_JOB_USER", "")))
    return job_id


def deliver(store: FactStore, config: BackplaneConfig, say: Say) -> bool:
    """Send what waits to a controller; False where none answers, which `say` reports."""
    try:
        with Notifier(Backplane.open(config), patience_s=PATIENCE_S) as notifier:

            def send(fact: Fact) -> None:
                try:
                    if fact.nodes:
                        notifier.job_started(fact.job_id, fact.nodes, fact.user)
                    else:
                        notifier.job_finished(fact.job_id)
                except EventError as error:
                    say(f"job {fact.job_id} cannot be reported: {error}")

            store.deliver(send)
    except BackplaneError as error:
        say(f"no controller was notified, and a later hook will do so: {error}")
        return False
    return True


def stage(hook: Hook, environment: Mapping[str, str]) -> None:
    """Stage-in: submit and wait. Stage-out: submit; the staging service goes on after the job. Raises SlurmError."""
    facts = transfers.JobFacts.of(environment)
    kept = transfers.kept_in(commands.job_field(facts.job_id, "admin_comment"))
    direction = "in" if hook == "prolog" else "out"
    if not any(transfer.direction == direction for transfer in kept):
        return
    restarts = commands.job_field(facts.job_id, "RestartCnt") or "0"
    asked = [
        transfers.submission(number, transfer, facts, restarts)
        for number, transfer in enumerate(kept, 1)
        if transfer.direction == direction
    ]
    stager = Stager()
    try:
        ids = [number for number, _ in stager.submit(asked)]
        if hook == "prolog":
            stager.wait(ids)
    except HookError as error:
        raise SlurmError(str(error)) from None


def hold(job_id: str, reason: str, say: Say) -> None:
    """Put the job back into the queue, held, with the reason as its comment."""
    text = "".join(c if c.isprintable() else "?" for c in reason)[:900]
    for words in (
        ["scontrol", "update", f"JobId={job_id}", f"Comment=waystage: {text}"],
        ["scontrol", "requeuehold", job_id],
    ):
        try:
            commands.run(words)
        except SlurmError as error:
            say(f"job {job_id}: {error}")


def reconcile(store: FactStore, jobs: list[commands.JobLine], age_s: float) -> int:
    """Note starts and ends that no hook has reported, e.g. of the time when slurmctld was killed; how many.

    `jobs` is what Slurm shows; a start noted less than `age_s` ago may be younger than it.
    """
    noted = store.running()
    changed = 0
    present = set()
    for job in jobs:
        if job.state not in commands.HOLDING:
            continue
        present.add(job.job_id)
        if job.job_id not in noted and job.state == "RUNNING":
            try:
                store.add(Fact(job_id=job.job_id, nodes=expand(job.nodes), user=job.user))
                changed += 1
            except HostlistError:
                continue
    for job_id, since_s in noted.items():
        if job_id not in present and since_s > age_s:
            store.add(Fact(job_id=job_id))
            changed += 1
    return changed


def rescue(folder: Path, jobs: list[commands.JobLine], age_s: float) -> list[str]:
    """Submit the stage-out of jobs that have ended, and whose buffer slurmctld has forgotten; a sentence for each.

    slurmctld saves its burst buffers up to a minute late: killed by then, it runs no more hooks for the job. The record
    of `slurm_bb_setup` is still in the folder, with the keys that the hooks would use: what they do submit as well is
    one request. A record younger than `age_s`, counted from its last change, is left to the hooks.
    """
    active = {
        job.job_id for job in jobs if job.state in commands.HOLDING or job.state in ("PENDING", "STAGE_OUT")
    }
    said = []
    for path in sorted(folder.glob("job-*")):
        job_id = path.name.removeprefix("job-")
        try:
            old = time.time() - path.stat().st_mtime > age_s
            text = path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            continue
        if not job_id.isdigit() or job_id in active:
            if job_id in active:
                os.utime(path)  # its age counts from its end
            continue
        if not old:
            continue
        record = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
        try:
            asked = transfers.forgotten(job_id, record) if record.get("ran") == "yes" else []
            said += [
                f"job {job_id}: slurmctld has forgotten its stage-out, request {number}"
                for number, known in Stager(patience_s=PATIENCE_S).submit(asked)
                if not known
            ]
        except (SlurmError, HookError) as error:
            said.append(f"job {job_id}: its stage-out cannot be submitted: {error}")
            continue
        for each in (path, *(path.with_name(path.name + end) for end in LEFT_OVER)):
            each.unlink(missing_ok=True)
    return said


def state_store(folder: Path) -> FactStore:
    """Raises SlurmError where the folder cannot be used."""
    try:
        return FactStore(folder)
    except OSError as error:
        raise SlurmError(
            f"{folder}: {error.strerror}: `waystage slurm install` makes it, and only SlurmUser may write it"
        ) from None
