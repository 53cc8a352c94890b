"""Catalogs in Python: sequences of entries, selections, data frames, SQL with paths as text."""

from __future__ import annotations

import os
from pathlib import Path

import duckdb
import polars
import pytest

import waystage
from waystage.catalog import CatalogError


@pytest.fixture
def files(tmp_path: Path) -> Path:
    root = tmp_path / "files"
    for name, size in (("a.txt", 3), ("sub/b.h5", 5000), ("sub/deep/ü.h5", 70)):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x" * size)
    with open(os.fsencode(root) + b"/sub/\xff<b>", "wb") as file:
        file.write(b"12")
    return root


@pytest.fixture
def catalog(files: Path, tmp_path: Path) -> waystage.Catalog:
    return waystage.Catalog.build(files, tmp_path / "files.catalog")


def test_a_catalog_opens_by_a_string_and_is_a_sequence(catalog: waystage.Catalog, files: Path) -> None:
    opened = waystage.Catalog(str(catalog.path))
    assert len(opened) == 6
    found = {os.fsencode(files) + b"/" + entry.path: entry.size for entry in opened if entry.type == "f"}
    assert found == {path: os.path.getsize(path) for path in found} and len(found) == 4


def test_a_selection_has_what_find_would(catalog: waystage.Catalog) -> None:
    large = catalog.query(name="*.h5", size="+100c")
    assert [entry.path for entry in large] == [b"sub/b.h5"]
    assert len(large) == 1 and large.totals()["bytes"] == 5000
    assert len(catalog.query(types="d")) == 2
    assert list(catalog.query(path="sub/*", size=70)) == list(catalog.query(name="ü*"))


def test_frames_have_paths_as_text_beside_exact_bytes(catalog: waystage.Catalog) -> None:
    files = catalog.query(types="f")
    expected = {"a.txt", "sub/b.h5", "sub/deep/ü.h5", "sub/\\xff<b>"}
    frame = files.polars()
    assert set(frame["path"]) == expected and b"\xff<b>" in set(frame["name"])
    assert frame.filter(polars.col("size") > 100)["path"].to_list() == ["sub/b.h5"]
    assert set(files.to_arrow(["size", "path"])["path"].to_pylist()) == expected
    rows = files.duckdb().filter("size > 100").select("path, directory").fetchall()
    assert rows == [("sub/b.h5", b"sub")]


def test_pandas_gets_text_too(catalog: waystage.Catalog) -> None:
    assert "sub/b.h5" in set(catalog.to_pandas(["path"])["path"])


def test_sql_reads_paths_as_text(catalog: waystage.Catalog) -> None:
    answer = catalog.sql("SELECT path, name FROM entries WHERE path LIKE 'sub/%.h5' ORDER BY size")
    assert answer.to_pylist() == [
        {"path": "sub/deep/ü.h5", "name": "ü.h5".encode()},
        {"path": "sub/b.h5", "name": b"b.h5"},
    ]
    odd = catalog.sql("SELECT path FROM entries WHERE size = 2").to_pylist()
    assert odd == [{"path": "sub/\\xFF<b>"}]
    below = catalog.sql("SELECT path, path_bytes FROM directories ORDER BY path").to_pylist()
    assert [row["path"] for row in below] == ["", "sub", "sub/deep"] and below[1]["path_bytes"] == b"sub"


def test_a_relation_outlives_the_call(catalog: waystage.Catalog) -> None:
    relation = catalog.duckdb()
    assert isinstance(relation, duckdb.DuckDBPyRelation)
    assert relation.aggregate("count(*)").fetchall() == [(6,)]


def test_notebooks_show_names_as_text(catalog: waystage.Catalog) -> None:
    page = catalog._repr_html_()
    assert "sub/\\xff&lt;b&gt;" in page and "<b>" not in page
    assert "6 entries" in repr(catalog)


def test_what_cannot_be_asked_is_an_error(catalog: waystage.Catalog) -> None:
    with pytest.raises(CatalogError, match="'10X' is not a size"):
        catalog.query(size="10X")
    with pytest.raises(CatalogError, match="types is 'q': give letters"):
        catalog.query(types="q")
    with pytest.raises(CatalogError, match="no column 'sise': choose from path, directory"):
        catalog.to_arrow(["sise"])
    with pytest.raises(CatalogError, match="is no catalog"):
        waystage.Catalog("/nonexistent")


def test_a_refreshed_catalog_is_another_version(catalog: waystage.Catalog, files: Path) -> None:
    (files / "new").write_bytes(b"1")
    newer = catalog.refresh()
    assert (len(catalog), len(newer)) == (6, 7)


def test_an_empty_catalog_is_true(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    empty = waystage.Catalog.build(tmp_path / "none", tmp_path / "none.catalog")
    assert empty and len(empty) == 0 and list(empty) == []
    assert empty.polars().height == 0


def test_the_package_names_what_it_lacks() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Katalog'"):
        waystage.Katalog  # type: ignore[attr-defined]  # noqa: B018
    assert {"Catalog", "Loader"} <= set(dir(waystage))
