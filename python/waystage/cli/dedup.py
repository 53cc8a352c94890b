"""`waystage dedup`: measure how much data of a tree is redundant.

Arrives: a tree, a catalog or parts; a chunking method; the rank of this process.
Leaves: a report, or parts.
Must not know: how data is chunked, and how files are found.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    table,
    walk_options,
)
from waystage.cli.many_nodes import joined, nodes_options
from waystage.cli.quantities import amount, rate
from waystage.cli.reporting import job_option
from waystage.ranks import find_rank

if TYPE_CHECKING:
    from waystage.dedup import DedupOptions, Report
    from waystage.nodes import Where

SHOWN = 15
"""File types shown as text; --json gives all."""

SHOWN_ERRORS = 20

LARGEST_CHUNK = 1 << 16

PARTS_A_RANK = 4
"""An interrupted run repeats at most one part, a quarter of a rank's work."""

MODULE = "waystage.dedup.on_nodes"
"""What tasks of many nodes need."""


def _method(context: click.Context, parameter: click.Parameter, value: str) -> str:
    match = re.fullmatch(r"fast|fsc|fixed:([0-9]{1,5})", value)
    if not match or (match[1] and not 1 <= int(match[1]) <= LARGEST_CHUNK):
        raise click.BadParameter(f"{value!r} is not fast, fsc, or fixed:N with N from 1 to {LARGEST_CHUNK}")
    return value


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("source", required=False, type=click.Path(path_type=Path))
@click.option(
    "--method",
    default="fast",
    callback=_method,
    show_default=True,
    metavar="fast|fsc|fixed:N",
    help="Chunking: content-defined, 8 KiB on average; the chunks and SHA-1 of FS-C's cdc8; or N bytes each.",
)
@walk_options
@read_options
@click.option(
    "--parts-in",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write parts into this directory instead of a report; existing parts are kept.",
)
@click.option("--parts", type=click.IntRange(1, 99_999), help="Number of parts. Default: four per rank.")
@rank_options
@nodes_options
@click.option(
    "--merge",
    "to_merge",
    multiple=True,
    metavar="PART",
    type=click.Path(path_type=Path),
    help="Merge these parts, or all in a directory, into one report (repeatable).",
)
@click.option(
    "--estimate",
    is_flag=True,
    help="With --merge: estimate in constant memory (Harnik et al., FAST 2016).",
)
@click.option(
    "--sample", type=click.IntRange(1), help="Sample size of the estimate in chunks. Default: 445,570."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the sample.")
@job_option
@output_options
def command(
    source: Path | None,
    method: str,
    exclude: tuple[str, ...],
    one_file_system: bool,
    threads: int | None,
    bandwidth: int | None,
    dry_run: bool,
    parts_in: Path | None,
    parts: int | None,
    rank: int | None,
    ranks: int | None,
    nodes: Where | None,
    to_merge: tuple[Path, ...],
    estimate: bool,
    sample: int | None,
    seed: int,
    output: Output,
) -> None:
    """Measure how much data of SOURCE, a tree or a catalog, is redundant.

    Files are split into chunks by content; a chunk seen before is redundant. The tree of a catalog is not walked. A
    file with several hard links is read once; holes are not read.

    To share the work among nodes, give --scheduler or --slurm; or run `waystage dedup SOURCE --parts-in FOLDER` under
    mpirun or srun, or with --rank and --ranks, and then `waystage dedup --merge FOLDER` once, which nodes share with
    --scheduler or --slurm. Finished parts are not made again.
    """
    from waystage import dedup

    if to_merge:
        if source is not None or parts_in is not None or dry_run:
            raise UserError("--merge takes only parts: omit SOURCE, --parts-in and --dry-run", ExitCode.USAGE)
        paths = [path for given in to_merge for path in _parts_of(given)]
        if nodes is not None:
            refuse(("estimate", "sample"), "no effect with --scheduler or --slurm; omit one of them")
            _say(_merged_on_nodes(nodes, paths, output), output)
            return
        with output.progress() as progress:
            if estimate:
                found = dedup.estimate(paths, progress, sample or dedup.report.SAMPLE, seed)
                output.result(found, _estimate_text(found))
                return
            report = dedup.merge(paths, progress)
        _say(report, output)
        return
    if estimate or sample is not None:
        raise UserError(
            "--estimate needs parts: make them with --parts-in FOLDER, then give --merge FOLDER --estimate",
            ExitCode.USAGE,
        )
    if source is None:
        raise UserError("give a tree or a catalog, or parts with --merge", ExitCode.USAGE)
    readable_source(source)
    options = dedup.DedupOptions(method, exclude, one_file_system, threads, bandwidth or 0)
    if nodes is not None:
        refuse(("rank", "ranks", "dry_run"), "no effect with --scheduler or --slurm; omit one of them")
        _on_nodes(nodes, source, parts_in, parts, options, output)
        return
    of_ranks = find_rank(rank, ranks)
    if parts_in is None and of_ranks.of > 1 and not dry_run:
        raise UserError(
            f"{of_ranks.of} processes would each read everything: give --parts-in FOLDER to share the work",
            ExitCode.USAGE,
        )
    count = parts or PARTS_A_RANK * of_ranks.of
    if dry_run:
        dry = dedup.dry_run(source, parts_in, count, of_ranks, options)
        text = (
            f"would read {dry.files:,} files of {amount(dry.bytes)}, {amount(dry.allocated_bytes)} allocated"
        )
        if parts_in is not None:
            text += f"; {dry.finished_parts} parts exist already"
        output.result(vars(dry), text)
        return
    with output.progress() as progress:
        if parts_in is None:
            report = dedup.profile(source, options, progress)
        else:
            made, kept = dedup.make_parts(source, parts_in, count, of_ranks, options, progress)
    if parts_in is None:
        _say(report, output)
        return
    value = {
        "parts": [str(path) for path in made],
        "kept": kept,
        "rank": of_ranks.number,
        "ranks": of_ranks.of,
    }
    text = f"{len(made) - kept} parts made, {kept} kept: waystage dedup --merge {parts_in}"
    output.result(value, text)


def _on_nodes(
    nodes: Where,
    source: Path,
    parts_in: Path | None,
    parts: int | None,
    options: DedupOptions,
    output: Output,
) -> None:
    with output.progress() as progress, joined(nodes, output, MODULE) as engine:
        from waystage.dedup.on_nodes import parts_on_nodes, profile_on_nodes

        if parts_in is None:
            report = profile_on_nodes(engine, source, options, progress, directory=nodes.directory)
        else:
            directory = nodes.directory
            made, kept = parts_on_nodes(
                engine, source, parts_in, parts, options, progress, directory=directory
            )
    if parts_in is None:
        _say(report, output)
        return
    value = {"parts": [str(path) for path in made], "kept": kept}
    output.result(value, f"{len(made) - kept} parts made, {kept} kept: waystage dedup --merge {parts_in}")


def _merged_on_nodes(nodes: Where, paths: list[Path], output: Output) -> Report:
    from waystage.nodes.shared import needed

    marks = [needed(folder) for folder in sorted({path.parent for path in paths})]
    with output.progress() as progress, joined(nodes, output, MODULE) as engine:
        from waystage.dedup.on_nodes import merge_on_nodes

        return merge_on_nodes(engine, paths, progress, directory=nodes.directory, marks=marks)


def _parts_of(given: Path) -> list[Path]:
    if not given.is_dir():
        return [given]
    found = sorted(given.glob("*.dedup"))
    if not found:
        raise UserError(f"{given} contains no parts: make them with waystage dedup SOURCE --parts-in {given}")
    return found


def _say(report: Report, output: Output) -> None:
    from waystage.display import display

    output.result(report.as_json(), _text(report))
    if not output.json:
        for path, error in report.errors[:SHOWN_ERRORS]:
            output.note(f"{display(path)}: {error}")


def _text(report: Report) -> str:
    files, whole = report.files, report.all
    lines = [
        f"{amount(whole.bytes)} in {files['read']:,} files, {whole.chunks:,} chunks ({report.method});"
        f" distinct {amount(whole.distinct_bytes)}: {rate(whole.redundant_share)} redundant",
        f"zeros: {amount(report.zero_bytes)} in {report.zero_chunks:,} chunks;"
        f" duplicate files: {report.repeated_files:,} of {amount(report.repeated_bytes)}",
    ]
    if files["hole_bytes"]:
        with_holes = report.with_holes
        lines.append(
            f"holes, not counted above: {amount(files['hole_bytes'])}; with them {rate(with_holes.redundant_share)} redundant"
        )
    remarks = [
        (files["links"], "additional hard links"),
        (report.excluded, "left out"),
        (files["vanished"], "removed before they were read"),
        (files["changed"], "changed since they were listed, read anyway"),
        (files["unreadable"], "could not be read"),
    ]
    told = [f"{count:,} {what}" for count, what in remarks if count]
    if told:
        lines.append("; ".join(told))
    types = sorted(report.types.items(), key=lambda item: -item[1].bytes)[:SHOWN]
    for title, rows in (
        ("type", [(name, amounts) for name, amounts in types]),
        ("files from", [(amount(floor), amounts) for floor, amounts in sorted(report.sizes.items())]),
    ):
        cells = [
            {
                title: name,
                "bytes": amount(of.bytes),
                "distinct": amount(of.distinct_bytes),
                "redundant": rate(of.redundant_share),
            }
            for name, of in rows
        ]
        if cells:
            lines += ["", table(cells, [title, "bytes", "distinct", "redundant"])]
    return "\n".join(lines)


def _estimate_text(found: dict[str, Any]) -> str:
    return (
        f"{amount(found['bytes'])} in {found['files']['read']:,} files, {found['chunks']:,} chunks:"
        f" about {rate(found['redundant_share'])} redundant, give or take {rate(found['error'])}"
        f" ({found['confidence']:.0%} sure; sample of {found['sample']:,} chunks)"
    )
