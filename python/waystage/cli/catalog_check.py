"""`waystage catalog check CATALOG`: check entries for changes without walking the tree.

Arrives: a catalog.
Leaves: the number of stale entries by attribute; exit status 1 if there are any; with --mend, a refreshed catalog.
Must not know: how entries are compared.
"""

from __future__ import annotations

from pathlib import Path

import click

from waystage.cli.common import ExitCode, Output, output_options
from waystage.cli.paths import named_lists, print_null, refuse_both

SHOWN = 20
"""Paths shown as text; --json and --null give all."""


@click.command("check")
@click.argument("target", metavar="CATALOG", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--sample", metavar="N", type=click.IntRange(1), help="Check a random sample of about N entries."
)
@click.option("--seed", default=0, show_default=True, help="Seed of the sample.")
@click.option("--mend", is_flag=True, help="Refresh the directories of stale entries.")
@click.option("--null", "-0", "null", is_flag=True, help="Print only stale paths, each ended by a NUL.")
@click.option(
    "--workers",
    "threads",
    type=click.IntRange(1, 1024),
    help="Number of threads. Default: four per core, at most 32.",
)
@output_options
def command(
    target: Path,
    sample: int | None,
    seed: int,
    mend: bool,
    null: bool,
    threads: int | None,
    output: Output,
) -> int:
    """Check the entries of CATALOG for changes. Exit status 1 if any is stale.

    Compares type, size, mtime, ctime and inode, as loaders do when they open a file. Directories are not read, so new
    files are not found; `verify` finds them. --mend refreshes the directories of stale entries and those with
    changed times.
    """
    from waystage.catalog import BuildOptions, Catalog, check, refresh
    from waystage.display import display

    refuse_both(null, output)
    with output.progress() as progress:
        found = check(Catalog(target), sample=sample, threads=threads, seed=seed, progress=progress)
        refreshed = None
        if mend and found:
            # If the list of stale paths is incomplete, every entry must be checked.
            stale = found.stale if found.complete else None
            refreshed = refresh(target, BuildOptions(threads), progress, stale=stale)
    counts = found.counts
    if null:
        print_null(found.stale, output)
    elif not output.json:
        for path in found.stale[:SHOWN]:
            output.say(f"~ {display(path)}")
        differing = {name: n for name, n in counts.items() if n and name not in ("checked", "stale")}
        said = ", ".join(f"{name} {n:,}" for name, n in differing.items())
        text = f"{counts['checked']:,} entries checked, {counts['stale']:,} stale"
        output.say(text + (f": {said}" if said else ""))
        if refreshed is not None:
            output.say(f"refreshed: {refreshed.entries:,} entries, {refreshed.kept:,} of them unchanged")
    output.result(
        {
            "counts": counts,
            **named_lists(stale=found.stale),
            "complete": found.complete,
            "mended": None if refreshed is None else {"entries": refreshed.entries, "kept": refreshed.kept},
        }
    )
    return ExitCode.FAILED if found and refreshed is None else ExitCode.OK
