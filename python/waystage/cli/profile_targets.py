"""`waystage profile-targets`: how many loaders a storage target takes.

Arrives: a tree or a catalog.
Leaves: a file that the loader takes.
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
    help="The profile to write.",
)
@click.option(
    "--share",
    type=click.FloatRange(0, 100, min_open=True),
    default=5.0,
    show_default=True,
    help="Percent of the bytes to read at most.",
)
@click.option(
    "--most", type=click.IntRange(1, 1024), default=64, show_default=True, help="Readers of a target at most."
)
@click.option(
    "--piece",
    type=Size(1 << 10, unit="Ki"),
    default="1Mi",
    show_default=True,
    help="Read in pieces of at most this size, such as 1Mi (docs/reference/units.md).",
)
@click.option(
    "--tree", type=click.Path(path_type=Path), help="Where the catalogued tree lies on this machine."
)
@output_options
def command(
    source: Path, to: Path, share: float, most: int, piece: int, tree: Path | None, output: Output
) -> None:
    """Measure how reads of TREE or CATALOG slow one another down on a target, and how many loaders follow from it.

    The targets with most bytes are read by 1, 2, 4, ... readers until more bring nothing (SwiftLoad's algorithm 1). What the page
    cache holds of a piece is let go before it is read.
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
        f"{profile.best_loaders} loaders a target, from {profile.share:.1%} of the bytes: {to}\n"
        f"{table(rows, ['readers', 'slowdown', 'gain'])}"
    )
    output.result({"file": str(to)} | asdict(profile), text)
