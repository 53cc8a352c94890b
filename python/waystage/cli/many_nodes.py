"""The options by which a command runs on many nodes, and the engine that they name.

Arrives: a scheduler's address, or a number of Slurm jobs.
Leaves: an engine for the time of the command; a warning about a scheduler that anyone may use.
Must not know: what the command does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import click

from waystage.cli.common import ExitCode, Output, UserError

if TYPE_CHECKING:
    from waystage.nodes import Engine, Where

P = ParamSpec("P")
R = TypeVar("R")


def nodes_options(function: Callable[P, R]) -> Callable[..., R]:
    """Give a click command `--scheduler`, `--slurm` and `--nodes-dir`; the function receives `nodes: Where | None`."""

    @click.option(
        "--scheduler",
        metavar="ADDRESS",
        help="Run on the workers of this Dask scheduler, an address or a file of `dask scheduler --scheduler-file`.",
    )
    @click.option(
        "--slurm",
        type=click.IntRange(1, 10_000),
        metavar="N",
        help="Run on N Slurm jobs, one worker each, started for this command.",
    )
    @click.option(
        "--nodes-dir",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="DIR",
        help="With --scheduler or --slurm: directory for lists and certificates, which every node reaches. Default: the"
        " current directory.",
    )
    @functools.wraps(function)
    def with_nodes(
        *args: Any, scheduler: str | None, slurm: int | None, nodes_dir: Path | None, **kwargs: Any
    ) -> R:
        kwargs["nodes"] = _where(scheduler, slurm, nodes_dir)
        return function(*args, **kwargs)

    return with_nodes


def _where(scheduler: str | None, slurm: int | None, directory: Path | None) -> Where | None:
    if scheduler is None and slurm is None:
        if directory is not None:
            raise UserError("--nodes-dir needs --scheduler or --slurm", ExitCode.USAGE)
        return None
    if scheduler is not None and slurm is not None:
        raise UserError("--scheduler and --slurm: give one; --slurm starts its own scheduler", ExitCode.USAGE)
    if scheduler == "":
        raise UserError(
            "--scheduler is empty: give a scheduler's address, as tls://HOST:PORT", ExitCode.USAGE
        )
    from waystage.nodes.joining import Where

    return Where(scheduler, slurm, directory or Path("."))


@contextmanager
def joined(nodes: Where, output: Output, *modules: str) -> Iterator[Engine]:
    """The engine, whose workers import `modules` meanwhile: what is imported here takes as long there. Raises NodesError."""
    from waystage.nodes import join

    if warning := nodes.warning():
        output.note(f"warning: {warning}")
    with join(nodes) as engine:
        if modules:
            engine.prepare(modules)
        yield engine
