"""The tree of a catalog as a file system of fsspec that is only read: `waystage-catalog://PATH`, with `catalog=...`.

Arrives: a catalog; paths below the root of its tree.
Leaves: entries by the catalog, without a walk; open files, which are compared with it.
Must not know: how catalogs are stored.
"""

from __future__ import annotations

import errno
import os
import warnings
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from fsspec.spec import AbstractFileSystem

from waystage.catalog import Catalog, CheckedOpener, Entry, entries_of
from waystage.catalog.check import ENTRY_COLUMNS
from waystage.catalog.query import Filter, select
from waystage.filesystems.entries import fsspec_info


class CatalogFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """A catalogued tree, as `fsspec.filesystem("waystage-catalog", catalog="project.catalog")`.

    Paths are below the root of the tree. Listings come from the catalog, as old as it is, and touch no directory; the
    catalog is read at the first of them and held in memory, about 100 bytes for an entry. A file that is opened is
    compared with its entry: where it has changed since, `stale="warn"` warns and opens it as it is now, `"error"`
    raises OSError, `"ignore"` says nothing. Raises CatalogError where `catalog` is none.
    """

    protocol = "waystage-catalog"

    def __init__(self, catalog: str | os.PathLike[str], stale: str = "warn", **storage_options: Any) -> None:
        super().__init__(**storage_options)
        if stale not in ("warn", "error", "ignore"):
            raise ValueError(f"stale={stale!r}: give warn, error or ignore")
        self._catalog, self._stale = Catalog(catalog), stale

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        return os.fspath(path).removeprefix("waystage-catalog://").strip("/")

    @cached_property
    def _table(self) -> pa.Table:
        tables = list(select(self._catalog, Filter(), [*ENTRY_COLUMNS, "mode", "uid", "gid"]))
        if not tables:
            return None
        return pa.concat_tables(tables).unify_dictionaries()

    @cached_property
    def _opener(self) -> CheckedOpener:
        return CheckedOpener(self._catalog)

    def _rows(self, directory: str, name: str | None = None) -> pa.Table | None:
        table = self._table
        if table is None:
            return None
        found = pc.equal(table["directory"], pa.scalar(os.fsencode(directory), pa.binary()))
        if name is not None:
            found = pc.and_(found, pc.equal(table["name"], os.fsencode(name)))
        return table.filter(found)

    def _one(self, path: str) -> pa.Table:
        directory, _, name = path.rpartition("/")
        rows = self._rows(directory, name)
        if rows is None or rows.num_rows == 0:
            raise FileNotFoundError(errno.ENOENT, f"not in {self._catalog.path}", path)
        return rows.slice(0, 1)

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> Any:
        """Entries of a directory, of any other entry only itself: their paths, or with `detail` their attributes.

        `size` in bytes, `mtime` in s since 1970, `type` of `file`, `directory`, `link` and `other`, `mode`, `uid`,
        `gid`. Raises FileNotFoundError for what the catalog lacks.
        """
        path = self._strip_protocol(path)
        about = self.info(path)
        rows = self._rows(path) if about["type"] == "directory" else None
        found = [about] if about["type"] != "directory" else _about(rows)
        found.sort(key=lambda each: str(each["name"]))
        return found if detail else [each["name"] for each in found]

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        """Attributes of an entry, as in `ls`. Raises FileNotFoundError for what the catalog lacks."""
        path = self._strip_protocol(path)
        if not path:
            return {"name": "", "size": 0, "type": "directory"}
        return _about(self._one(path))[0]

    def modified(self, path: str) -> datetime:
        """When the content of an entry changed, by the catalog, UTC."""
        return datetime.fromtimestamp(self.info(path)["mtime"], UTC)

    def entry(self, path: str) -> Entry:
        """The catalog's entry with its layout. Raises FileNotFoundError."""
        return next(entries_of(self._one(self._strip_protocol(path))))

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        if mode != "rb":
            raise OSError(errno.EROFS, "a catalogued tree is only read", path)
        entry = self.entry(path)
        if entry.type == "d":
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        checked = self._opener.open(entry)
        if checked.differences and self._stale != "ignore":
            text = f"{path} is not as {self._catalog.path} has it ({', '.join(checked.differences)}): refresh the catalog"
            if self._stale == "error":
                checked.file.close()
                raise OSError(errno.ESTALE, text, path)
            warnings.warn(text, stacklevel=2)
        return checked.file


def _about(rows: pa.Table | None) -> list[dict[str, Any]]:
    """Entries as fsspec has them."""
    if rows is None:
        return []
    others = [rows[name].to_pylist() for name in ("mode", "uid", "gid")]
    return [
        fsspec_info(os.fsdecode(entry.path), entry.type, entry.size, entry.mtime / 1e9, mode, uid, gid)
        for entry, mode, uid, gid in zip(entries_of(rows), *others, strict=True)
    ]
