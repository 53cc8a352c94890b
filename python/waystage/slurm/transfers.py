"""Transfers that job_submit.lua has kept in a job's admin comment, for the prolog and epilog.

Arrives: the comment, what slurmctld says of the job in the environment of a hook.
Leaves: submissions to the staging service.
Must not know: Slurm's commands, processes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from waystage.jobs.hostlist import HostlistError, expand
from waystage.slurm.errors import SlurmError

PREFIX = "waystage:"
_MOST = 64


class Transfer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One directive, its substitutions not yet made."""

    direction: Literal["in", "out"]
    source: str
    destination: str
    node_local: bool = False
    verify: bool = False


class JobFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A job as slurmctld describes it to a hook: nothing here is a user's word but the job's name."""

    job_id: str
    user_id: str
    user_name: str
    job_name: str
    array_job_id: str
    array_task_id: str
    nodes: str

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> JobFacts:
        """Raises SlurmError where slurmctld has set no user."""
        job_id, user_id = environment.get("SLURM_JOB_ID", ""), environment.get("SLURM_JOB_UID", "")
        if not (job_id.isdigit() and user_id.isdigit()):
            raise SlurmError("SLURM_JOB_ID and SLURM_JOB_UID are not set: only slurmctld calls this hook")
        return cls(
            job_id=job_id,
            user_id=user_id,
            user_name=environment.get("SLURM_JOB_USER", "") or user_id,
            job_name=environment.get("SLURM_JOB_NAME", ""),
            array_job_id=environment.get("SLURM_ARRAY_JOB_ID", job_id),
            array_task_id=environment.get("SLURM_ARRAY_TASK_ID", "4294967294"),  # sbatch(1) puts this for %a
            nodes=environment.get("SLURM_JOB_NODELIST", ""),
        )


def kept_in(comment: str) -> list[Transfer]:
    """The transfers of a job; empty where it has none. Raises SlurmError where the comment is damaged."""
    at = comment.find(PREFIX)
    if at < 0:
        return []
    try:
        found = msgspec.json.decode(comment[at + len(PREFIX) :], type=list[Transfer])
    except msgspec.MsgspecError:
        raise SlurmError(
            "the job's admin comment no longer holds its transfers: submit the job again"
        ) from None
    return found[:_MOST]


def submission(number: int, transfer: Transfer, facts: JobFacts, restarts: str) -> dict[str, Any]:
    """The submission of a transfer. Raises SlurmError where a value is no file name, or the nodes are none."""
    values = {
        "u": facts.user_name,
        "j": facts.job_id,
        "x": facts.job_name,
        "A": facts.array_job_id,
        "a": facts.array_task_id,
        "%": "%",
    }
    try:
        nodes = expand(facts.nodes) if transfer.node_local else ()
    except HostlistError as error:
        raise SlurmError(str(error)) from None
    return _submission(transfer, values, facts.user_id, f"slurm-{facts.job_id}-r{restarts}-{number}", nodes)


def forgotten(job_id: str, record: Mapping[str, str]) -> list[dict[str, Any]]:
    """The submission of each stage-out in a record of burst_buffer.lua, as that submits it. Raises SlurmError."""
    values = {letter: record.get(f"value_{letter}", "") for letter in "uxAa"} | {"j": job_id, "%": "%"}
    generation = record.get("generation", "")
    return [
        _submission(transfer, values, record.get("uid", ""), f"slurm-{job_id}-{generation}-{number}", ())
        for number, transfer in enumerate(kept_in(PREFIX + record.get("transfers", "[]")), 1)
        if transfer.direction == "out"
    ]


def _submission(
    transfer: Transfer, values: Mapping[str, str], user: str, key: str, nodes: Sequence[str]
) -> dict[str, Any]:
    return {
        "direction": transfer.direction,
        "source": expanded(transfer.source, values),
        "destination": expanded(transfer.destination, values),
        "job_id": values["j"],
        "user": user,
        "key": key,
        "node_local": transfer.node_local,
        "nodes": list(nodes),
        "verify": "cached" if transfer.verify else "none",
    }


def expanded(place: str, values: Mapping[str, str]) -> str:
    """`place` with the job's values, by the rules of directives.lua."""

    def one(match: re.Match[str]) -> str:
        value = values.get(match[1], "")
        if value in ("", ".", "..") or "/" in value or any(ord(c) < 32 or ord(c) == 127 for c in value):
            raise SlurmError(f"%{match[1]} is {ascii(value)[:60]}, which is no name of a file")
        return value

    return re.sub(r"%(.)", one, place)
