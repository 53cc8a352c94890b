"""A catalog gives the data of one version of it, all of them as they were written, or says in one sentence that it cannot."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from harness import Waystage
from waystage.catalog import BuildOptions, Catalog, CatalogError, build, checksums, refresh
from waystage.catalog.options import REPLACED
from waystage.catalog.query import Filter, by_column, select, size_histogram, top, totals
from waystage.catalog.store import MANIFEST, Manifest, Part, paths_of
from waystage.loader.files import file_set

FLIPS = int(os.environ.get("WAYSTAGE_FUZZ_EXAMPLES", "60"))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    for folder in range(6):
        (root / f"d{folder}").mkdir(parents=True)
        for number in range(8):
            (root / f"d{folder}/f{number}").write_bytes(b"x" * (number * 37 + folder))
    os.link(root / "d1/f3", root / "d2/again")
    (root / "link").symlink_to("d1")
    return root


def plain(table: pa.Table) -> list[Any]:
    """Its values; times in ns, which Python's own cannot hold."""
    columns = [c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c for c in table.columns]
    return [column.to_pylist() for column in columns]


def everything(path: Path) -> list[Any]:
    """What a catalog answers, by every way of reading it."""
    catalog = Catalog(path)
    return [
        plain(catalog.entries()),
        plain(catalog.directories()),
        [plain(piece) for piece in select(catalog, Filter(types="f"))],
        totals(catalog, Filter()),
        totals(catalog, Filter(types="f", size="+1")),
        [sorted(map(str, by_column(catalog, Filter(), by).to_pylist())) for by in ("uid", "type", "directory")],
        size_histogram(catalog, Filter()),
        plain(top(catalog, Filter(types="f"), "size", 5)),
        catalog.manifest,
        [part.summary for part in catalog.manifest.parts],
        catalog.dataset().to_table().num_rows,
    ]  # fmt: skip


def test_no_changed_bit_gives_other_data(tree: Path, tmp_path: Path) -> None:
    target = tmp_path / "c"
    build(tree, target)
    whole = everything(target)
    chance = random.Random(17)
    told = 0
    for path in sorted(target.iterdir()):
        content = path.read_bytes()
        # The bytes around the footer and at both ends are where a format says what the rest means.
        places = {*range(8), *range(len(content) - 40, len(content))}
        places |= {chance.randrange(len(content)) for _ in range(FLIPS)}
        for place in sorted(places):
            damaged = bytearray(content)
            damaged[place] ^= 1 << chance.randrange(8)
            path.write_bytes(damaged)
            try:
                assert everything(target) == whole, (path.name, place)
            except CatalogError as error:
                told += 1
                assert "damaged" in str(error) or "version" in str(error) or "no catalog" in str(error) or (
                    "not a catalog" in str(error)
                ), error  # fmt: skip
        path.write_bytes(content)
    assert told > 3 * FLIPS // 2
    assert everything(target) == whole


def test_no_changed_bit_of_checksums_makes_damage_of_a_whole_file_or_hides_any(
    tree: Path, tmp_path: Path
) -> None:
    build(tree, tmp_path / "c")
    catalog = Catalog(tmp_path / "c")
    path = checksums.make(catalog).path
    content = path.read_bytes()
    chance = random.Random(3)
    for place in [
        *range(len(content) - 12, len(content)),
        *(chance.randrange(len(content)) for _ in range(20)),
    ]:
        damaged = bytearray(content)
        damaged[place] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        try:
            found = checksums.verify(catalog)
            assert not found and not found.changed, place
        except CatalogError as error:
            assert str(path) in str(error)


