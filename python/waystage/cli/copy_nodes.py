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

MODULES = ("waystage.copying.on_nodes", "pyarrow.dataset")
"""What tasks of copies need."""

NOT_ON_NODES = ("statistics", "log_file", "copy_links", "reflink")


def refuse_on_nodes(is_remote: bool, sources: int) -> None:
    """Raise UserError for options and ends of copies that one machine makes."""
    if is_remote:
        raise UserError(
            "--scheduler and --slurm copy between directories that all nodes reach, not between hosts",
            ExitCode.USAGE,
        )
    if sources > 1:
        raise UserError(
            "--scheduler and --slurm copy one SRC: copy several one after the other", ExitCode.USAGE
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
    """Copy by the workers of `nodes`. Raises what the copy raises, and UserError where a list or a catalog is of one file."""
    from waystage.flows import job_of

    if Path(source).is_file():
        if catalog is not None or names is not None:
            raise UserError(
                f"{source} is a file: --catalog and --files-from are of a directory; omit them",
                ExitCode.USAGE,
            )
        with output.progress() as progress, joined(nodes, output, *MODULES) as engine:
            from waystage.copying.on_nodes import copy_file_on_nodes

            return copy_file_on_nodes(
                engine,
                Path(source),
                destination,
                options,
                progress,
                workers=workers,
                rate_bytes_per_s=rate_bytes_per_s,
                job_id=job_of(None),
            )
    with output.progress() as progress, joined(nodes, output, *MODULES) as engine:
        from waystage.copying.on_nodes import copy_on_nodes

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
