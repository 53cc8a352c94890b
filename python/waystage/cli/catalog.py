"""`waystage catalog`: catalog a tree and query it without walking it again.

Arrives: trees, catalogs, queries.
Leaves: catalogs, results, exit status 1 if a catalog and its tree, or two catalogs, differ.
Must not know: how trees are walked or catalogs stored.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from waystage.cli.catalog_check import command as check
from waystage.cli.catalog_checksum import command as checksum
from waystage.cli.catalog_checksum import make_sums, plain_sums, said_sums, verify_sums
from waystage.cli.catalog_layout import command as layout
from waystage.cli.catalog_query import query
from waystage.cli.catalog_record import record
from waystage.cli.common import ExitCode, Output, UserError, output_options, readable_source, walk_options
from waystage.cli.many_nodes import joined, nodes_options
from waystage.cli.paths import named_lists, null_option, print_null, refuse_both, to_copy
from waystage.outputs import is_descriptor, written

if TYPE_CHECKING:
    from waystage.catalog import Built
    from waystage.catalog.checksums import SumsMade
    from waystage.catalog.difference import Difference
    from waystage.nodes.joining import Where

FOLDER = click.Path(path_type=Path, file_okay=False)
SHOWN = 20
"""Paths of each kind shown as text; --json gives all."""


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Catalog a tree and query it without walking it again.

    A catalog is a directory of Parquet files with every entry of a tree. Only its builder can read it, because it
    contains names from directories that others cannot list; `share` writes one that every user sees filtered.
    """


command.add_command(check)
command.add_command(checksum)
command.add_command(layout)
command.add_command(query)
command.add_command(record)


@command.command()
@click.argument("tree", type=click.Path(path_type=Path))
@click.argument("target", metavar="CATALOG", type=FOLDER)
@walk_options
@click.option("--checksums", is_flag=True, help="Also read every file and store checksums of its objects.")
@click.option("--no-layouts", is_flag=True, help="Do not query the layout of files on storage targets.")
@click.option("--restart", is_flag=True, help="Discard the state of an interrupted build.")
@click.option("--replace", is_flag=True, help="Replace CATALOG even if it describes another tree.")
@click.option(
    "--workers",
    "threads",
    type=click.IntRange(1, 1024),
    help="Number of threads. Default: four per core, at most 32.",
)
@nodes_options
@output_options
def build(
    tree: Path,
    target: Path,
    exclude: tuple[str, ...],
    one_file_system: bool,
    checksums: bool,
    no_layouts: bool,
    restart: bool,
    replace: bool,
    threads: int | None,
    nodes: Where | None,
    output: Output,
) -> None:
    """Walk TREE and write CATALOG, a directory.

    The same command resumes an interrupted build, also on other nodes. Symbolic links are recorded and not followed. A PATTERN without a
    slash matches names, one with a slash matches paths below TREE; `**` matches across slashes.
    """
    from waystage.catalog import BuildOptions
    from waystage.catalog import build as build_catalog

    readable_source(tree, directory=True)
    options = BuildOptions(
        threads, exclude, one_file_system, restart, None if no_layouts else "each", replace=replace
    )
    with output.progress() as progress:
        if nodes is None:
            built = build_catalog(tree, target, options, progress)
        else:
            with joined(nodes, output, "waystage.catalog.on_nodes") as engine:
                from waystage.catalog.on_nodes import build_on_nodes

                built = build_on_nodes(engine, tree, target, options, progress)
        made = make_sums(target, threads, progress) if checksums else None
    _say(built, output, made)


