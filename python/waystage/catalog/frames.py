"""A catalog as Python programs and notebooks use it: a sequence of entries, selections, data frames.

Arrives: a catalog and predicates like those of find(1).
Leaves: entries; tables of Arrow, pandas, Polars or DuckDB, with paths as text beside their exact bytes.
Must not know: how catalogs are stored.
"""

from __future__ import annotations

import html
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from waystage.catalog import store
from waystage.catalog.build import AS_USUAL, build, refresh
from waystage.catalog.check import Entry, entries_of
from waystage.catalog.errors import CatalogError
from waystage.catalog.options import BuildOptions
from waystage.catalog.query import Filter, select, totals
from waystage.catalog.schema import ENTRIES
from waystage.catalog.sql import relation, sql
from waystage.catalog.store import paths_of, text_of
from waystage.display import display
from waystage.task import Progress

if TYPE_CHECKING:
    import duckdb
    import pandas
    import polars

SHOWN = 10
"""Entries in the table that a notebook shows."""


class Selection:
    """The entries of a catalog that match all predicates. Each use scans the catalog again, piece by piece."""

    def __init__(self, catalog: store.Catalog, which: Filter) -> None:
        self._catalog = catalog
        self._which = which

    def __len__(self) -> int:
        """Number of entries."""
        return self.totals()["entries"]

    def __iter__(self) -> Iterator[Entry]:
        """Entries in the catalog's order, in bounded memory."""
        for table in select(self._catalog, self._which):
            yield from entries_of(table)

    def totals(self) -> dict[str, int]:
        """`entries`, and the `bytes` and `allocated_bytes` of regular files, each file once."""
        return totals(self._catalog, self._which)

    def to_arrow(self, columns: list[str] | None = None) -> pa.Table:
        """The selected entries in memory, shape (entries, columns).

        `columns` are those of docs/reference/catalog.md, and `path`: the path below the root as text, in which bytes
        that are not UTF-8 are backslash sequences. The default is `path` and all others. Raises CatalogError for an
        unknown column, and where the catalog is damaged.
        """
        known = ["path", *ENTRIES.names]
        names = known if columns is None else columns
        for name in names:
            if name not in known:
                raise CatalogError(f"a catalog has no column {name!r}: choose from {', '.join(known)}")
        needed = None if columns is None else sorted({*columns, "directory", "name"} - {"path"})
        tables = list(select(self._catalog, self._which, needed))
        table = pa.concat_tables(tables).unify_dictionaries() if tables else ENTRIES.empty_table()
        if "path" in names:
            table = table.append_column("path", text_of(paths_of(table)))
        table = table.select(names)
        if "directory" in names:
            # Neither pandas nor Polars has dictionaries of bytes.
            place = names.index("directory")
            table = table.set_column(place, "directory", table["directory"].cast(pa.binary()))
        return table

    def to_pandas(self, columns: list[str] | None = None) -> pandas.DataFrame:
        """As `to_arrow`, for pandas. Raises ImportError where pandas is not installed."""
        return self.to_arrow(columns).to_pandas()

    def polars(self, columns: list[str] | None = None) -> polars.DataFrame:
        """As `to_arrow`, for Polars. Raises ImportError where Polars is not installed."""
        import polars

        frame = polars.from_arrow(self.to_arrow(columns))
        assert isinstance(frame, polars.DataFrame)
        return frame

    def duckdb(self) -> duckdb.DuckDBPyRelation:
        """The selected entries as a relation of DuckDB, with the columns of `to_arrow`.

        Raises DuckdbMissing where DuckDB is not installed.
        """
        found: duckdb.DuckDBPyRelation = relation(self.to_arrow())
        return found

    def __repr__(self) -> str:
        found = self.totals()
        return f"<{found['entries']:,} entries, {found['bytes']:,} bytes, of {self._catalog!r}>"

    def _repr_html_(self) -> str:
        """A table of the first entries, for notebooks. Names are escaped."""
        first: list[Entry] = []
        for entry in self:
            if len(first) == SHOWN:
                break
            first.append(entry)
        rows = "".join(
            f"<tr><td>{html.escape(display(entry.path))}</td><td>{entry.type}</td>"
            f"<td style='text-align:right'>{entry.size:,}</td></tr>"
            for entry in first
        )
        head = "<tr><th>path</th><th>type</th><th>bytes</th></tr>"
        return f"<p>{html.escape(repr(self))}</p><table>{head}{rows}</table>"


