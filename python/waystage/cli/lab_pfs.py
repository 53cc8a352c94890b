"""`waystage lab pfs`: mount, inspect and unmount an emulated striped file system.

Arrives: a mount point, a shape, a directory or a number of synthetic files.
Leaves: a mount that stays until `umount`; counters of its servers.
Must not know: how the file system is served.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from waystage.cli.common import ExitCode, Output, UserError, output_options, table

if TYPE_CHECKING:
    from waystage.worlds.lab.pfs import Mounted, Shape

WATCH_S = 0.2

MOST_BYTES = 2**50
"""Limit of a file's size, as in shape files."""

HONEST = "emulated: it shows the effect of access patterns on queues and does not measure Lustre"


def _complete_shape(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from waystage.worlds.lab.pfs import shipped

    names = [CompletionItem(n) for n in shipped() if n.startswith(incomplete)]
    return names or [CompletionItem(incomplete, type="file")]


@click.group()
def pfs() -> None:
    """Mount an emulated striped file system: queueing targets, metadata servers, Lustre's layouts.

    Any program can read it. It emulates queues and service times, not Lustre: use it to compare access patterns, and
    do not quote its times as those of a file system. Needs root and /dev/fuse.
    """


@pfs.command()
@click.argument("point", type=click.Path(path_type=Path, readable=False))
@click.option(
    "--shape",
    "source",
    default="nurion",
    show_default=True,
    shell_complete=_complete_shape,
    help="Shape file, or name of a shipped shape.",
)
@click.option(
    "--folder", type=click.Path(path_type=Path), help="Serve the files of this directory, writable."
)
@click.option("--files", type=click.IntRange(1, 100_000_000), help="Serve N synthetic files, read-only.")
@click.option("--size", help="Size of each synthetic file, e.g. '1 MB' (docs/reference/units.md).")
@click.option(
    "--files-per-directory",
    type=click.IntRange(1, 10_000_000),
    help="Synthetic files per directory.",
)
@click.option(
    "--dilation",
    type=click.FloatRange(0, min_open=True, max=1e6),
    help="Real seconds per emulated second; raise it if this machine is too slow.",
)
@click.option("--pages", type=click.Choice(["kept", "direct"]), help="Whether the client caches pages.")
@click.option(
    "--allow-other", is_flag=True, help="Let every user use it with their own rights, not root alone."
)
@click.option("--foreground", is_flag=True, help="Stay in the foreground until interrupted, then unmount.")
@output_options
def mount(
    point: Path,
    source: str,
    folder: Path | None,
    files: int | None,
    size: str | None,
    files_per_directory: int | None,
    dilation: float | None,
    pages: str | None,
    allow_other: bool,
    foreground: bool,
    output: Output,
) -> None:
    """Mount on POINT, an empty directory, until `waystage lab pfs umount`."""
    if folder is not None and (files or size or files_per_directory):
        raise UserError(
            "--folder serves existing files: omit --files, --size and --files-per-directory", ExitCode.USAGE
        )
    from waystage.worlds.lab import pfs as emulation

    shape = _changed(emulation.load(source), files, size, files_per_directory, dilation, pages)
    made = None
    try:
        with output.progress() as progress:
            progress(f"mounting {shape.name}", 0.0)
            made = emulation.mount(point, shape, folder, shared=allow_other)
            progress("mounted", 1.0)
        output.result(
            _described(made),
            f"{made.point}: {made.serves}, shape {made.shape}, {shape.targets.count} targets, "
            f"{shape.metadata.servers} metadata servers, dilation {shape.dilation:g}\n{HONEST}\n"
            f"try: waystage lab pfs status {made.point}, waystage lab pfs umount {made.point}",
        )
        while foreground and made.state == "serving":
            time.sleep(WATCH_S)
    finally:
        if foreground and made is not None:
            _leave_nothing(made)


@pfs.command()
@click.argument("point", type=click.Path(path_type=Path, readable=False))
@click.option("--force", is_flag=True, help="Unmount also while in use; open files then return errors.")
@output_options
def umount(point: Path, force: bool, output: Output) -> None:
    """Unmount POINT, also if the process of the mount was killed."""
    from waystage.worlds.lab import pfs as emulation

    state = emulation.unmount(point, force=force)
    text = f"{point} is unmounted" + (", its process had died" if state == "stale" else "")
    output.result({"point": str(point), "was": state}, text)


@pfs.command()
@click.argument("point", type=click.Path(path_type=Path, readable=False), required=False)
@click.option("--reset", is_flag=True, help="Reset the counters after showing them.")
@output_options
def status(point: Path | None, reset: bool, output: Output) -> None:
    """Show all mounts, or the counters of the servers of the mount on POINT.

    Times are emulated seconds. Exit status 7 if answers were too late for a valid measurement, 1 if a process died.
    """
    from waystage.worlds.lab import pfs as emulation

    if point is None:
        if reset:
            raise UserError("--reset needs a mount point", ExitCode.USAGE)
        mounts = [_described(made) for made in emulation.mounted()]
        shown = table(mounts, ["point", "state", "shape", "dilation", "serves"])
        output.result({"mounts": mounts}, shown if mounts else "no emulated file system is mounted")
        return
    made = emulation.mounts.find(point)
    if made.state == "stale":
        raise UserError(
            f"{made.point}: its process has died: remove it with `waystage lab pfs umount {made.point}`"
        )
    counted = emulation.statistics(made)
    why = emulation.why_invalid(counted)
    output.result(_described(made) | counted | {"invalid": why}, _shown(made, counted))
    if reset:
        emulation.reset(made)
    if why is not None:
        output.note(f"not valid: {why}")
        click.get_current_context().exit(ExitCode.INVALID)


def _changed(
    shape: Shape,
    files: int | None,
    size: str | None,
    files_per_directory: int | None,
    dilation: float | None,
    pages: str | None,
) -> Shape:
    """The shape with the overrides of the command line."""
    import msgspec

    from waystage.experiment.units import parse_bytes
    from waystage.worlds.lab.pfs.shape import Tree

    changes: dict[str, Any] = {}
    if dilation is not None:
        changes["dilation"] = dilation
    if pages is not None:
        changes["client"] = msgspec.structs.replace(shape.client, pages=pages)
    tree: dict[str, Any] = {}
    if files is not None:
        tree["files"] = files
    if files_per_directory is not None:
        tree["files_per_directory"] = files_per_directory
    if size is not None:
        try:
            parsed = parse_bytes(size)
        except ValueError as error:
            raise UserError(f"--size: {error}", ExitCode.USAGE) from None
        if not 1 <= parsed <= MOST_BYTES:
            raise UserError(f"--size {size}: give 1 byte to 1 PiB, such as '1 MB'", ExitCode.USAGE)
        tree |= {"size": parsed, "sizes": None, "sizes_file": None}
    if tree and shape.tree is not None:
        changes["tree"] = msgspec.structs.replace(shape.tree, **tree)
    elif tree:
        if "files" not in tree or "size" not in tree:
            raise UserError(
                "give --files and --size together: the shape has no synthetic files", ExitCode.USAGE
            )
        changes["tree"] = Tree(**tree)
    return msgspec.structs.replace(shape, **changes)


def _described(made: Mounted) -> dict[str, Any]:
    return {
        "point": made.point,
        "state": made.state,
        "shape": made.shape,
        "dilation": made.dilation,
        "serves": made.serves,
        "pid": made.process.pid,
    }


def _shown(made: Mounted, counted: dict[str, Any]) -> str:
    from waystage.worlds.lab.pfs.validity import late_pct

    targets = [
        {
            "target": t["target"],
            "requests": t["requests"],
            "MB read": round(t["read_bytes"] / 1e6, 1),
            "MB written": round(t["written_bytes"] / 1e6, 1),
            "busy s": round(t["busy_s"], 3),
            "in service": round(t["mean_in_service"], 2),
            "most": t["most_in_service"],
            "waited s": round(t["waited_s"], 3),
        }
        for t in counted["targets"]
    ]
    servers = [
        {key: (round(value, 3) if isinstance(value, float) else value) for key, value in s.items()}
        for s in counted["metadata"]
    ]
    return "\n".join(
        [
            f"{made.point}: {made.serves}, shape {made.shape}; {HONEST}",
            f"{counted['emulated_s']:.3f} s emulated, {counted['answers']} answers, {late_pct(counted):.2f} % late",
            "",
            table(targets, list(targets[0])),
            "",
            table(servers, list(servers[0])),
        ]
    )


def _leave_nothing(made: Mounted) -> None:
    from waystage.worlds.lab import pfs as emulation

    # A second Ctrl-C must not leave the mount behind.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if made.state != "gone":
        emulation.unmount(Path(made.point), force=True)
