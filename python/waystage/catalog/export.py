"""A catalog in formats of other tools.

Arrives: entries, piece by piece.
Leaves: lines as bytes: CSV, JSON lines, or the text listing that mpiFileUtils' dwalk writes.
Must not know: where lines go.

A path that is no UTF-8 or holds a line break stays one field of one line: in CSV and JSON lines as the same
backslash sequences as on a terminal, besides its exact bytes in base 64 as `path_base64`, which is null otherwise.
"""

from __future__ import annotations

import csv
import io
import json
import stat
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from waystage.catalog.errors import CatalogError
from waystage.catalog.schema import TIMES, exact_times
from waystage.catalog.store import paths_of
from waystage.display import display, named

FORMATS = ("csv", "jsonl", "mfu")
FIELDS = (
    "path", "path_base64", "type", "size", "mtime_ns", "ctime_ns", "atime_ns", "mode", "uid", "gid", "inode",
    "device", "links", "blocks", "symlink", "layout", "stripe_size", "targets",
)  # fmt: skip
TYPE_BITS = {
    "f": stat.S_IFREG, "d": stat.S_IFDIR, "l": stat.S_IFLNK, "b": stat.S_IFBLK, "c": stat.S_IFCHR,
    "p": stat.S_IFIFO, "s": stat.S_IFSOCK, "?": 0,
}  # fmt: skip


def export(tables: Iterator[pa.Table], form: str) -> Iterator[bytes]:
    """Lines of the format, some thousand entries at a time. Raises CatalogError for an unknown format."""
    if form == "csv":
        yield (",".join(FIELDS) + "\n").encode()
    elif form not in FORMATS:
        raise CatalogError(f"there is no format {form!r}: choose one of {', '.join(FORMATS)}")
    for table in tables:
        for start in range(0, table.num_rows, 8192):
            piece = table.slice(start, 8192)
            if form == "mfu":
                yield _listing(piece)
            elif form == "csv":
                yield _csv(piece)
            else:
                yield "".join(json.dumps(row) + "\n" for row in rows(piece)).encode()


def rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Entries as plain values, for answers that are read one by one."""
    paths = paths_of(table).to_pylist()
    times = {name: exact_times(table, name) for name in TIMES}
    plain = {
        name: table[name].to_pylist()
        for name in (
            "type", "size", "mode", "uid", "gid", "inode", "device", "links", "blocks", "symlink", "layout",
            "stripe_size", "objects",
        )
    }  # fmt: skip
    for index, path in enumerate(paths):
        symlink, objects = plain["symlink"][index], plain["objects"][index]
        yield {
            **named(path),
            **{name: plain[name][index] for name in ("type", "size")},
            **{f"{name}_ns": values[index] for name, values in times.items()},
            **{
                name: plain[name][index]
                for name in ("mode", "uid", "gid", "inode", "device", "links", "blocks")
            },
            "symlink": None if symlink is None else display(symlink),
            **{name: plain[name][index] for name in ("layout", "stripe_size")},
            "targets": None if objects is None else [o["target"] for o in objects],
        }


def _csv(table: pa.Table) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in rows(table):
        targets = row["targets"]
        row["targets"] = None if targets is None else " ".join(map(str, targets))
        writer.writerow([row[field] for field in FIELDS])
    return text.getvalue().encode()


def _date(seconds: int) -> str:
    try:
        return time.strftime("%b %e %Y %H:%M", time.gmtime(seconds))
    except (OverflowError, OSError, ValueError):
        return f"@{seconds}"  # as date(1) writes a time by its seconds; its year has no room


def _listing(table: pa.Table) -> bytes:
    """Mode, owner, group, size, date and path, as `dwalk --text` prints them."""
    lines = []
    for row in rows(table):
        mode = stat.filemode(TYPE_BITS[row["type"]] | row["mode"])
        size, unit = float(row["size"]), "B"
        for larger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
            if size < 1024:
                break
            size, unit = size / 1024, larger
        when = _date(row["mtime_ns"] // 10**9)
        lines.append(f"{mode} {row['uid']:>8} {row['gid']:>8} {size:>10.3f} {unit:>3} {when} {row['path']}\n")
    return "".join(lines).encode()
