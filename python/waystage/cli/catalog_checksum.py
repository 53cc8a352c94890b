"""`waystage catalog checksum CATALOG`, and the output of `verify --checksums`.

Arrives: a catalog; optionally a copy of its tree to repair damage from.
Leaves: checksums beside the catalog; damaged objects as text or JSON, exit status 1 if damage remains.
Must not know: how checksums are computed.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from waystage.cli.common import ExitCode, Output, output_options

if TYPE_CHECKING:
    from waystage.catalog.checksums import SumsMade
    from waystage.task import Progress

SHOWN = 20
"""Lines of each kind shown as text; --json gives all."""


@click.command("checksum")
@click.argument("target", metavar="CATALOG", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--workers", "threads", type=click.IntRange(1, 1024), help="Number of threads. Default: one per core."
)
@output_options
def command(target: Path, threads: int | None, output: Output) -> int:
    """Read the files of CATALOG and store a checksum of each object in CATALOG.checksums.

    Files with unchanged size, mtime and inode are not read again. Exit status 1 if a file could not be read.
    """
    with output.progress() as progress:
        made = make_sums(target, threads, progress)
    output.result(plain_sums(made), said_sums(made))
    if not output.json:
        from waystage.display import display

        for path, why in made.unread[:SHOWN]:
            output.note(f"{display(path)}: {why}")
    return ExitCode.FAILED if made.unread else ExitCode.OK


def make_sums(target: Path, threads: int | None, progress: Progress) -> SumsMade:
    """Create or update the checksums of a catalog."""
    from waystage.catalog import Catalog, checksums

    return checksums.make(Catalog(target), threads, progress)


def plain_sums(made: SumsMade) -> dict[str, Any]:
    """The result of a checksum run as JSON."""
    from waystage.display import named

    return {
        "file": str(made.path),
        "files": made.files,
        "bytes": made.bytes_read,
        "kept": made.kept,
        "unread": [named(path) | {"error": why} for path, why in made.unread],
    }


def said_sums(made: SumsMade) -> str:
    """The same as text."""
    text = f"{made.path}: {made.files:,} files summed, {made.bytes_read:,} bytes; {made.kept:,} had their checksums"
    return text + (f"; {len(made.unread):,} could not be read completely" if made.unread else "")


def verify_sums(target: Path, repair_from: Path | None, threads: int | None, output: Output) -> int:
    """Verify files against their checksums, repair damage from a copy if given, and report."""
    from dataclasses import asdict

    from waystage.catalog import Catalog, checksums
    from waystage.display import display, named

    with output.progress() as progress:
        found = checksums.verify(Catalog(target), threads, progress, repair_from=repair_from)
    repaired = sum(damage.mended for damage in found.damaged)
    for damage in found.damaged[:SHOWN]:
        where = f"object {damage.object} at {damage.offset:,}, {damage.length:,} bytes"
        target_said = "" if damage.target is None else f", target {damage.target}"
        output.say(f"! {display(damage.path)}: {where}{target_said}{': repaired' if damage.mended else ''}")
    for path, what in found.changed[:SHOWN]:
        output.say(f"~ {display(path)} ({', '.join(what)})")
    if not output.json:
        for path, why in found.failed[:SHOWN]:
            output.note(f"{display(path)}: {why}")
    output.result(
        {
            "files": found.files,
            "objects": found.objects,
            "bytes": found.bytes_read,
            "damaged": [asdict(damage) | named(damage.path) for damage in found.damaged],
            "changed": [named(path) | {"what": list(what)} for path, what in found.changed],
            "failed": [named(path) | {"error": why} for path, why in found.failed],
        },
        f"{found.files:,} files, {found.objects:,} objects verified; {len(found.damaged):,} objects damaged,"
        f" {repaired:,} of them repaired; {len(found.changed):,} files changed since",
    )
    return ExitCode.FAILED if found else ExitCode.OK
