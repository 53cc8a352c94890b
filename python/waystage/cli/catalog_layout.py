"""`waystage catalog layout PATH`: show the storage targets of a file.

Arrives: a path, or the layout blob of a file system in hexadecimal.
Leaves: its components and objects, as tables or one JSON object.
Must not know: the formats of layouts.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from waystage.cli.common import ExitCode, Output, UserError, output_options, table


@click.command("layout")
@click.argument("path", required=False, type=click.Path(path_type=Path))
@click.option("--hex", "blob", metavar="BLOB", help="Parse this layout instead of querying a file system.")
@click.option(
    "--kind",
    type=click.Choice(["lustre", "ceph", "gluster", "gfarm", "beegfs", "local"]),
    default="lustre",
    show_default=True,
    help="File system of BLOB.",
)
@click.option(
    "--size", type=click.IntRange(min=0), help="Size of the file in bytes; default: its actual size."
)
@click.option(
    "--shard-size",
    type=click.IntRange(min=1),
    help="With --kind gluster: the volume's features.shard-block-size, in bytes.",
)
@click.option(
    "--mirrors",
    default="best",
    show_default=True,
    metavar="all|best|NUMBER",
    help="Mirrors to list: all, the best at each offset, or a number.",
)
@click.option("--extents", is_flag=True, help="List extents in file order instead of objects.")
@click.option(
    "--limit", type=click.IntRange(min=0), default=100, show_default=True, help="Maximum number of rows."
)
@output_options
def command(
    path: Path | None,
    blob: str | None,
    kind: str,
    size: int | None,
    shard_size: int | None,
    mirrors: str,
    extents: bool,
    limit: int,
    output: Output,
) -> None:
    """Show the storage targets of the file at PATH and the bytes on each.

    Queries Lustre, CephFS, GlusterFS and BeeGFS; on a local file system, the device is the target. For Gfarm, pass the
    output of gfwhere to --hex with --kind gfarm.
    """
    if (path is None) == (blob is None):
        raise click.UsageError("give either a PATH or --hex BLOB")
    number = mirrors.isascii() and mirrors.isdecimal() and int(mirrors) < 2**32
    if not (number or mirrors in ("all", "best")):
        raise click.UsageError(f"--mirrors {mirrors!r} is neither all, best, nor a number")
    if path is not None:
        layout = _of_path(path, mirrors, limit, size)
    else:
        layout = _of_blob(blob or "", kind, size or 0, shard_size, mirrors, limit)
    output.result(_plain(layout), _as_text(layout, extents=extents))


def _of_path(path: Path, mirrors: str, limit: int, size: int | None) -> dict[str, Any]:
    from waystage._native import LayoutError, read_layout

    try:
        layout = read_layout(path, mirrors=mirrors, limit=limit, size=size)
    except LayoutError as error:
        raise UserError(f"{path}: {error}", ExitCode.BAD_INPUT) from None
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}", ExitCode.BAD_INPUT) from None
    if layout is None:
        raise UserError(f"{path}: its file system reports no layout for it", ExitCode.FAILED)
    return layout


def _of_blob(
    blob: str, kind: str, size: int, shard_size: int | None, mirrors: str, limit: int
) -> dict[str, Any]:
    from waystage._native import LayoutError, parse_layout

    try:
        data = bytes.fromhex(blob.removeprefix("0x"))
    except ValueError:
        raise UserError("--hex: not hexadecimal: give pairs of digits 0 to f", ExitCode.BAD_INPUT) from None
    try:
        return parse_layout(kind, data, size, block_size=shard_size, mirrors=mirrors, limit=limit)
    except LayoutError as error:
        raise UserError(f"--hex: {error}", ExitCode.BAD_INPUT) from None
    except OverflowError:
        raise UserError("--size: larger than any file", ExitCode.BAD_INPUT) from None


def _plain(value: Any) -> Any:
    """The same with paths of objects as text; bytes that are not UTF-8 become \\x.."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return value


def _as_text(layout: dict[str, Any], *, extents: bool) -> str:
    about = f"{layout['kind']}, generation {layout['generation']}"
    if layout["template"]:
        about += ": default of new files in this directory"
    components = [
        {
            "mirror": part["mirror"],
            "start": part["start"],
            "end": "eof" if part["end"] is None else part["end"],
            "stripe_size": part["stripe_size"] or "-",
            "stripe_count": part["stripe_count"],
            "pool": part["pool"] or "-",
            "flags": " ".join(part["flags"]) or "-",
        }
        for part in layout["components"]
    ]
    columns = ["mirror", "start", "end", "stripe_size", "stripe_count", "pool", "flags"]
    lines = [about, "", table(components, columns)]
    rows = layout["extents"] if extents else layout["objects"]
    if rows:
        length = "length" if extents else "bytes"
        columns = ["target", "mirror", "object", "offset", "object_offset", length, "flags"]
        shown = [
            {**row, "target": row["target"] or "-", "flags": " ".join(row["flags"]) or "-"} for row in rows
        ]
        lines += ["", table(shown, columns)]
    if extents and layout["extent_count"] > len(rows):
        lines.append(f"and {layout['extent_count'] - len(rows)} more extents: see --limit")
    return os.linesep.join(lines)
