"""SQL on a catalog, by DuckDB where it is installed.

Arrives: a catalog and a query that names the views `entries` and `directories`.
Leaves: a table.
Must not know: anything of SQL.
"""

from __future__ import annotations

import importlib
from typing import Any

import pyarrow as pa

from waystage.catalog.errors import CatalogError, DuckdbMissing
from waystage.catalog.store import Catalog

VIEWS = r"""
CREATE TEMP MACRO text_of(bytes) AS COALESCE(TRY(decode(bytes)), bytes::VARCHAR);
CREATE TEMP VIEW entries AS SELECT
  text_of(CASE WHEN octet_length(directory) = 0 THEN name ELSE directory || '/'::BLOB || name END) AS path, *
  FROM (SELECT * REPLACE (directory::BLOB AS directory) FROM stored_entries);
CREATE TEMP VIEW directories AS SELECT text_of(path) AS path, path AS path_bytes, * EXCLUDE (path) FROM stored_directories;
"""
"""Paths as text, in both views; bytes that are not UTF-8 are backslash sequences there. `name`, `directory` and
`path_bytes` are the exact bytes."""


def sql(catalog: Catalog, query: str) -> pa.Table:
    """The answer to `query`; nothing outside the catalog can be read or written by it.

    Raises DuckdbMissing, or CatalogError where DuckDB refuses the query.
    """
    duckdb = _duckdb()
    connection = duckdb.connect()
    try:
        connection.register("stored_entries", catalog.dataset())
        connection.register("stored_directories", catalog.directories())
        connection.execute(VIEWS)
        connection.execute("SET enable_external_access = false; SET lock_configuration = true")
        found = connection.sql(query)
        if found is None:
            raise CatalogError("SQL: the statement has no answer: ask with SELECT")
        # DuckDB 1.x has the older name alone, 2.x warns of it.
        fetch = getattr(found, "to_arrow_table", None) or found.fetch_arrow_table
        answer: pa.Table = fetch()
        return answer
    except duckdb.Error as error:
        raise CatalogError(f"SQL: {str(error).splitlines()[0]}") from None
    finally:
        connection.close()


def relation(table: pa.Table) -> Any:
    """A table as a relation of DuckDB, in a connection that lives as long as the relation. Raises DuckdbMissing."""
    return _duckdb().connect().from_arrow(table)


def _duckdb() -> Any:
    try:
        return importlib.import_module("duckdb")
    except ImportError:
        raise DuckdbMissing("SQL needs DuckDB: install it with 'pip install duckdb'") from None
