"""Pages, experiments and units that come with an installation.

Arrives: the name of a folder, or of a file in it.
Leaves: where it is: below `data/` of a wheel, in the repository of a clone.
Must not know: what is in them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

Folder = Literal["deploy", "docs", "experiments"]

_PACKAGE = Path(__file__).parent
_CLONE = _PACKAGE.parents[1]


def folder(name: Folder) -> Path | None:
    """The folder; None where a wheel was built without it."""
    found = _CLONE / name if (_CLONE / "pyproject.toml").is_file() else _PACKAGE / "data" / name
    return found if found.is_dir() else None


def namesake(name: Folder, path: Path) -> Path | None:
    """The shipped file with the same name as `path`, if there is one."""
    within = folder(name)
    found = within / path.name if within is not None and path.name else None
    return found if found is not None and found.is_file() else None
