"""Errors of catalogs, one sentence each for the user.

Arrives: nothing.
Leaves: the errors of this room.
Must not know: who reads catalogs.
"""

from __future__ import annotations


class CatalogError(ValueError):
    """A catalog or an option that cannot be used; the message says which, why, and what to do."""


class CatalogHidden(CatalogError):
    """This user may not read a catalog, or a section of one."""


class BuildError(RuntimeError):
    """A tree that cannot be catalogued, or a catalog that cannot be written; says where and what to do."""


class SourceMissing(BuildError):
    """A tree that does not exist, or is no directory."""


class CatalogBusy(BuildError):
    """Another process is building the same catalog."""


class DuckdbMissing(BuildError):
    """SQL was asked for and DuckDB is not installed."""
