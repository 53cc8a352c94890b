"""`waystage load`: read all files of a tree or catalog and report the rate of each storage target.

Arrives: a tree or a catalog, how to read it.
Leaves: rates by target; exit status 1 if files could not be read.
Must not know: how files are scheduled or read.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Literal

import click

from waystage.cli.common import ExitCode, Output, output_options, table
from waystage.cli.quantities import Size
from waystage.cli.reporting import job_option

SHOWN = 20
"""Targets and failures shown as text; --json gives all."""

TOGETHER = 256
"""Items between two reads of the clock."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("source", metavar="TREE|CATALOG", type=click.Path(path_type=Path))
@click.option(
    "--mode",
    type=click.Choice(["catalog", "object", "file"]),
    help="Source of files and layouts: the catalog; a walk that queries layouts; a walk without layouts."
    " Default: catalog for a catalog, object for a tree.",
)
@click.option("--tree", type=click.Path(path_type=Path), help="Path of the catalogued tree on this machine.")
@click.option(
    "--files", "whole", is_flag=True, help="Deliver complete files in epoch order, as for training."
)
@click.option(
    "--loaders", type=click.IntRange(1, 4096), help="Reading threads, at most. Default: from the profile."
)
@click.option(
    "--profile",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Profile from waystage profile-targets: loaders per target.",
)
@click.option(
    "--resized",
    type=click.Choice(["error", "deliver"]),
    default="error",
    show_default=True,
    help="Handling of a file whose size changed since it was recorded or while it is read: report an error, or deliver"
    " it anyway.",
)
@click.option("--strict", is_flag=True, help="Bind each loader to its target permanently.")
@click.option("--rank", type=click.IntRange(0), default=0, show_default=True, help="Rank of this process.")
@click.option("--world", type=click.IntRange(1), default=1, show_default=True, help="Number of processes.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the order.")
@click.option(
    "--memory",
    type=Size(1 << 20),
    default="256Mi",
    show_default=True,
    help="Maximum read-ahead, e.g. 1Gi (docs/reference/units.md).",
)
@click.option(
    "--piece",
    type=Size(1 << 10),
    default="4Mi",
    show_default=True,
    help="Maximum size of a read, e.g. 4Mi.",
)
@job_option
@output_options
def command(
    source: Path,
    mode: Literal["catalog", "object", "file"] | None,
    tree: Path | None,
    whole: bool,
    loaders: int | None,
    profile: Path | None,
    resized: Literal["error", "deliver"],
    strict: bool,
    rank: int,
    world: int,
    seed: int,
    memory: int,
    piece: int,
    output: Output,
) -> int:
    """Read all files of TREE or CATALOG and report the rate of each storage target.

    Objects are read by loaders bound to their target; with --files, complete files in a seeded random order. Data is
    discarded. With --rank and --ranks, several processes share the work.
    """
    from waystage.display import display
    from waystage.loader import Loader

    began = time.monotonic()
    with output.progress() as progress:
        loader = Loader(
            source,
            mode=mode,
            tree=tree,
            deliver="files" if whole else "objects",
            order="epoch" if whole else "arrival",
            loaders=loaders,
            profile=profile,
            binding="strict" if strict else "steal",
            rank=rank,
            world=world,
            seed=seed,
            memory_bytes=memory,
            piece_bytes=piece,
            on_error="skip",
            resized=resized,
            progress=progress,
        )
        opened_s = time.monotonic() - began
        first_s: float | None = None
        with loader:
            for number, _ in enumerate(loader):
                if first_s is None:
                    first_s = time.monotonic() - began
                if number % TOGETHER == 0:
                    counts = loader.counts()
                    done = counts["delivered"] / max(1, counts["units"])
                    progress(f"{counts['bytes'] / 1e6:,.0f} MB", done)
            counts = loader.counts()
    seconds = time.monotonic() - began
    failed = sum(counts[name] for name in ("vanished", "not_a_file", "unreadable", "grown", "resized"))
    value: dict[str, Any] = {
        "source": str(source),
        "mode": loader.files.mode,
        "loaders": loader.loaders,
        "seconds": round(seconds, 3),
        "opened_s": round(opened_s, 3),
        "first_s": None if first_s is None else round(first_s, 3),
        "bytes_per_s": round(counts["bytes"] / seconds),
        "units": counts["units"],
        **{name: counts[name] for name in COUNTED},
        "targets": [_rates(target) for target in counts["targets"]],
        "failures": [
            {"path": display(path), "trouble": trouble, "error": message}
            for path, trouble, message in loader.failures()
        ],
    }
    text = (
        f"{counts['bytes'] / 1e6:,.1f} MB in {counts['items']:,} {'files' if whole else 'pieces'},"
        f" {seconds:.2f} s, {counts['bytes'] / seconds / 1e6:,.1f} MB/s"
    )
    for name, words in REMARKS:
        if counts[name]:
            text += f"; {counts[name]:,} {words}"
    rows = sorted(value["targets"], key=lambda row: -row["bytes"])[:SHOWN]
    listing = table(rows, ["target", "bytes", "pieces", "MB/s while read", "readers"])
    output.result(value, f"{text}\n{listing}" if rows else text)
    if not output.json:
        for failure in value["failures"][:SHOWN]:
            output.note(f"{failure['path']}: {failure['error']}")
    return ExitCode.FAILED if failed else ExitCode.OK


COUNTED = (
    "items",
    "bytes",
    "vanished",
    "not_a_file",
    "unreadable",
    "grown",
    "resized",
    "shrunk",
    "stolen",
    "checked",
    "stale",
)
REMARKS = (
    ("vanished", "gone"),
    ("not_a_file", "no longer regular files"),
    ("unreadable", "unreadable"),
    ("grown", "grown beyond memory"),
    ("resized", "with another size than recorded"),
    ("shrunk", "shrunk meanwhile"),
    ("stale", "different from the catalog"),
)


def _rates(of: dict[str, Any]) -> dict[str, Any]:
    busy = of["busy_s"]
    return {
        "target": of["target"],
        "bytes": of["bytes"],
        "pieces": of["pieces"],
        "MB/s while read": round(of["bytes"] / busy / 1e6, 1) if busy > 0 else 0.0,
        "readers": round(of["reading_s"] / busy, 1) if busy > 0 else 0.0,
    }
