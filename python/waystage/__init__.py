"""Waystage coordinates how data moves in high-performance computing.

For programs: `waystage.copy`, `waystage.Catalog` and `waystage.Loader`; docs/reference/python.md has all.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from waystage.catalog import Catalog
    from waystage.cli.calling import CopyFailed, CopyIncomplete, CopyResult, copy
    from waystage.loader import Loader

__version__ = "0.1.0"

__all__ = ["Catalog", "CopyFailed", "CopyIncomplete", "CopyResult", "Loader", "__version__", "copy"]

_PLACES = {
    "Catalog": "waystage.catalog",
    "CopyFailed": "waystage.cli.calling",
    "CopyIncomplete": "waystage.cli.calling",
    "CopyResult": "waystage.cli.calling",
    "Loader": "waystage.loader",
    "copy": "waystage.cli.calling",
}
"""Name -> module. Imported at first use: the command line starts without Arrow."""


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'waystage' has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PLACES])