@command.command()
@click.argument("target", metavar="CATALOG", type=FOLDER)
@click.option(
    "--trust-directories",
    is_flag=True,
    help="Read only directories with changed times; correct if files are never rewritten in place.",
)
@click.option(
    "--stale",
    type=click.File("rb"),
    metavar="FILE",
    help="Read only the directories of the NUL-separated paths in FILE, and those with changed times.",
)
@click.option("--restart", is_flag=True, help="Discard the state of an interrupted refresh.")
@click.option(
    "--workers",
    "threads",
    type=click.IntRange(1, 1024),
    help="Number of threads. Default: four per core, at most 32.",
)
@output_options
def refresh(
    target: Path,
    trust_directories: bool,
    stale: BinaryIO | None,
    restart: bool,
    threads: int | None,
    output: Output,
) -> None:
    """Bring CATALOG up to date with its tree."""
    from waystage.catalog import BuildOptions
    from waystage.catalog import refresh as refresh_catalog

    paths = None if stale is None else [path for path in stale.read().split(b"\0") if path]
    with output.progress() as progress:
        built = refresh_catalog(
            target,
            BuildOptions(threads, restart=restart),
            progress,
            trust_directories=trust_directories,
            stale=paths,
        )
    _say(built, output)


@command.command()
@click.argument("target", metavar="CATALOG", type=FOLDER)
@click.option("--checksums", is_flag=True, help="Verify the files against the checksums of their objects.")
@click.option(
    "--repair-from",
    metavar="TREE",
    type=click.Path(path_type=Path),
    help="With --checksums: repair damaged objects from this copy of the tree.",
)
@null_option("Print only paths that were added or changed, each ended by a NUL.")
@click.option(
    "--workers",
    "threads",
    type=click.IntRange(1, 1024),
    help="Number of threads. Default: four per core, at most 32.",
)
@output_options
def verify(
    target: Path, checksums: bool, repair_from: Path | None, null: bool, threads: int | None, output: Output
) -> int:
    """List changes of the tree since CATALOG was built. Exit status 1 if there are any.

    With --checksums, read every file that has checksums instead and list damaged objects: those whose bytes changed
    while the size, mtime and inode of their file did not. Exit status 1 if damage remains.
    """
    from waystage.catalog import Catalog, difference

    if repair_from is not None and not checksums:
        raise UserError("--repair-from needs --checksums, to find the damaged objects", ExitCode.USAGE)
    if checksums:
        if null:
            raise UserError("--null cannot be combined with --checksums", ExitCode.USAGE)
        return verify_sums(target, repair_from, threads, output)
    refuse_both(null, output)
    with output.progress() as progress:
        limit = None if output.json or null else SHOWN
        found = difference.verify(Catalog(target), threads, progress, limit=limit)
    return _tell(found, null, output)


@command.command()
@click.argument("old", type=FOLDER)
@click.argument("new", type=FOLDER)
@null_option("Print only paths that were added or changed, each ended by a NUL.")
@output_options
def diff(old: Path, new: Path, null: bool, output: Output) -> int:
    """Compare two catalogs path by path. Exit status 1 if they differ."""
    from waystage.catalog import Catalog, difference

    refuse_both(null, output)
    with output.progress() as progress:
        limit = None if output.json or null else SHOWN
        found = difference.diff(Catalog(old), Catalog(new), limit=limit, progress=progress)
    return _tell(found, null, output)


@command.command()
@click.argument("target", metavar="CATALOG", type=FOLDER)
@click.option(
    "--format",
    "form",
    type=click.Choice(["csv", "jsonl", "mfu"]),
    default="csv",
    show_default=True,
    help="CSV, JSON lines, or the text format of mpiFileUtils.",
)
@click.option(
    "--output", "-o", "to", type=click.Path(path_type=Path, dir_okay=False), help="Default: stdout."
)
@output_options
def export(target: Path, form: str, to: Path | None, output: Output) -> None:
    """Write every entry of CATALOG, one a line."""
    from waystage.catalog import Catalog
    from waystage.catalog.export import export as lines
    from waystage.catalog.query import Filter, select

    if to is None and (output.json or output.quiet):
        raise UserError("--json and --quiet need --output FILE", ExitCode.USAGE)
    catalog = Catalog(target)
    pieces = lines(select(catalog, Filter()), form)
    if to is None:
        for piece in pieces:
            sys.stdout.buffer.write(piece)
        return
    try:
        # A catalog is its builder's alone, and so is what was drawn from it.
        with written(to, 0o600) as file:
            file.writelines(pieces)
    except OSError as error:
        raise UserError(f"{to} cannot be written: {error.strerror}") from None
    if not is_descriptor(to):
        output.result({"file": str(to), "entries": catalog.rows}, f"{to}: {catalog.rows:,} entries")


