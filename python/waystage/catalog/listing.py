"""The catalog that tasks on many nodes read: the one that was given, or one that they make of the tree first.

Arrives: a tree or a catalog, a folder that all nodes reach, an engine.
Leaves: a catalog, and what else the walk has met.
Must not know: what tasks do with it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from waystage.catalog.apart import meeting
from waystage.catalog.on_nodes import Following, build_on_nodes
from waystage.catalog.options import BuildOptions
from waystage.catalog.store import Catalog, is_catalog
from waystage.display import display
from waystage.nodes import Engine, Mark, NodesError
from waystage.nodes.shared import needed
from waystage.task import Progress

LISTING = "listing"
"""The name of a catalog that is made for one command."""


@dataclass(frozen=True)
class Listing:
    """`excluded` entries and `errors` are of the walk, none where the catalog was given."""

    path: Path
    marks: tuple[Mark, ...]
    excluded: int = 0
    errors: list[tuple[bytes, str]] = field(default_factory=list)


def hold_lists_apart(source: Path, directory: Path) -> None:
    """Raise NodesError where lists in `directory` would be among the entries of `source`."""
    how = meeting(source, directory)
    if how in ("is", "is inside"):
        raise NodesError(
            f"{display(str(directory))}, for lists that all nodes read, {how} {display(str(source))}: name a directory"
            " outside of it with --nodes-dir"
        )


def listing_of(
    engine: Engine,
    source: Path,
    folder: Path,
    progress: Progress,
    marks: Sequence[Mark],
    *,
    exclude: tuple[str, ...] = (),
    one_file_system: bool = False,
    following: Following | None = None,
) -> Listing:
    """The catalog of `source`, which is made in `folder` where `source` is a tree; `following` is what begins meanwhile.

    Its marks are those that every node needs from here on. Raises BuildError, CatalogError, NodesError.
    """
    if is_catalog(source):
        there = Path(os.path.abspath(source))
        return Listing(there, (*marks, needed(there), needed(Catalog(there).root)))
    path = folder / LISTING
    options = BuildOptions(exclude=exclude, one_file_system=one_file_system, layouts=None)

    def show(what: str, share: float) -> None:
        progress(f"listing: {what}", share)

    build_on_nodes(engine, source, path, options, show, marks, following)
    manifest = Catalog(path).manifest
    errors = [(os.fsencode(name), text) for name, text in manifest.errors]
    return Listing(path, (*marks, needed(Path(manifest.root))), manifest.counts.get("excluded", 0), errors)
