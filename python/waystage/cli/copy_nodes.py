"""Copies by many nodes, for `waystage copy`.

Arrives: two paths, options, where the nodes are.
Leaves: what was copied; usage errors for options that have no effect there.
Must not know: how the work is shared out.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from waystage.cli.combining import refuse
from waystage.cli.common import ExitCode, Output, UserError
from waystage.cli.many_nodes import joined

if TYPE_CHECKING:
    from waystage._native import NameList
    from waystage.copying.on_nodes import Copied
    from waystage.nodes import Where

NOT_ON_NODES = ("statistics",)


def refuse_on_nodes(is_remote: bool) -> None:
    """Raise UserError for options and ends of copies that one machine makes."""
    if is_remote:
        raise UserError(
            "--scheduler and --slurm copy between directories that all nodes reach, not between hosts",
            ExitCode.USAGE,
        )
    refuse(NOT_ON_NODES, "no effect with --scheduler or --slurm; omit one of them")


def copy_on_nodes(
    nodes: Where,
    source: str,
    destination: str,
    options: dict[str, Any],
    output: Output,
    catalog: Path | None,
    exclude: tuple[str, ...],
    names: NameList | None,
    workers: int | None,
    rate_bytes_per_s: int | None,
) -> Copied:
    """Copy by the workers of `nodes`. Raises UserError where SRC is no directory, and what the copy raises."""
    from waystage.copying.on_nodes import copy_on_nodes
    from waystage.flows import job_of

    if not Path(source).is_dir():
        raise UserError(
            f"{source} is no directory: many nodes share the files of a tree; copy one file without --scheduler or"
            " --slurm",
            ExitCode.BAD_INPUT,
        )
    with output.progress() as progress, joined(nodes, output) as engine:
        return copy_on_nodes(
            engine,
            Path(source),
            destination,
            options,
            progress,
            directory=nodes.directory,
            catalog=catalog,
            exclude=exclude,
            names=names,
            workers=workers,
            rate_bytes_per_s=rate_bytes_per_s,
            job_id=job_of(None),
        )
