"""`--job`: whose data a subcommand moves, for the flow agent of this node.

Arrives: the job that the user names.
Leaves: the same in $WAYSTAGE_JOB, where every engine of this process and its children finds it.
Must not know: engines, the agent.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import click


def job_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--job ID`."""
    return click.option(
        "--job",
        metavar="ID",
        expose_value=False,
        callback=_take,
        help="Job that the data is for [default: $WAYSTAGE_JOB, or $SLURM_JOB_ID]: `waystage flows` shows it.",
    )(function)


def _take(context: click.Context, parameter: click.Parameter, given: str | None) -> None:
    if given is None:
        return
    from waystage.events import EventError, check_name

    try:
        check_name("job id", given)
    except EventError as error:
        raise click.BadParameter(str(error), context, parameter) from None
    os.environ["WAYSTAGE_JOB"] = given
