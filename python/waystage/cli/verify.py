"""`waystage verify`: does a copy hold what its source holds?

Arrives: a source and its copy, or a catalog of either.
Leaves: what is lacking or unlike, exit status 1 where anything is.
Must not know: how trees are read.
"""

from __future__ import annotations

from pathlib import Path

import click

from waystage.cli.common import Output, output_options
from waystage.cli.paths import null_option, refuse_both
from waystage.cli.trees import verify_copy


@click.command()
@click.argument("source", metavar="SRC", type=click.Path(path_type=Path))
@click.argument("copy", metavar="DST|CATALOG", type=click.Path(path_type=Path))
@click.option(
    "--exclude", "-x", multiple=True, metavar="PATTERN", help="Leave out; may be given several times."
)
@click.option("--no-content", is_flag=True, help="Compare attributes only; read no file's contents.")
@click.option(
    "--no-xattrs", is_flag=True, help="Do not compare extended attributes and access control lists."
)
@click.option(
    "--ignore",
    multiple=True,
    type=click.Choice(["mtime", "mode", "uid", "gid", "links"]),
    help="An attribute that does not matter; may be given several times.",
)
@click.option("--threads", type=click.IntRange(1, 1024), help="Default: two for each core, at most 16.")
@click.option(
    "--top", type=click.IntRange(min=1), default=20, show_default=True, help="Paths of each sort to print."
)
@null_option(
    "Print what is lacking or unlike alone, each path as it is and ended by a NUL, for copy --files-from - -0."
)
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
    output: Output,
) -> int:
    """Check that DST holds what SRC holds: every entry, its attributes and its contents.

    The roots themselves are compared as other entries are. Hard links are compared as far as both names are in the tree. Holes are not
    read. What DST holds besides does not matter. Either may be a catalog (`waystage catalog build`): then that tree is not
    walked again, and its files are read where the catalog says they are. A catalog of SRC itself tells what changed
    in SRC since. Exit status 1 where anything is lacking or unlike, 8 where something could not be read.
    """
    from waystage.trees import Wanted

    refuse_both(null, output)
    wanted = Wanted(not no_content, not no_xattrs, ignore, exclude, threads)
    return verify_copy(source, copy, wanted, top, null, output)
