"""An entry as fsspec's callers expect it.

Arrives: attributes of an entry.
Leaves: the mapping that `info` and `ls` give.
Must not know: where the attributes come from.
"""

from __future__ import annotations

from typing import Any

TYPES = {"f": "file", "d": "directory", "l": "link"}


def fsspec_info(
    name: str, letter: str, size: int, mtime_s: float, mode: int, uid: int, gid: int
) -> dict[str, Any]:
    """`name`: the path in the file system; `letter`: its type as in a catalog; `mtime_s`: s since 1970."""
    return {
        "name": name,
        "size": size,
        "type": TYPES.get(letter, "other"),
        "mtime": mtime_s,
        "mode": mode,
        "uid": uid,
        "gid": gid,
        "islink": letter == "l",
    }
