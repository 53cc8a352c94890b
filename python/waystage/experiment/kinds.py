"""Which kind of file somebody gave to `waystage run`.

Arrives: the path of a YAML file.
Leaves: `experiment`, `scenario` or `contention`.
Must not know: whether the file is right; its own loader says that, with line and key.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from waystage.experiment import documents
from waystage.experiment.problems import ExperimentError

Kind = Literal["experiment", "scenario", "contention"]

_MARKS: dict[str, Kind] = {"algorithms": "scenario", "contention": "contention"}
"""The key at the top of a file that no other kind has."""


def kind_of(path: Path) -> Kind:
    """An experiment where nothing says otherwise, also where the file cannot be read at all."""
    try:
        document = documents.read(path, "an experiment", "")
    except ExperimentError:
        return "experiment"
    return next((kind for mark, kind in _MARKS.items() if mark in document), "experiment")
