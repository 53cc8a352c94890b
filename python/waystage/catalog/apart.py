"""Whether an output would be inside its input.

Arrives: a tree that is read, a place that is to be written.
Leaves: how the one holds the other, by whatever names, links and mounts.
Must not know: what is read and written.

A place is a device and a path within its file system, so that a second mount of a directory is the same place
(mount_namespaces(7), proc_pid_mountinfo(5)).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

ESCAPED = re.compile(rb"\\([0-7]{3})")


@dataclass(frozen=True)
class _Mount:
    device: bytes
    root: bytes
    """The mounted subtree of its file system."""
    at: bytes


Place = tuple[bytes, bytes]
"""A device, and a path in its file system."""


def meeting(source: Path, target: Path) -> str | None:
    """How `target`, which need not exist, and the tree `source` overlap: "is", "is inside" or "contains"; else None."""
    tree, top = os.path.realpath(os.fsencode(source)), os.path.realpath(os.fsencode(target))
    mounts = _mounts()
    (tree_place, *below_tree), (top_place, *below_top) = _places(tree, mounts), _places(top, mounts)
    if tree_place == top_place or same_entry(tree, top):
        return "is"
    if any(_within(top_place, place) for place in (tree_place, *below_tree)) or _has_above(top, tree):
        return "is inside"
    if any(_within(tree_place, place) for place in (top_place, *below_top)) or _has_above(tree, top):
        return "contains"
    return None


def _places(path: bytes, mounts: list[_Mount]) -> list[Place]:
    """Where `path` is, and which mounts are below it."""
    own = b"/", b"", b"/"
    for mount in mounts:
        # The last one at a place hides those before.
        if _below(path, mount.at) and len(mount.at) >= len(own[2]):
            own = mount.device, mount.root, mount.at
    device, root, at = own
    places = [(device, _join(root, os.path.relpath(path, at)))]
    return places + [(m.device, m.root) for m in mounts if m.at != path and _below(m.at, path)]


def _join(root: bytes, relative: bytes) -> bytes:
    return os.path.normpath(os.path.join(root or b"/", relative))


def _within(place: Place, other: Place) -> bool:
    return place[0] == other[0] and _below(place[1], other[1])


def _below(path: bytes, top: bytes) -> bool:
    return path == top or path.startswith(top.rstrip(b"/") + b"/")


def same_entry(one: str | bytes | Path, other: str | bytes | Path) -> bool:
    """Whether both exist and are the same file or directory."""
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


def _has_above(path: bytes, directory: bytes) -> bool:
    """Whether a directory above `path` is `directory`: for file systems whose mount table is inconclusive, such as
    overlays."""
    while (above := os.path.dirname(path)) != path:
        if same_entry(above, directory):
            return True
        path = above
    return False


def _mounts() -> list[_Mount]:
    try:
        lines = Path("/proc/self/mountinfo").read_bytes().splitlines()
    except OSError:
        return []
    fields = [line.split(b" ") for line in lines]
    return [_Mount(f[2], _plain(f[3]), _plain(f[4])) for f in fields if len(f) > 5]


def _plain(text: bytes) -> bytes:
    return ESCAPED.sub(lambda found: bytes([int(found[1], 8)]), text)