def test_what_a_manifest_says_is_checked(tree: Path, tmp_path: Path, waystage: Waystage) -> None:
    build(tree, tmp_path / "c")
    manifest = tmp_path / "c" / MANIFEST
    good = json.loads(manifest.read_text())
    del good["checksum"]
    good["version"] = 1
    wrong: list[object] = [
        "[" * 100_000,
        '{"format":' * 2000,
        good | {"root": 7},
        good | {"root": "a\0b"},
        good | {"root": "relative"},
        good | {"started": float("nan")},
        good | {"finished": 1e400},
        good | {"parts": {"a": 1}},
        good | {"parts": [[]]},
        good | {"exclude": [3]},
        good | {"counts": {"entries": -1}},
        good | {"sections": ["../.."]},
        good | {"sections": [["a"]]},
        good | {"targets": [[-1, "a"]]},
        good | {"errors": [["a"]]},
        good | {"version": [1]},
        good | {"version": 2},
    ]
    part = good["parts"][0]
    for key, value in (("number", -1), ("rows", -5), ("rows", "9"), ("number", 10**30), ("rows", 10**30)):
        wrong.append(good | {"parts": [part | {key: value}]})
    for column, key in (("size", "-7"), ("size", "900"), ("uid", "x"), ("target", "-1")):
        by = part["summary"]["by"] | {column: {key: [1, 1]}}
        wrong.append(good | {"parts": [part | {"summary": part["summary"] | {"by": by}}]})
    by = part["summary"]["by"] | {"type": {"f": [-1, 5]}}
    wrong.append(good | {"parts": [part | {"summary": part["summary"] | {"by": by}}]})
    for value in wrong:
        manifest.write_text(value if isinstance(value, str) else json.dumps(value))
        with pytest.raises(CatalogError):
            Catalog(tmp_path / "c")
    for asked in ("--count", "--by=uid", "--histogram=size"):
        ran = waystage("catalog", "query", "c", asked)
        assert (ran.code, "internal error" in ran.err) == (3, False)


def test_columns_that_no_walk_writes_are_damage(tree: Path, tmp_path: Path, waystage: Waystage) -> None:
    build(tree, tmp_path / "c")
    catalog = Catalog(tmp_path / "c")
    path = catalog.entries_files()[0]
    table = pq.read_table(path).replace_schema_metadata(None)
    index = table.schema.get_field_index("size")
    negative = [-value for value in table["size"].to_pylist()]
    pq.write_table(table.set_column(index, "size", [negative]), path)
    # As a release without digests would have written it.
    manifest = json.loads((tmp_path / "c" / MANIFEST).read_text())
    del manifest["checksum"]
    for part, old in zip(manifest["parts"], catalog.manifest.parts, strict=True):
        former = Part(old.number, old.rows, version=1)
        os.rename(path, tmp_path / "c" / former.entries)
        os.rename(tmp_path / "c" / old.directories, tmp_path / "c" / former.directories)
        part |= {"tag": "", "summary": None}
    (tmp_path / "c" / MANIFEST).write_text(json.dumps(manifest | {"version": 1}))
    for asked in (["--count"], ["--histogram", "size"], ["--by", "uid"]):
        ran = waystage("catalog", "query", "c", *asked)
        assert (ran.code, "negative size" in ran.err) == (3, True), ran


def test_catalogs_of_the_former_version_are_read_refreshed_and_recorded_as_new_ones(
    tree: Path, tmp_path: Path
) -> None:
    target = tmp_path / "c"
    build(tree, target)
    whole = Catalog(target)
    rows = whole.entries(["directory", "name", "size"]).to_pydict()
    manifest = json.loads((target / MANIFEST).read_text())
    del manifest["checksum"]
    for part, of in zip(manifest["parts"], whole.manifest.parts, strict=True):
        former = Part(of.number, of.rows, version=1)
        for old, new in ((of.entries, former.entries), (of.directories, former.directories)):
            table = pq.read_table(target / old)
            kept = [name for name in table.column_names if not name.endswith("_seconds")]
            pq.write_table(table.select(kept), target / new)
            (target / old).unlink()
        for name in ("tag", "version"):
            del part[name]
    (target / MANIFEST).write_text(json.dumps(manifest | {"version": 1}))
    old = Catalog(target)
    assert old.entries(["directory", "name", "size"]).to_pydict() == rows
    assert totals(old, Filter()) == totals(whole, Filter())
    (tree / "d0/new").write_bytes(b"")
    for refreshed in (
        lambda: refresh(target, stale=[b"d0/f1"]),
        lambda: refresh(target, trust_directories=True),
        lambda: refresh(target),
    ):
        refreshed()
        found = Catalog(target)
        assert b"d0/new" in paths_of(found.entries(["directory", "name"])).to_pylist()
        assert found.rows == old.rows + 1
    assert all(part.sealed for part in Catalog(target).manifest.parts)


def test_readers_during_refreshes_get_one_version(tree: Path, tmp_path: Path) -> None:
    target = tmp_path / "c"
    build(tree, target, BuildOptions(threads=1, batch_rows=10))
    over = threading.Event()
    failed: list[BaseException] = []

    def read() -> None:
        try:
            while not over.is_set():
                catalog = Catalog(target)
                table = catalog.entries()
                assert table.num_rows == catalog.rows
                assert totals(catalog, Filter(types="f"))["entries"] in (49, 50)
                assert catalog.directories().num_rows >= 7
                file_set(target)
        except BaseException as error:
            failed.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for turn in range(10):
            if turn % 2:
                (tree / "d0/more").unlink()
            else:
                (tree / "d0/more").write_bytes(b"more")
            refresh(target, BuildOptions(threads=1, batch_rows=10))
    finally:
        over.set()
        for reader in readers:
            reader.join()
    assert not failed, failed[0]