@command.command()
@click.argument("source", metavar="CATALOG", type=FOLDER)
@click.argument("target", metavar="SHARED", type=FOLDER)
@output_options
def share(source: Path, target: Path, output: Output) -> None:
    """Write SHARED, a catalog in which each user sees what the file system shows that user.

    Entries are distributed over directories with the permissions of the directories that list them: owner, group,
    mode and POSIX access control lists at this time. Directories of other users or groups need root. Share again
    after `refresh` and after changes of permissions.
    """
    from waystage.catalog.share import share as share_catalog

    with output.progress() as progress:
        shared = share_catalog(source, target, progress)
    text = f"{shared.path}: {shared.entries:,} entries in {shared.sections:,} sections"
    if shared.withheld:
        text += f"; {shared.withheld:,} withheld: their directories were replaced or cannot be read"
    value = {"shared": str(shared.path), "entries": shared.entries}
    output.result(value | {"sections": shared.sections, "withheld": shared.withheld}, text)


def _say(built: Built, output: Output, sums: SumsMade | None = None) -> None:
    from waystage.catalog import Catalog
    from waystage.catalog.query import Filter, totals
    from waystage.display import named

    catalog = Catalog(built.path)
    manifest = catalog.manifest
    # A walk counts a file's bytes for each of its names, totals once.
    counts = built.counts | {"bytes": totals(catalog, Filter())["bytes"]}
    value: dict[str, Any] = {
        "catalog": str(built.path),
        "entries": built.entries,
        "kept": built.kept,
        "seconds": round(built.seconds, 3),
        "resumed": built.resumed,
        "counts": {name: count for name, count in counts.items() if name != "pending"},
        "errors": [named(path) | {"error": text} for path, text in manifest.errors],
    }
    text = f"{built.path}: {built.entries:,} entries in {built.seconds:.1f} s"
    if sums is not None:
        value["checksums"] = plain_sums(sums)
    remarks = [
        (built.kept, "kept unread"),
        (counts["excluded"], "left out"),
        (counts["vanished"], "removed during the walk"),
        (counts["errors"], "could not be read"),
    ]
    for count, what in remarks:
        if count:
            text += f"; {count:,} {what}"
    output.result(value, text if sums is None else f"{text}\n{said_sums(sums)}")
    if not output.json:
        from waystage.display import display

        for path, error in manifest.errors[:SHOWN]:
            output.note(f"{display(path)}: {error}")


def _tell(found: Difference, null: bool, output: Output) -> int:
    from waystage.display import display, named

    if null:
        print_null(to_copy(found.added, (path for path, _ in found.changed)), output)
        return ExitCode.FAILED if found else ExitCode.OK
    value = {
        **named_lists(added=found.added, removed=found.removed),
        "changed": [named(path) | {"what": list(what)} for path, what in found.changed],
        "same": found.same,
        "kinds": found.kinds,
    }
    rows = [
        {"": sign, "path": display(path)}
        for sign, paths in (("+", found.added), ("-", found.removed))
        for path in paths[:SHOWN]
    ]
    rows += [
        {"": "~", "path": f"{display(path)} ({', '.join(what)})"} for path, what in found.changed[:SHOWN]
    ]
    summary = (
        f"{found.added_count:,} added, {found.removed_count:,} removed, {found.changed_count:,} changed,"
        f" {found.same:,} the same"
    )
    listing = "\n".join(f"{row['']} {row['path']}" for row in rows)
    output.result(value, f"{listing}\n{summary}" if rows else summary)
    return ExitCode.FAILED if found else ExitCode.OK
