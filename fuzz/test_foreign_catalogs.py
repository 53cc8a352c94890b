"""Manifests of catalogs, of which any value was replaced: a catalog answers or says in one sentence that it cannot."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from waystage.catalog import Catalog, CatalogError, build
from waystage.catalog.manifest import Manifest, checksum_of
from waystage.catalog.query import Filter, by_column, by_target, size_histogram, totals
from waystage.catalog.store import MANIFEST, explain

EXAMPLES = int(os.environ.get("WAYSTAGE_FUZZ_EXAMPLES", "25"))

SCALARS: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([-1, 0, 1 << 31, 1 << 32, 1 << 63, -(1 << 63), 10**40]),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["/", "\0", "..", "../x", "a/../b", "\udcff", "entries"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("foreign")
    (root / "tree/a").mkdir(parents=True)
    (root / "tree/a/f").write_bytes(b"x" * 100)
    build(root / "tree", root / "c")
    return root / "c"


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every place in a JSON value: what holds it, and its key or index there."""
    found: list[tuple[Any, Any]] = []
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        found += [(value, key), *places(value[key])]
    return found


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_a_manifest_of_any_values_is_answered_or_refused(folder: Path, data: st.DataObject) -> None:
    manifest = folder / MANIFEST
    good = manifest.read_bytes()
    value = json.loads(good)
    del value["checksum"]
    holder, key = data.draw(st.sampled_from(places(value)))
    if data.draw(st.booleans()):
        holder[key] = data.draw(VALUES)
    elif isinstance(holder, dict):
        del holder[key]
        holder[data.draw(st.text(max_size=6))] = data.draw(VALUES)
    try:
        # As of a program that writes catalogs too.
        manifest.write_text(json.dumps(value | {"checksum": checksum_of(value)}))
        try:
            Manifest.parse(manifest.read_bytes(), manifest)
            catalog = Catalog(folder)
            for which in (Filter(), Filter(types="f")):
                totals(catalog, which)
                size_histogram(catalog, which)
                by_target(catalog, which)
                for column in ("uid", "type", "directory", "layout"):
                    by_column(catalog, which, column)
            explain(catalog.manifest.gaps)
            catalog.root.is_dir()
        except CatalogError as error:
            assert "\n" not in str(error)
    finally:
        manifest.write_bytes(good)
