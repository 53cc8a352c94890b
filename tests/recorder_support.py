"""Recording a program, and what its catalog and its tree differ in afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from waystage.catalog import BuildOptions, Catalog
from waystage.catalog.difference import Difference, verify
from waystage.recorder import Ran, RecordOptions, record

PROGRAMS = Path(__file__).parents[1] / "shim" / "tests"


def run_in(
    tree: Path, target: Path, command: Sequence[str], *, tell_stat: bool = False, **given: object
) -> Ran:
    """Record a program that works in `tree`."""
    options = RecordOptions(BuildOptions(threads=4, **given), tell_stat)  # type: ignore[arg-type]
    top = None if target.exists() else tree
    return record(["env", "-C", str(tree), *command], target, top, options)


def differences(target: Path) -> Difference:
    """What the catalog and its tree differ in."""
    return verify(Catalog(target), threads=4)
