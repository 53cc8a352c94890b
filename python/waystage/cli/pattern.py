"""`waystage pattern`: show, convert and merge communication patterns.

Arrives: pattern files, also of the original profiler.
Leaves: text, one JSON object, images, files of other formats.
Must not know: how patterns are recorded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from waystage.cli.common import Output, output_options, table

FILE = click.Path(path_type=Path, dir_okay=False)
PHASES_SHOWN = 20


@click.group()
def command() -> None:
    """Show, convert and merge communication patterns."""


@command.command()
@click.argument("file", type=FILE)
@click.option("--png", type=FILE, help="Also draw the heat map to this file.")
@click.option("--phase", type=click.IntRange(min=0), help="Show only this phase, numbered from 0.")
@click.option(
    "--top", type=click.IntRange(min=0), default=10, show_default=True, help="Number of pairs to list."
)
@click.option("--map/--no-map", "draw", default=True, help="Draw the heat map in the terminal.")
@output_options
def show(file: Path, png: Path | None, phase: int | None, top: int, draw: bool, output: Output) -> None:
    """Show the totals, message kinds, phases, busiest pairs and heat map of FILE.

    FILE is a pattern file or the original profiler's tar.gz. Warnings about incomplete data come first.
    """
    from waystage.patterns import Pattern
    from waystage.patterns.heatmap import as_text, write_png
    from waystage.patterns.summary import summarise

    pattern = Pattern.read(file, allow_missing=True)
    summary = summarise(pattern, top=top, phase=phase)
    if png is not None:
        write_png(pattern, png, phase=phase)
        summary["png"] = str(png)
    lines = _lines(summary)
    if draw and not output.json:
        lines += ["", as_text(pattern, side=_side(), phase=phase)]
    output.result(summary, "\n".join(lines))


@command.command()
@click.argument("file", type=FILE)
@click.argument("target", type=FILE)
@click.option(
    "--phases",
    type=click.Choice(["keep", "one", "change"]),
    default="keep",
    show_default=True,
    help="Keep the phases, merge all into one, or start one at each change of the pattern.",
)
@output_options
def convert(file: Path, target: Path, phases: str, output: Output) -> None:
    """Convert FILE to TARGET. Its suffix sets the format: .pattern, .csv, .json, .npz, or the original's .tar.gz."""
    from waystage.patterns import Pattern
    from waystage.patterns.convert import convert as write
    from waystage.patterns.phases import by_change

    pattern = Pattern.read(file)
    if phases == "one":
        pattern = pattern.merged_phases([0])
    elif phases == "change":
        pattern = by_change(pattern)
    write(pattern, target)
    output.result(
        {"file": str(target), "ranks": pattern.ranks, "phases": pattern.phases},
        f"{target}: {pattern.ranks} ranks, {pattern.phases} phase(s)",
    )


@command.command()
@click.argument("parts", nargs=-1, required=True, type=FILE)
@click.option("--output", "-o", "target", type=FILE, required=True, help="File to write.")
@output_options
def merge(parts: tuple[Path, ...], target: Path, output: Output) -> None:
    """Merge PARTS, written by the ranks of one run that did not finish."""
    from waystage.patterns.merge import merge as join

    pattern = join(parts, target)
    value = {
        "file": str(target),
        "ranks": pattern.ranks,
        "missing": list(pattern.missing),
        "unfinished": list(pattern.unfinished),
    }
    lacking = f", {len(pattern.missing)} missing" if pattern.missing else ""
    output.result(value, f"{target}: {pattern.ranks} ranks{lacking}")


def _lines(summary: dict[str, Any]) -> list[str]:
    lines = [f"warning: {text}" for text in summary["warnings"]]
    if summary["missing"]:
        lines.append(
            f"warning: {_count(summary['missing'], 'rank')} left nothing: {_listed(summary['missing'])}"
        )
    if summary["unfinished"]:
        lines.append(
            f"warning: {_count(summary['unfinished'], 'rank')} did not reach MPI_Finalize: "
            f"{_listed(summary['unfinished'])}"
        )
    run = summary["run"]
    if run.get("program"):
        lines.append(
            f"{run['program']} with {run.get('mpi') or 'an unknown MPI'}, {summary['duration_s']:.3f} s"
        )
    lines.append(
        f"{summary['ranks']} ranks on {summary['nodes']} node(s): {summary['messages']:,} messages, "
        f"{summary['bytes']:,} bytes between {summary['pairs']:,} pairs"
    )
    kinds = [
        {
            "kind": row["kind"] if row["counted"] else f"({row['kind']})",
            "messages": row["messages"],
            "bytes": row["bytes"],
            "received": "" if row["received_bytes"] is None else row["received_bytes"],
        }
        for row in summary["kinds"]
    ]
    if kinds:
        lines += ["", table(kinds, ["kind", "messages", "bytes", "received"])]
    if len(summary["phases"]) > 1:
        shown = [
            {k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()}
            for row in summary["phases"][:PHASES_SHOWN]
        ]
        lines += ["", table(shown, ["phase", "start_s", "end_s", "messages", "bytes"])]
        if len(summary["phases"]) > PHASES_SHOWN:
            lines.append(f"... {len(summary['phases']) - PHASES_SHOWN} more: see --json")
    if summary["top_pairs"]:
        lines += [
            "",
            table(summary["top_pairs"], ["src", "dst", "src_node", "dst_node", "messages", "bytes"]),
        ]
    return lines


def _count(values: list[int], noun: str) -> str:
    return f"{len(values)} {noun}{'' if len(values) == 1 else 's'}"


def _listed(values: list[int]) -> str:
    return ", ".join(map(str, values[:8])) + (", ..." if len(values) > 8 else "")


def _side() -> int:
    import shutil

    size = shutil.get_terminal_size((100, 40))
    return max(8, min(64, (size.columns - 2) // 2))
