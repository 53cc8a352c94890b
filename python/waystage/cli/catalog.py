"""`waystage catalog`: know what a tree holds, and ask without walking it again.

Arrives: trees, catalogs, questions.
Leaves: catalogs, answers, exit status 1 where a catalog and its tree, or two catalogs, differ.
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
from waystage.cli.common import ExitCode, Output, UserError, output_options, readable_source
from waystage.cli.paths import named_lists, null_option, print_null, refuse_both, to_copy
from waystage.outputs import is_descriptor, written

if TYPE_CHECKING:
    from waystage.catalog import Built
    from waystage.catalog.checksums import SumsMade
    from waystage.catalog.difference import Difference

FOLDER = click.Path(path_type=Path, file_okay=False)
SHOWN = 20
"""Paths of each sort that a person is shown; --json gives all."""


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Know what a tree holds, and ask without walking it again.

    A catalog is a folder of Parquet files with every entry of a tree. It is its builder's alone, because it tells
    names that directories may hide from others; `share` makes one in which everybody sees what is theirs to see.
    """


command.add_command(check)
command.add_command(checksum)
command.add_command(layout)
command.add_command(query)
command.add_command(record)


@command.command()
@click.argument("tree", type=click.Path(path_type=Path))
@click.argument("target", metavar="CATALOG", type=FOLDER)
@click.option(
    "--exclude", "-x", multiple=True, metavar="PATTERN", help="Leave out; may be given several times."
)
@click.option("--one-file-system", is_flag=True, help="Leave out what is on other file systems.")
@click.option("--checksums", is_flag=True, help="Read every file, too, and keep checksums of its objects.")
@click.option("--no-layouts", is_flag=True, help="Do not ask how files lie on storage targets.")
@click.option("--restart", is_flag=True, help="Throw away what an interrupted build left.")
@click.option("--replace", is_flag=True, help="Replace a catalog of another tree that has this name.")
@click.option("--threads", type=click.IntRange(1, 1024), help="Default: four for each core, at most 32.")
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
    output: Output,
) -> None:
    """Walk TREE and write CATALOG, a folder.

    A build that was interrupted goes on where it left off when the same command is given again. Symbolic links are
    recorded and never followed. A PATTERN without a slash is held against names, one with a slash against paths below TREE;
    `**` crosses slashes.
    """
    from waystage.catalog import BuildOptions
    from waystage.catalog import build as build_catalog

    readable_source(tree, directory=True)
    options = BuildOptions(
        threads, exclude, one_file_system, restart, None if no_layouts else "each", replace=replace
    )
    with output.progress() as progress:
        built = build_catalog(tree, target, options, progress)
        made = make_sums(target, threads, progress) if checksums else None
    _say(built, output, made)


@command.command()
@click.argument("target", metavar="CATALOG", type=FOLDER)
@click.option(
    "--trust-directories",
    is_flag=True,
    help="Read only directories whose own times have changed: right where files are never rewritten in place.",
)
@click.option(
    "--stale",
    type=click.File("rb"),
    metavar="FILE",
    help="Read again only directories of the paths in FILE, each ended by a NUL, and those whose own times have changed.",
)
@click.option("--restart", is_flag=True, help="Throw away what an interrupted refresh left.")
@click.option("--threads", type=click.IntRange(1, 1024), help="Default: four for each core, at most 32.")
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
@click.option("--checksums", is_flag=True, help="Hold the files against the checksums of their objects.")
@click.option(
    "--repair-from",
    metavar="TREE",
    type=click.Path(path_type=Path),
    help="With --checksums: mend damaged objects from this copy of the tree.",
)
@null_option("Print paths that were added or changed, as they are, each ended by a NUL.")
@click.option("--threads", type=click.IntRange(1, 1024), help="Default: four for each core, at most 32.")
@output_options
def verify(
    target: Path, checksums: bool, repair_from: Path | None, null: bool, threads: int | None, output: Output
) -> int:
    """Say what changed in the tree since CATALOG was made. Exit status 1 where anything did.

    With --checksums, every file that has checksums is read instead, and objects that are damaged are named: their file's
    size, time of last change and inode are as they were, but their bytes are not. Exit status 1 where damage is left.
    """
    from waystage.catalog import Catalog, difference

    if repair_from is not None and not checksums:
        raise UserError(
            "--repair-from needs --checksums: only they tell which object is whole", ExitCode.USAGE
        )
    if checksums:
        if null:
            raise UserError("--null is for what verify finds without --checksums", ExitCode.USAGE)
        return verify_sums(target, repair_from, threads, output)
    refuse_both(null, output)
    with output.progress() as progress:
        limit = None if output.json or null else SHOWN
        found = difference.verify(Catalog(target), threads, progress, limit=limit)
    return _tell(found, null, output)


@command.command()
@click.argument("old", type=FOLDER)
@click.argument("new", type=FOLDER)
@null_option("Print paths that were added or changed, as they are, each ended by a NUL.")
@output_options
def diff(old: Path, new: Path, null: bool, output: Output) -> int:
    """Say what differs between two catalogs, by path. Exit status 1 where anything does."""
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
    help="CSV, JSON lines, or a listing like that of mpiFileUtils.",
)
@click.option(
    "--output", "-o", "to", type=click.Path(path_type=Path, dir_okay=False), help="Default: stdout."
)
@output_options
def export(target: Path, form: str, to: Path | None, output: Output) -> None:
    """Write every entry of CATALOG as a line."""
    from waystage.catalog import Catalog
    from waystage.catalog.export import export as lines
    from waystage.catalog.query import Filter, select

    if to is None and (output.json or output.quiet):
        raise UserError("--json and --quiet leave no room for the lines: give --output FILE", ExitCode.USAGE)
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
    """Write CATALOG as SHARED, in which every user sees what the file system lets that user see.

    Entries are dealt out to folders that the same users can enter who can list the entries' directories, by owners, groups, modes and
    POSIX access control lists as they are now. Directories of other users or groups take root. Share anew after
    `refresh`, or when rights have changed.
    """
    from waystage.catalog.share import share as share_catalog

    with output.progress() as progress:
        shared = share_catalog(source, target, progress)
    text = f"{shared.path}: {shared.entries:,} entries in {shared.sections:,} sections"
    if shared.withheld:
        text += f"; {shared.withheld:,} withheld, whose directories are others now or cannot be looked at"
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
        (counts["vanished"], "gone before they could be looked at"),
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
