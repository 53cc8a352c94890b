"""The name of the file system that a path is on, the same on every node that mounts it.

Arrives: a path, the mount table (proc(5), /proc/self/mountinfo).
Leaves: a name such as `lustre 10.0.0.1@tcp:/scratch`.
Must not know: what it is used for.
"""

from __future__ import annotations

import os
from pathlib import Path

MOUNTINFO = Path("/proc/self/mountinfo")
LONGEST = 200


def storage_of(path: bytes, table: str | None = None) -> str:
    """Type and source of the mount with the longest mount point above `path`; empty where there is none."""
    text = os.fsdecode(path)
    if table is None:
        try:
            table = MOUNTINFO.read_text(encoding="utf-8", errors="surrogateescape")
            text = os.path.realpath(text)
        except OSError:
            return ""
    best, name = "", ""
    for line in table.splitlines():
        before, dash, after = line.partition(" - ")
        fields, rest = before.split(" "), after.split(" ")
        if not dash or len(fields) < 5 or len(rest) < 2:
            continue
        point = _unescaped(fields[4])
        above = point if point.endswith("/") else f"{point}/"
        if f"{text}/".startswith(above) and len(point) >= len(best):
            best, name = point, f"{rest[0]} {_unescaped(rest[1])}"
    return "".join(c if c.isprintable() and c.isascii() else "?" for c in name)[:LONGEST]


def _unescaped(field: str) -> str:
    """Spaces, tabs, newlines and backslashes of a path are octal in the table."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(code, character)
    return field
