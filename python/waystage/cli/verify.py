"""`waystage verify`: verify a copy against its source.

Arrives: a source and its copy, or a catalog of either.
Leaves: missing and different entries; exit status 1 if there are any.
Must not know: how trees are read.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from waystage.cli.common import Output, output_options
from waystage.cli.many_nodes import nodes_options
from waystage.cli.paths import null_option, refuse_both
from waystage.cli.reporting import job_option
from waystage.cli.trees import verify_copy

if TYPE_CHECKING:
    from waystage.nodes import Where


@click.command()
@click.argument("source", metavar="SRC", type=click.Path(path_type=Path))
@click.argument("copy", metavar="DST|CATALOG", type=click.Path(path_type=Path))
@click.option("--exclude", "-x", multiple=True, metavar="PATTERN", help="Exclude PATTERN (repeatable).")
@click.option("--no-content", is_flag=True, help="Compare only attributes; do not read files.")
@click.option(
    "--no-xattrs", is_flag=True, help="Do not compare extended attributes and access control lists."
)
@click.option(
    "--ignore",
    multiple=True,
    type=click.Choice(["mtime", "mode", "uid", "gid", "links"]),
    help="Ignore this attribute (repeatable).",
)
@click.option(
    "--workers",
    "threads",
    type=click.IntRange(1, 1024),
    help="Number of threads. Default: two per core, at most 16.",
)
@click.option(
    "--top",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="Maximum number of paths of each kind.",
)
@null_option("Print only missing or different paths, each ended by a NUL, for copy --files-from - -0.")
@job_option
@nodes_options
@output_options
def command(
    source: Path,
    copy: Path,
    exclude: tuple[str, ...],
    no_content: bool,
    no_xattrs: bool,
    ignore: tuple[str, ...],
    threads: int | None,
    top: int,
    null: bool,
    nodes: Where | None,
    output: Output,
) -> int:
    """Verify that DST contains each entry of SRC with equal attributes and contents.

    The roots are compared too. Hard links are compared if both names are in the tree. Holes are not read. Additional
    entries of DST are ignored. SRC or DST may be a catalog (`waystage catalog build`): its tree is not walked again.
    A catalog of SRC as DST shows changes of SRC. Exit status 1 if an entry is missing or differs, 8 if one could not be
    read.
    """
    from waystage.trees import Wanted

    refuse_both(null, output)
    wanted = Wanted(not no_content, not no_xattrs, ignore, exclude, threads)
    return verify_copy(source, copy, wanted, top, null, nodes, output)