class Catalog(store.Catalog):
    """A catalog, opened for reading: `Catalog("project.catalog")`.

    It has a length and yields its entries; `query` selects some; `sql` asks DuckDB. Raises CatalogError where `path` is
    no catalog or is damaged.
    """

    @classmethod
    def build(
        cls,
        tree: str | os.PathLike[str],
        path: str | os.PathLike[str],
        options: BuildOptions = AS_USUAL,
        progress: Progress | None = None,
    ) -> Catalog:
        """Walk `tree` and write its catalog at `path`; an interrupted build of the same tree is resumed.

        `progress` receives a text and the share done, 0 to 1. Raises BuildError where the tree cannot be read or the
        catalog not be written, CatalogError where something else is at `path`.
        """
        build(Path(tree), Path(path), options, progress)
        return cls(path)

    def refresh(self, progress: Progress | None = None) -> Catalog:
        """Walk the tree again and bring the catalog on disk up to date; returns the new version, and this one stays.

        Raises BuildError, CatalogError.
        """
        refresh(self.path, progress=progress)
        return Catalog(self.path)

    def __len__(self) -> int:
        """Number of entries: files, directories, links and others."""
        return self.rows

    def __bool__(self) -> bool:
        """A catalog without entries is a catalog."""
        return True

    def __iter__(self) -> Iterator[Entry]:
        """All entries, in bounded memory."""
        return iter(self._all())

    def query(
        self,
        *,
        name: str | bytes | None = None,
        path: str | bytes | None = None,
        types: str = "",
        size: str | int | None = None,
        age: str | None = None,
        uid: int | None = None,
        gid: int | None = None,
        links: str | int | None = None,
        target: int | None = None,
    ) -> Selection:
        """The entries for which every given predicate holds, as with `waystage catalog query`.

        `name` and `path` are shell patterns of the name, or of the path below the root, where `*` matches slashes.
        `types` has letters of f, d, l, b, c, p, s. `size` is find's: `"+10M"`, `"-4k"`, or a number of bytes; `age`, of
        the last change of content, is `"+30d"` or `"-2h"`. `uid`, `gid`: numbers of user and group. `links`: number of
        hard links. `target`: files with an object on this storage target. Raises CatalogError for a predicate that
        cannot be read.
        """
        if not set(types) <= set("fdlbcps"):
            raise CatalogError(f"types is {types!r}: give letters of f, d, l, b, c, p, s")
        which = Filter(
            name=_pattern(name),
            path=_pattern(path),
            types=types,
            size=None if size is None else str(size),
            age=age,
            uid=uid,
            gid=gid,
            links=None if links is None else str(links),
            target=target,
        )
        which.expression()  # raises here and not at the first use
        return Selection(self, which)

    def sql(self, query: str) -> pa.Table:
        """The answer of DuckDB to a query on the views `entries` and `directories`.

        Raises DuckdbMissing, or CatalogError where DuckDB refuses the query.
        """
        return sql(self, query)

    def totals(self) -> dict[str, int]:
        """`entries`, and the `bytes` and `allocated_bytes` of regular files, each file once."""
        return self._all().totals()

    def to_arrow(self, columns: list[str] | None = None) -> pa.Table:
        """All entries: see `Selection.to_arrow`."""
        return self._all().to_arrow(columns)

    def to_pandas(self, columns: list[str] | None = None) -> pandas.DataFrame:
        """All entries: see `Selection.to_pandas`."""
        return self._all().to_pandas(columns)

    def polars(self, columns: list[str] | None = None) -> polars.DataFrame:
        """All entries: see `Selection.polars`."""
        return self._all().polars(columns)

    def duckdb(self) -> duckdb.DuckDBPyRelation:
        """All entries: see `Selection.duckdb`."""
        return self._all().duckdb()

    def __repr__(self) -> str:
        return f"<Catalog {display(str(self.path))} of {display(self.manifest.root)}, {self.rows:,} entries>"

    def _repr_html_(self) -> str:
        return self._all()._repr_html_()

    def _all(self) -> Selection:
        return Selection(self, Filter())


def _pattern(text: str | bytes | None) -> bytes | None:
    return None if text is None else os.fsencode(text)