def test_a_catalog_that_gets_its_name_again_between_two_looks_is_opened(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where names cannot be exchanged, one that is replaced has none for a moment."""
    target, aside = tmp_path / "c", tmp_path / f"c{REPLACED}"
    build(tree, target)
    os.rename(target, aside)
    exists = Path.exists

    def replaced(path: Path) -> bool:
        if path == aside and exists(path):
            os.rename(aside, target)
        return exists(path)

    monkeypatch.setattr(Path, "exists", replaced)
    assert Catalog(target).rows == 56
    with pytest.raises(CatalogError, match="no catalog"):
        Catalog(tmp_path / "absent")


def test_a_catalog_that_was_opened_stays_what_it_was(tree: Path, tmp_path: Path) -> None:
    target = tmp_path / "c"
    build(tree, target)
    held, whole = Catalog(target), everything(target)
    pieces = select(held, Filter())
    dataset = held.dataset()
    shutil.rmtree(tree / "d3")
    refresh(target)
    shutil.rmtree(target)
    assert plain(held.entries()) == whole[0]
    assert sum(piece.num_rows for piece in pieces) == held.rows
    del held, pieces
    assert dataset.to_table().num_rows == len(whole[0][1])


def test_the_folder_is_one_table_for_readers_of_folders(tree: Path, tmp_path: Path) -> None:
    build(tree, tmp_path / "c", BuildOptions(threads=1, batch_rows=20))
    rows = Catalog(tmp_path / "c").rows
    assert pq.read_table(tmp_path / "c", page_checksum_verification=True).num_rows == rows
    assert ds.dataset(tmp_path / "c").to_table().num_rows == rows
    assert sum(pq.read_table(path).num_rows for path in (tmp_path / "c").glob("entries-*.parquet")) == rows
    try:
        import pandas
    except ImportError:
        return
    assert len(pandas.read_parquet(tmp_path / "c")) == rows


def test_no_two_versions_have_a_part_of_one_name(tree: Path, tmp_path: Path) -> None:
    build(tree, tmp_path / "c")
    before = {path.name for path in (tmp_path / "c").glob("*.parquet")}
    refresh(tmp_path / "c")
    assert not before & {path.name for path in (tmp_path / "c").glob("*.parquet")}


def test_another_trees_catalog_is_replaced_only_when_asked(
    tree: Path, tmp_path: Path, waystage: Waystage
) -> None:
    (tmp_path / "other").mkdir()
    assert waystage("catalog", "build", "tree", "c").code == 0
    ran = waystage("catalog", "build", "other", "c").expect(3)
    assert f"{tmp_path}/tree" in ran.err and "--replace" in ran.err
    assert Catalog(tmp_path / "c").root == tree
    (tmp_path / "same").symlink_to("tree")
    assert waystage("catalog", "build", "same", "c").code == 0
    assert waystage("catalog", "build", "other", "c", "--replace").code == 0
    assert Catalog(tmp_path / "c").root == tmp_path / "other"
    # A damaged one is of no tree, and the error about it says to build it anew.
    (tmp_path / "c" / MANIFEST).write_text("{")
    assert waystage("catalog", "build", "tree", "c").code == 0


def test_a_manifest_without_totals_still_counts(tree: Path, tmp_path: Path) -> None:
    build(tree, tmp_path / "c")
    before = totals(Catalog(tmp_path / "c"), Filter())
    manifest = Manifest.load(tmp_path / "c" / MANIFEST)
    replace(manifest, parts=[replace(part, summary=None) for part in manifest.parts]).save(
        tmp_path / "c" / MANIFEST
    )
    assert totals(Catalog(tmp_path / "c"), Filter()) == before


def test_the_query_on_the_page_counts_as_the_command_does(tree: Path, tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    build(tree, tmp_path / "c")
    page = (Path(__file__).parents[2] / "docs/reference/catalog.md").read_text()
    (query,) = [block for block in re.findall(r"```sql\n(.*?)```", page, re.S) if "DISTINCT" in block]
    found = duckdb.sql(query.replace("CATALOG/", f"{tmp_path}/c/")).fetchall()
    expected = by_column(Catalog(tmp_path / "c"), Filter(types="f"), "uid").to_pylist()
    assert {uid: int(size) for uid, size in found} == {row["uid"]: row["bytes"] for row in expected}
