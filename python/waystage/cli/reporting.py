"""Reports what a subcommand moves to the flow agent of this node.

Arrives: a running task, `--job`, what it reads and writes.
Leaves: a flow of that job, of the class that the rule below gives it.
Must not know: how a task moves data, the agent.

Between hosts a flow is of class `wan`; a copy on one host is `staging` if it is for a job; everything else is `io`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from waystage.flows import FlowEnd, Report
    from waystage.flows.reporter import Moving


def job_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--job ID`; the function receives `job`."""
    return click.option(
        "--job",
        metavar="ID",
        help="Job that the data is for [default: $WAYSTAGE_JOB, or $SLURM_JOB_ID]: `waystage flows` shows it.",
    )(function)


def reporting(
    task: Moving,
    engine: str,
    job: str | None,
    *,
    source: FlowEnd | None = None,
    destination: FlowEnd | None = None,
    copies: bool = False,
    mode: str | None = None,
) -> AbstractContextManager[Report]:
    """A context in which `task` is a flow, if this node has a flow agent."""
    from waystage.flows import HERE, FlowDescription, job_of, reported

    ends = (source or HERE, destination or HERE)
    job_id = job_of(job)
    far = any(end.peer for end in ends)
    traffic = "wan" if far else "staging" if copies and job_id is not None else "io"
    return reported(
        task,
        FlowDescription(
            traffic,  # type: ignore[arg-type]
            engine,
            job_id=job_id,
            source=ends[0],
            destination=ends[1],
            mode=mode,
        ),
    )


def end_at(peer: str = "") -> FlowEnd:
    """This host, or a wide-area peer."""
    from waystage.flows import FlowEnd

    return FlowEnd(peer=peer)
