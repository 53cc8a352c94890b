"""`waystage augment`: augment images for training.

Arrives: a tree or catalog of images, operations, a seed, a target.
Leaves: a tree or a shard of new images; the broken ones.
Must not know: how images are transformed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from waystage.cli.combining import refuse
from waystage.cli.common import (
    ExitCode,
    Output,
    UserError,
    output_options,
    rank_options,
    read_options,
    readable_source,
    walk_options,
)
from waystage.cli.many_nodes import joined, nodes_options
from waystage.cli.quantities import amount
from waystage.cli.reporting import job_option
from waystage.outputs import refuse_special
from waystage.ranks import find_rank

if TYPE_CHECKING:
    from waystage.augment import Written
    from waystage.nodes import Where

SHOWN_ERRORS = 20


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("target", type=click.Path(path_type=Path))
@click.option(
    "--op",
    "operations",
    multiple=True,
    metavar="OPERATION",
    help="Operations, applied in this order: flip[:P], flip-vertical[:P], rotate:DEGREES, crop:WxH, resize:WxH,"
    " brightness:F, contrast:F, color:F, noise:S.",
)
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of all random choices."
)
@click.option(
    "--copies",
    type=click.IntRange(1, 10_000),
    default=1,
    show_default=True,
    help="Number of new images per image.",
)
@click.option(
    "--format",
    "encoding",
    type=click.Choice(["same", "png", "jpeg"]),
    default="same",
    show_default=True,
    help="Format of new images.",
)
@click.option("--quality", type=click.IntRange(1, 100), default=90, show_default=True, help="JPEG quality.")
@click.option("--max-pixels", type=click.IntRange(1), help="Skip images with more pixels. Default: 2^26.")
@walk_options
@click.option("--overwrite", is_flag=True, help="Replace existing images.")
@read_options
@rank_options
@job_option
@nodes_options
@output_options
def command(
    source: Path,
    target: Path,
    operations: tuple[str, ...],
    seed: int,
    copies: int,
    encoding: Literal["same", "png", "jpeg"],
    quality: int,
    max_pixels: int | None,
    exclude: tuple[str, ...],
    one_file_system: bool,
    overwrite: bool,
    threads: int | None,
    bandwidth: int | None,
    dry_run: bool,
    rank: int | None,
    ranks: int | None,
    nodes: Where | None,
    output: Output,
) -> None:
    """Augment the PNG and JPEG files of SOURCE, a tree or a catalog, into TARGET.

    TARGET is a directory, or one shard if its name ends in .tar; of several processes or nodes each writes its own
    shards. The same seed gives the same bytes for any number of
    threads and processes. Existing images are kept, so that the same command resumes an interrupted run. Broken
    images, also truncated ones, are listed and skipped; the exit status is then 8. TARGET must be outside SOURCE and
    must not contain it.
    """
    from waystage import augment
    from waystage.augment.options import MAX_PIXELS

    readable_source(source)
    _check_target(target)
    options = augment.AugmentOptions(
        operations,
        seed,
        copies,
        encoding,
        quality,
        exclude,
        one_file_system,
        threads,
        bandwidth or 0,
        max_pixels or MAX_PIXELS,
    )
    if nodes is not None:
        from waystage.augment.on_nodes import write_on_nodes

        refuse(("rank", "ranks", "dry_run"), "no effect with --scheduler or --slurm; omit one of them")
        with output.progress() as progress, joined(nodes, output) as engine:
            written = write_on_nodes(
                engine, source, target, options, progress, directory=nodes.directory, overwrite=overwrite
            )
        _say(written, output)
        click.get_current_context().exit(ExitCode.PARTIAL if written.errors else ExitCode.OK)
    of_ranks = find_rank(rank, ranks)
    if dry_run:
        dry = augment.dry_run(source, target, options, of_ranks)
        text = f"would read {dry['files']:,} files of {amount(dry['bytes'])}, for {copies} new images of each image"
        output.result(dry, text)
        return
    with output.progress() as progress:
        written = augment.write(source, target, options, of_ranks, progress, overwrite=overwrite)
    _say(written, output)
    click.get_current_context().exit(ExitCode.PARTIAL if written.errors else ExitCode.OK)


def _check_target(target: Path) -> None:
    """Raise UserError if TARGET is a device, FIFO or socket."""
    try:
        if target.suffix == ".tar":
            refuse_special(target)
        elif not target.is_dir() and os.path.lexists(target):
            raise UserError(f"{target} is not a directory: choose another", ExitCode.USAGE)
    except OSError as error:
        raise UserError(f"{target}: {error.strerror}", ExitCode.USAGE) from None


def _say(written: Written, output: Output) -> None:
    from waystage.display import display

    errors = [{"path": display(path), "error": text} for path, text in written.errors]
    value = {
        "target": str(written.target),
        "kept_shard": written.kept_shard,
        "counts": written.counts,
        "errors": errors,
    }
    if written.kept_shard:
        output.result(value, f"{written.target} exists and was kept (--overwrite replaces it)")
        return
    counts = written.counts
    text = f"{written.target}: {counts['made']:,} new images of {amount(counts['bytes_out'])} from {counts['images']:,}"
    for name, what in (
        ("kept", "there already"),
        ("broken", "broken"),
        ("others", "files that are not images"),
        ("excluded", "left out"),
        ("vanished", "removed before they were read"),
        ("unreadable", "could not be read"),
        ("changed", "changed since they were listed"),
    ):
        if counts[name]:
            text += f"; {counts[name]:,} {what}"
    output.result(value, text)
    if not output.json:
        for error in errors[:SHOWN_ERRORS]:
            output.note(f"{error['path']}: {error['error']}")
