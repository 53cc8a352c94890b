"""A catalogued tree in fsspec: listings by the catalog, files as they are now."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import fsspec
import pandas
import pytest

from waystage import Catalog


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "below/deep").mkdir(parents=True)
    (root / "table.csv").write_text("a,b\n1,2\n3,4\n")
    (root / "below/data.bin").write_bytes(bytes(range(256)))
    (root / os.fsdecode(b"below/deep/odd\xff")).write_text("x")
    Catalog.build(root, tmp_path / "tree.catalog")
    return root


@pytest.fixture
def held(tree: Path) -> Any:
    return fsspec.filesystem(
        "waystage-catalog", catalog=str(tree.parent / "tree.catalog"), skip_instance_cache=True
    )


def test_listings_are_those_of_the_catalog(tree: Path, held: Any) -> None:
    (tree / "new").touch()
    assert held.ls("", detail=False) == ["below", "table.csv"]
    assert held.ls("/below", detail=False) == ["below/data.bin", "below/deep"]
    assert held.find("") == ["below/data.bin", os.fsdecode(b"below/deep/odd\xff"), "table.csv"]
    assert held.info("below/data.bin")["size"] == 256 and held.isdir("below/deep")
    assert held.glob("**/*.csv") == ["table.csv"] and not held.exists("new")
    assert held.modified("table.csv").timestamp() == pytest.approx((tree / "table.csv").stat().st_mtime)
    with pytest.raises(FileNotFoundError):
        held.ls("gone")


def test_files_are_opened_by_their_address(tree: Path) -> None:
    options = {"catalog": str(tree.parent / "tree.catalog")}
    frame = pandas.read_csv("waystage-catalog://table.csv", storage_options=options)
    assert frame["b"].tolist() == [2, 4]
    with fsspec.open("waystage-catalog://below/data.bin", **options) as file:
        file.seek(10)
        assert file.read(2) == bytes([10, 11])


def test_a_file_that_has_changed_is_opened_with_a_warning_or_refused(tree: Path, held: Any) -> None:
    (tree / "table.csv").write_text("a,b\n5,6\n")
    with pytest.warns(UserWarning, match="refresh the catalog"):
        assert held.cat_file("table.csv") == b"a,b\n5,6\n"
    strict = fsspec.filesystem(
        "waystage-catalog", catalog=str(tree.parent / "tree.catalog"), stale="error", skip_instance_cache=True
    )
    with pytest.raises(OSError, match="refresh the catalog"):
        strict.open("table.csv")


def test_nothing_is_written(held: Any) -> None:
    with pytest.raises(OSError, match="only read"):
        held.open("table.csv", "wb")
    with pytest.raises(IsADirectoryError):
        held.open("below")
