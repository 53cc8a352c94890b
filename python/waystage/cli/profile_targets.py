"""`waystage profile-targets`: measure how many concurrent loaders suit a storage target.

Arrives: a tree or a catalog.
Leaves: a profile for the loader.
Must not know: how targets are measured.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from waystage.cli.common import Output, output_options, table
from waystage.cli.quantities import Size


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("source", metavar="TREE|CATALOG", type=click.Path(path_type=Path))
@click.option(
    "--output",
    "-o",
    "to",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("targets.json"),
    show_default=True,
    help="Profile to write.",
)
@click.option(
    "--share",
    type=click.FloatRange(0, 100, min_open=True),
    default=5.0,
    show_default=True,
    help="Maximum share of the bytes to read, in percent.",
)
@click.option(
    "--most",
    type=click.IntRange(1, 1024),
    default=64,
    show_default=True,
    help="Maximum number of readers per target.",
)
@click.option(
    "--piece",
    type=Size(1 << 10),
    default="1Mi",
    show_default=True,
    help="Maximum size of a read, e.g. 1Mi (docs/reference/units.md).",
)
@click.option("--tree", type=click.Path(path_type=Path), help="Path of the catalogued tree on this machine.")
@output_options
def command(
    source: Path, to: Path, share: float, most: int, piece: int, tree: Path | None, output: Output
) -> None:
    """Measure the contention of concurrent reads on the targets of TREE or CATALOG, and the best number of loaders.

    The targets with the most bytes are read by 1, 2, 4, ... readers until the rate stops growing (SwiftLoad, algorithm
    1). Pages are dropped from the page cache before they are read.
    """
    from waystage.loader.files import file_set
    from waystage.loader.profile import profile_targets

    with output.progress() as progress:
        files = file_set(source, tree=tree, progress=progress)
        profile = profile_targets(
            files, most_readers=most, share=share / 100, piece_bytes=piece, progress=progress
        )
    profile.save(to)
    rows = [
        {"readers": readers, "slowdown": round(slowdown, 2), "gain": round(readers / slowdown, 2)}
        for readers, slowdown in profile.points
    ]
    text = (
        f"{profile.best_loaders} loaders per target, from {profile.share:.1%} of the bytes: {to}\n"
        f"{table(rows, ['readers', 'slowdown', 'gain'])}"
    )
    output.result({"file": str(to)} | asdict(profile), text)
