"""The names below a source, from a catalog instead of a walk.

Arrives: a catalog, the directory to copy.
Leaves: a list of names that is complete now: only directories that changed since the catalog was made are read again.
Must not know: how files are copied.

The entries of a directory cannot have changed while its inode, mtime and ctime are those in the catalog, except for a
change within the resolution of its times; a directory that had changed shortly before the catalog read it is therefore
read again. The contents of files do not matter here: the copy compares each file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DOUBTFUL_NS = 2_000_000_000
"""As `waystage.catalog.kept.DOUBTFUL_S`."""


class NoListing(Exception):
    """The catalog cannot be used; the message says why, for `stage status --explain`."""


@dataclass(frozen=True)
class Listed:
    """Names each ended by a NUL; how many directories there are, and how many were read again."""

    names: bytes
    count: int
    directories: int
    read_again: int
    objects: tuple[bytes, bytes, bytes, bytes] | None = None
    """The storage targets of the names, as `NameList` takes them, where there are several."""


def listed(catalog: str, source: str) -> Listed:
    """The entries below `source`. Raises NoListing."""
    try:
        import pyarrow as pa
        import pyarrow.compute as pc

        from waystage.catalog import Catalog, CatalogError
        from waystage.catalog.store import paths_of
        from waystage.catalog.targets import Targets
    except (ImportError, OSError) as error:
        raise NoListing(f"the reader of catalogs cannot be loaded: {error}") from None
    try:
        opened = Catalog(Path(catalog))
        below = _below(str(opened.root), source)
        directories = opened.directories()
        known = _unchanged(directories, source, below, int(opened.manifest.started * 1e9))
        if opened.manifest.exclude or opened.manifest.one_file_system:
            raise NoListing("it was built with --exclude or --one-file-system, and lacks entries")
        names: list[bytes] = []
        targets = Targets()
        used: set[bytes] = set()
        empty = {path for path, same in known.items() if same and path}
        changed = [path for path, same in known.items() if not same]
        kept = pa.array([_joined(below, path) for path, same in known.items() if same], pa.binary())
        for batch in opened.batches(["directory", "name", "type", "objects"]):
            table = pa.Table.from_batches([batch])
            table = table.filter(pc.is_in(table["directory"].cast(pa.binary()), kept))
            listed_rows: list[bool] = []
            for path, kind in zip(
                paths_of(table).to_pylist(), table["type"].cast(pa.string()).to_pylist(), strict=True
            ):
                name = _relative(path, below)
                used.add(os.path.dirname(name))
                # A directory that the catalog could not read, or hides from this user, is walked by the copy.
                listed_rows.append(kind != "d" or name not in known)
                if listed_rows[-1]:
                    names.append(name)
            targets.add(table.filter(pa.array(listed_rows, pa.bool_())))
        from_catalog = len(names)
        for folder in changed:
            for name, is_directory in _entries(source, folder):
                used.add(folder)
                if not is_directory or name not in known:
                    # A directory that the catalog does not know is walked by the copy.
                    names.append(name)
        # A directory without entries is a name itself.
        names += [path for path in (*empty, *changed) if path and path not in used]
        targets.without(len(names) - from_catalog)
    except (CatalogError, OSError, ValueError) as error:
        raise NoListing(str(error)) from None
    if not names:
        raise NoListing("it has no entry below the source")
    text = b"".join(name + b"\0" for name in names)
    return Listed(text, len(names), len(known), len(changed), targets.objects())


def _below(root: str, source: str) -> bytes:
    top, real = os.fsencode(os.path.realpath(root)), os.fsencode(os.path.realpath(source))
    if real == top:
        return b""
    if not real.startswith(top.rstrip(b"/") + b"/"):
        raise NoListing(f"it is of {root}, which does not contain the source")
    return real[len(top.rstrip(b"/")) + 1 :]


def _joined(below: bytes, path: bytes) -> bytes:
    return b"/".join(part for part in (below, path) if part)


def _relative(path: bytes, below: bytes) -> bytes:
    return path[len(below) + 1 :] if below else path


def _unchanged(directories: object, source: str, below: bytes, started_ns: int) -> dict[bytes, bool]:
    """Directories that exist, by path below the source, and whether the entries of each are as in the catalog."""
    import pyarrow as pa

    assert isinstance(directories, pa.Table)
    root = os.fsencode(source)
    columns = [
        directories["path"].to_pylist(),
        *_numbers(directories, "inode", "mtime", "ctime", "rows", "total"),
    ]
    states = directories["state"].to_pylist()
    found: dict[bytes, bool] = {}
    prefix = below + b"/" if below else b""
    for path, inode, mtime, ctime, rows, total, state in zip(*columns, states, strict=True):
        if below and path != below and not path.startswith(prefix):
            continue
        name = b"" if path == below else path[len(prefix) :]
        try:
            now = os.lstat(os.path.join(root, name) if name else root)
        except FileNotFoundError:
            continue
        same = (now.st_ino, now.st_mtime_ns, now.st_ctime_ns) == (inode, mtime, ctime)
        sure = state == 0 and rows == total and ctime < started_ns - DOUBTFUL_NS and name not in found
        found[name] = same and sure
    if b"" not in found:
        raise NoListing("it does not have the source directory")
    return found


def _numbers(table: object, *names: str) -> Iterator[list[int]]:
    import pyarrow as pa

    assert isinstance(table, pa.Table)
    for name in names:
        yield table[name].cast(pa.int64()).to_pylist()


def _entries(source: str, folder: bytes) -> Iterator[tuple[bytes, bool]]:
    with os.scandir(os.path.join(os.fsencode(source), folder)) as entries:
        for entry in entries:
            if folder == b"" and entry.name.startswith(b".waystage-copy"):
                continue
            yield os.path.join(folder, entry.name), entry.is_dir(follow_symlinks=False)
