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


def sql(catalog: Catalog, query: str) -> pa.Table:
    """The answer to `query`; nothing outside the catalog can be read or written by it.

    Raises DuckdbMissing, or CatalogError where DuckDB refuses the query.
    """
    try:
        duckdb: Any = importlib.import_module("duckdb")
    except ImportError:
        raise DuckdbMissing("SQL needs DuckDB: install it with 'pip install duckdb'") from None
    connection = duckdb.connect()
    try:
        connection.register("entries", catalog.dataset())
        connection.register("directories", catalog.directories())
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
