"""A catalog of the test's tree."""

from __future__ import annotations

from pathlib import Path

import pytest

from waystage.catalog import Catalog, build


@pytest.fixture
def catalog(tree: Path, tmp_path: Path) -> Catalog:
    build(tree, tmp_path / "catalog")
    return Catalog(tmp_path / "catalog")
