"""File systems for fsspec: a server's directories, and the tree of a catalog.

Arrives: paths; a server or a catalog.
Leaves: entries, contents, and at a server changes, as fsspec's callers expect them.
Must not know: how a server is asked, how catalogs are stored.

`fsspec` finds both by their protocol, `waystage` and `waystage-catalog`. `pip install 'waystage[fsspec]'`.
"""

from waystage.filesystems.catalogued import CatalogFileSystem
from waystage.filesystems.far import FarFileSystem

__all__ = ["CatalogFileSystem", "FarFileSystem"]
