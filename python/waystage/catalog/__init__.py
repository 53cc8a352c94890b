"""Catalogs: what exists in a tree and where, as columns on disk.

Arrives: a tree, or a catalog and a question.
Leaves: a folder of Parquet files that DuckDB, Polars and pandas open; answers; what changed since.
Must not know: jobs, policies, the backplane.
"""

from waystage.catalog.build import Built, build, refresh
from waystage.catalog.check import Checked, CheckedFile, CheckedOpener, Entry, check, entries_of
from waystage.catalog.errors import BuildError, CatalogBusy, CatalogError, DuckdbMissing, SourceMissing
from waystage.catalog.frames import Catalog, Selection
from waystage.catalog.options import BuildOptions

__all__ = [
    "BuildError",
    "BuildOptions",
    "Built",
    "Catalog",
    "CatalogBusy",
    "CatalogError",
    "Checked",
    "CheckedFile",
    "CheckedOpener",
    "DuckdbMissing",
    "Entry",
    "Selection",
    "SourceMissing",
    "build",
    "check",
    "entries_of",
    "refresh",
]
