"""`waystage restripe`: give the files of a tree another layout, in place; suggest layouts; place replicas on Gfarm.

Arrives: a tree, layouts or a request to suggest them, or a number of replicas.
Leaves: the same files laid out anew, or suggestions; counts and problems.
Must not know: how a file is laid out, how layouts are chosen.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from waystage.cli.common import ExitCode, Output, UserError, output_options, table, walk_options
from waystage.cli.copy_report import SHOWN, size_text
from waystage.cli.quantities import Rate
from waystage.cli.reporting import job_option
from waystage.flows import FlowDescription, reported, storage
from waystage.task import Progress, follow

if TYPE_CHECKING:
    from waystage._native import TreeRestripe
    from waystage.native_options.restripes import SizeClass
    from waystage.restripe import StorageModel

PARTS = (
    ("files", "files restriped"),
    ("hard_links", "more hard links"),
    ("same", "already so"),
    ("verified", "read back"),
    ("mended", "files whose hard links were joined again"),
    ("leftovers", "leftovers removed"),
    ("excluded", "left out"),
)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("tree", metavar="TREE", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--layout",
    metavar="LAYOUT",
    help="How files are striped, e.g. 'stripes=4,stripe_size=1Mi', in parts 'to=4Mi,stripes=1/stripes=all', or a file of"
    " size classes as --suggest writes it.",
)
@click.option(
    "--suggest", "suggesting", is_flag=True, help="Change nothing: print a layout per size class, and why."
)
@click.option(
    "--shape",
    metavar="NAME|FILE",
    default="nurion",
    show_default=True,
    help="With --suggest: number, rate, latency and slowdown of the storage targets (docs/reference/pfs.md).",
)
@click.option(
    "--profile",
    type=click.Path(path_type=Path, dir_okay=False),
    help="With --suggest: take the slowdown from this file of `waystage profile-targets`.",
)
@click.option("--targets", type=click.IntRange(1, 4096), help="With --suggest: number of storage targets.")
@click.option(
    "--output",
    "-o",
    "to",
    type=click.Path(path_type=Path, dir_okay=False),
    help="With --suggest: file to write.",
)
@click.option("--replicas", type=click.IntRange(1, 64), help="On Gfarm: number of replicas of each file.")
@click.option(
    "--hosts",
    metavar="HOST,...",
    help="With --replicas: place them on these nodes alone, and none elsewhere.",
)
@click.option(
    "--catalog",
    type=click.Path(path_type=Path, file_okay=False),
    help="Update this catalog of TREE, or of a tree around it, afterwards; with --suggest, read sizes from it.",
)
@walk_options
@click.option("--verify", is_flag=True, help="Read each new file back before it takes the name.")
@click.option(
    "--from-storage", is_flag=True, help="With --verify: read from storage, not from the page cache."
)
@click.option(
    "--no-sync",
    is_flag=True,
    help="Do not force data to storage before a new file takes the name: a power failure may then lose it.",
)
@click.option(
    "--bandwidth-limit", "rate", type=Rate(), metavar="RATE", help="Limit the read rate, e.g. 200M."
)
@click.option(
    "--workers", type=click.IntRange(1, 1024), help="Number of threads. Default: four per core, at most 32."
)
@click.option("--dry-run", "-n", is_flag=True, help="Change nothing: list the files that would be restriped.")
@job_option
@output_options
def command(
    tree: Path,
    layout: str | None,
    suggesting: bool,
    shape: str,
    profile: Path | None,
    targets: int | None,
    to: Path | None,
    replicas: int | None,
    hosts: str | None,
    catalog: Path | None,
    exclude: tuple[str, ...],
    one_file_system: bool,
    verify: bool,
    from_storage: bool,
    no_sync: bool,
    rate: int | None,
    workers: int | None,
    dry_run: bool,
    output: Output,
) -> int | None:
    """Lay out the files of TREE anew on their storage targets, in place.

    Contents, owners, modes, times, extended attributes, access control lists and hard links are kept; inode numbers
    change. At every moment each file is its old or its new self, also after `kill -9`; the same command goes on. Files
    that are open for writing or change meanwhile are left as they were, and reported.

    \b
        waystage restripe /scratch/run42 --suggest -o layouts.yaml
        waystage restripe /scratch/run42 --layout layouts.yaml
        waystage restripe /scratch/run42 --layout stripes=8,stripe_size=4Mi --dry-run
        waystage restripe /gfarm/data --replicas 2 --hosts node1,node2

    Exit status 8: some files were left as they were; the same command tries them again.
    """
    asked = [
        name
        for name, given in (("--layout", layout), ("--suggest", suggesting), ("--replicas", replicas))
        if given
    ]
    if len(asked) != 1:
        raise UserError(
            f"give one of --layout, --suggest and --replicas{': not ' + ' with '.join(asked) if asked else ''}",
            ExitCode.USAGE,
        )
    if from_storage and not verify:
        raise UserError("--from-storage needs --verify", ExitCode.USAGE)
    if hosts is not None and replicas is None:
        raise UserError("--hosts needs --replicas", ExitCode.USAGE)
    if suggesting:
        _suggest(tree, catalog, exclude, shape, profile, targets, to, output)
        return None
    if replicas is not None:
        return _replicate(tree, replicas, hosts, exclude, dry_run, output)
    from waystage.native_options.restripes import RestripeOptions
    from waystage.restripe import parse_layouts

    classes = parse_layouts(layout or "")
    if catalog is not None:
        _check_catalog(catalog, tree)
    options = RestripeOptions(
        classes=classes,
        workers=workers or min(32, 4 * len(os.sched_getaffinity(0))),
        exclude=[os.fsencode(pattern) for pattern in exclude],
        one_file_system=one_file_system,
        verify=("storage" if from_storage else "cached") if verify else "none",
        sync=not no_sync,
        rate_bytes_per_s=rate,
        dry_run=dry_run,
    )
    return _restripe(tree, options, classes, catalog, output)


def _restripe(
    tree: Path, options: Any, classes: Sequence[SizeClass], catalog: Path | None, output: Output
) -> int:
    from waystage._native import TreeRestripe

    began = time.monotonic()
    with TreeRestripe(tree, options) as running:
        with output.progress() as progress:
            with reported(running, FlowDescription("io", "restripe", source=storage(tree))):
                _follow(running, progress, options.dry_run)
            if catalog is not None and not options.dry_run and running.progress()["files"]:
                from waystage.catalog import refresh

                refresh(catalog, progress=progress, trust_directories=True)
        _say(running, tree, classes, time.monotonic() - began, options.dry_run, output)
        return ExitCode.OK if running.complete else ExitCode.PARTIAL


def _follow(running: TreeRestripe, progress: Progress, dry_run: bool) -> None:
    began = time.monotonic()

    def report(counts: dict[str, int]) -> None:
        done = counts["files"] + counts["same"]
        word = "would restripe" if dry_run else "restriped"
        rate = "" if dry_run else f", {size_text(counts['bytes'] / max(time.monotonic() - began, 1e-9))}/s"
        share = min(done / max(counts["found"], 1), 0.99)
        progress(f"{word} {counts['files']:,} files, {size_text(counts['bytes'])}{rate}", share)

    follow(running, report)


def _say(
    running: TreeRestripe,
    tree: Path,
    classes: Sequence[SizeClass],
    seconds: float,
    dry_run: bool,
    output: Output,
) -> None:
    from waystage.display import display, named
    from waystage.restripe import layout_text

    counts, problems = running.progress(), running.problems()
    planned = running.planned()
    value: dict[str, Any] = {
        "tree": str(tree),
        "complete": running.complete,
        "dry_run": dry_run,
        "seconds": round(seconds, 3),
        "classes": [{"most_bytes": c.most_bytes, "layout": layout_text(c.parts)} for c in classes],
        "counts": counts,
        "problems": [named(path) | {"kind": kind, "text": text} for path, kind, text in problems],
    }
    if dry_run:
        value["planned"] = [named(path) | {"bytes": size} for path, _, size in planned]
    words = dict(PARTS) | ({"files": "files to restripe"} if dry_run else {})
    done = [f"{counts[key]:,} {words[key]}" for key, _ in PARTS if counts[key]]
    text = f"{size_text(counts['bytes'])} in {seconds:.1f} s: {', '.join(done) or 'no file was found'}"
    for kind in ("errors", "changed", "lost"):
        if counts[kind]:
            text += f"; {counts[kind]:,} {kind}"
    listing = [f"{size_text(size):>9}  {display(path)}" for path, _, size in planned[:SHOWN]]
    if len(planned) > SHOWN:
        listing.append(f"... and {len(planned) - SHOWN:,} more: --json lists them")
    output.result(value, "\n".join([*listing, text]))
    if not output.json:
        for path, kind, why in problems[:SHOWN]:
            output.note(f"{display(path) or '.'}: {kind}: {why}")
        if len(problems) > SHOWN:
            output.note(f"... and {len(problems) - SHOWN:,} more: --json lists them")


def _check_catalog(catalog: Path, tree: Path) -> None:
    from waystage.catalog import Catalog

    root = Catalog(catalog).root
    if not tree.resolve().is_relative_to(root):
        raise UserError(
            f"{catalog} is a catalog of {root}, which does not contain {tree}", ExitCode.BAD_INPUT
        )


def _suggest(
    tree: Path,
    catalog: Path | None,
    exclude: Sequence[str],
    shape: str,
    profile: Path | None,
    targets: int | None,
    to: Path | None,
    output: Output,
) -> None:
    from waystage.restripe import save_classes, suggest
    from waystage.restripe.suggest import described

    model = _model(shape, profile, targets)
    with output.progress() as progress:
        from waystage.restripe.sizes import sizes_of

        sizes = sizes_of(catalog or tree, exclude, progress)
        found = suggest(sizes, model)
    rows = [described(one) for one in found]
    lines = [f"{model.targets} targets, {model.origin}"]
    for one, row in zip(found, rows, strict=True):
        most = one.size_class.most_bytes
        up_to = "larger" if most is None else f"up to {size_text(most)}"
        lines += [
            f"{up_to}: {one.files:,} files, {size_text(one.bytes)}: {row['layout']}",
            f"    {one.reason}",
        ]
    if to is not None:
        save_classes(to, [(one.size_class, one.reason) for one in found])
        lines.append(f"written: waystage restripe {tree} --layout {to}")
    else:
        lines.append("to use it: add -o layouts.yaml, then waystage restripe TREE --layout layouts.yaml")
    value = {"tree": str(tree), "model": {"targets": model.targets, "origin": model.origin}, "classes": rows}
    output.result(value | {"file": None if to is None else str(to)}, "\n".join(lines))


def _model(shape: str, profile: Path | None, targets: int | None) -> StorageModel:
    from waystage.restripe import StorageModel
    from waystage.worlds.lab.pfs import load

    of = load(shape).targets
    slowdown: Sequence[tuple[float, float]] = of.slowdown
    origin = f"rates and slowdown of the shape {shape}"
    if profile is not None:
        from waystage.loader.profile import Profile

        slowdown = [(float(x), g) for x, g in Profile.load(profile).points] or slowdown
        origin = f"slowdown measured in {profile}, rates of the shape {shape}"
    return StorageModel(
        targets=targets or of.count,
        read_bytes_per_s=float(of.read_per_s),
        latency_s=of.latency_ms / 1e3,
        slowdown=slowdown,
        origin=origin,
    )


def _replicate(
    tree: Path, replicas: int, hosts: str | None, exclude: Sequence[str], dry_run: bool, output: Output
) -> int:
    from waystage.restripe.replicas import place_replicas

    if exclude:
        raise UserError("--exclude is not for --replicas: name the directories one by one", ExitCode.USAGE)
    names = [host.strip() for host in (hosts or "").split(",") if host.strip()]
    with output.progress() as progress:
        placed = place_replicas(tree, replicas, names, dry_run=dry_run, progress=progress)
    rows = [{"host": host, "files": files} for host, files in sorted(placed.by_host.items())]
    word = "has" if placed.files == 1 else "have"
    text = (
        f"{placed.enough:,} of {placed.files:,} files {word} {replicas} replicas"
        + (f" on {', '.join(names)}" if names else "")
        + (f"; {placed.to_place:,} files would get more" if dry_run else "")
    )
    output.result(
        {
            "tree": str(tree),
            "replicas": replicas,
            "hosts": names,
            "dry_run": dry_run,
            "files": placed.files,
            "enough": placed.enough,
            "to_place": placed.to_place,
            "by_host": placed.by_host,
            "problems": placed.problems,
        },
        "\n".join([text, table(rows, ["host", "files"])] if rows else [text]),
    )
    if not output.json:
        for problem in placed.problems[:SHOWN]:
            output.note(problem)
    return ExitCode.OK if dry_run or placed.enough == placed.files else ExitCode.PARTIAL
