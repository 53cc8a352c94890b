"""Answers of a catalog agree with the tree, by other means."""

from __future__ import annotations

import fnmatch
import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from waystage.catalog import BuildOptions, Catalog, CatalogError, build, refresh
from waystage.catalog.export import export
from waystage.catalog.query import (
    Filter,
    age_histogram,
    by_column,
    by_target,
    regex,
    select,
    size_histogram,
    top,
    totals,
)
from waystage.catalog.store import MANIFEST, Manifest, paths_of
from waystage.display import display

DAY = 86400


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("asked") / "tree"
    for index in range(40):
        folder = root / f"d{index % 4}"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"file{index}.{'log' if index % 3 else 'dat'}"
        path.write_bytes(b"x" * index * 100)
        moment = time.time() - index * 20 * DAY
        os.utime(path, (moment, moment))
    (root / "d1/deep").mkdir()
    (root / "d1/deep" / os.fsdecode(b"odd\n\xff.log")).write_bytes(b"12345")
    os.link(root / "d0/file4.log", root / "d1/again")
    (root / "link").symlink_to("d0")
    return root


@pytest.fixture(scope="module")
def catalog(tree: Path) -> Catalog:
    build(tree, tree.parent / "catalog")
    return Catalog(tree.parent / "catalog")


def paths(catalog: Catalog, which: Filter) -> set[str]:
    return {os.fsdecode(p) for piece in select(catalog, which) for p in paths_of(piece).to_pylist()}


def files(tree: Path) -> list[Path]:
    return [p for p in tree.rglob("*") if p.is_file() and not p.is_symlink()]


@pytest.mark.parametrize(
    "pattern",
    [
        "*.log",
        "file1?.dat",
        "file[12]*",
        "file[!1]*",
        "link",
        "odd*",
        "nothing",
        "*1*",
        "file3*",
        "*",
        "**",
        "*.d*t",
        "file5.log",
    ],
)
def test_names_match_as_in_a_shell(catalog: Catalog, tree: Path, pattern: str) -> None:
    expected = {str(p.relative_to(tree)) for p in tree.rglob("*") if fnmatch.fnmatchcase(p.name, pattern)}
    assert paths(catalog, Filter(name=os.fsencode(pattern))) == expected


def test_paths_types_and_sizes_narrow_the_answer(catalog: Catalog) -> None:
    assert paths(catalog, Filter(path=b"d1/*", types="d")) == {"d1/deep"}
    assert paths(catalog, Filter(types="l")) == {"link"}
    assert paths(catalog, Filter(types="f", size="5")) == {os.fsdecode(b"d1/deep/odd\n\xff.log")}
    assert paths(catalog, Filter(types="f", size="+3800")) == {"d3/file39.dat"}
    assert len(paths(catalog, Filter(types="f", size="-1024c", name=b"*.log"))) == 8
    assert paths(catalog, Filter(types="f", links="+1")) == {"d0/file4.log", "d1/again"}
    assert paths(catalog, Filter(uid=os.getuid() + 1)) == set()


def test_ages_count_from_the_last_change_of_content(catalog: Catalog) -> None:
    old = paths(catalog, Filter(types="f", age="+710d"))
    assert old == {"d0/file36.dat", "d1/file37.log", "d2/file38.log", "d3/file39.dat"}
    young = paths(catalog, Filter(types="f", age="-30d"))
    assert {"d0/file0.dat", "d1/file1.log"} <= young
    assert not young & old


@pytest.mark.parametrize("wrong", ["x", "+", "10Q", "1.5M", ""])
def test_predicates_that_are_none_are_refused(catalog: Catalog, wrong: str) -> None:
    for which in (Filter(size=wrong), Filter(age=wrong)):
        with pytest.raises(CatalogError, match="is not a"):
            list(select(catalog, which))


def test_totals_count_a_file_with_two_names_once(catalog: Catalog, tree: Path) -> None:
    real = {p.stat().st_ino: p.stat() for p in files(tree)}
    found = totals(catalog, Filter())
    assert found["entries"] == sum(1 for _ in tree.rglob("*"))
    assert found["bytes"] == sum(stat.st_size for stat in real.values())
    assert found["allocated_bytes"] == 512 * sum(stat.st_blocks for stat in real.values())


def test_the_largest_come_first(catalog: Catalog) -> None:
    found = top(catalog, Filter(types="f"), "size", 3)
    assert found["name"].to_pylist() == [b"file39.dat", b"file38.log", b"file37.log"]
    newest = top(catalog, Filter(name=b"file*", types="f"), "mtime", 1)
    assert newest["name"].to_pylist() == [b"file0.dat"]


def test_histograms_hold_every_file_in_its_bin(catalog: Catalog, tree: Path) -> None:
    once = {p.stat().st_ino: p for p in files(tree)}.values()
    sizes = [p.stat().st_size for p in once]
    bins = size_histogram(catalog, Filter())
    assert sum(b["files"] for b in bins) == len(sizes)
    for b in bins:
        assert b["files"] == sum(b["at_least"] <= s < b["below"] for s in sizes)
    ages = [(time.time() - p.stat().st_mtime) / DAY for p in once]
    for row in age_histogram(catalog, Filter()):
        start, end = row["from_days"] or 0, row["to_days"] or 1e9
        assert row["files"] == sum(start <= max(age, 0) < end for age in ages)


def test_totals_for_each_directory_and_type(catalog: Catalog, tree: Path) -> None:
    found = {row["directory"]: row for row in by_column(catalog, Filter(types="f"), "directory").to_pylist()}
    for folder in ("d0", "d1", "d2", "d3", "d1/deep"):
        held = [p.stat().st_size for p in (tree / folder).iterdir() if p.is_file()]
        assert (found[folder.encode()]["entries"], found[folder.encode()]["bytes"]) == (len(held), sum(held))
    types = {row["type"]: row["entries"] for row in by_column(catalog, Filter(), "type").to_pylist()}
    assert types == {"f": 42, "d": 5, "l": 1}
    owners = by_column(catalog, Filter(), "uid").to_pylist()
    assert [(row["uid"], row["entries"]) for row in owners] == [(os.getuid(), 48)]


def test_on_a_local_file_system_the_device_is_the_target(catalog: Catalog, tree: Path) -> None:
    rows = by_target(catalog, Filter()).to_pylist()
    device = tree.stat().st_dev
    assert [name for _, name in catalog.manifest.targets] == [f"device:{os.major(device)}:{os.minor(device)}"]
    sizes = {p.stat().st_ino: p.stat().st_size for p in files(tree)}
    assert sum(row["bytes"] for row in rows) == sum(sizes.values())
    number = rows[0]["target"]
    assert paths(catalog, Filter(target=number, name=b"file39*")) == {"d3/file39.dat"}
    assert paths(catalog, Filter(target=number + 1)) == set()


def test_kept_totals_and_a_scan_give_the_same_answers(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answers() -> list[object]:
        columns = ("directory", "type", "uid", "gid", "layout")
        grouped = [by_column(catalog, Filter(), column).to_pylist() for column in columns]
        for rows, column in zip(grouped, columns, strict=True):
            rows.sort(key=lambda row: str(row[column]))
        return [totals(catalog, Filter()), size_histogram(catalog, Filter()), *grouped,
                by_target(catalog, Filter()).to_pylist()]  # fmt: skip

    kept = answers()
    assert catalog.summary() is not None
    monkeypatch.setattr("waystage.catalog.query.Filter.is_all", lambda self: False)
    assert answers() == kept


def test_kept_totals_follow_a_refresh_that_keeps_parts(tmp_path: Path) -> None:
    root = tmp_path / "tree"
    for folder in ("a", "b"):
        (root / folder).mkdir(parents=True)
        for number in range(5):
            (root / folder / f"f{number}").write_bytes(b"x" * 100)
    # A catalog doubts directories that changed within two seconds before its walk, and would keep none.
    time.sleep(2.1)
    build(root, tmp_path / "c")
    (root / "a/f1").write_bytes(b"x" * 7)
    assert refresh(tmp_path / "c", stale=[b"a/f1"]).kept == 7
    found = Catalog(tmp_path / "c")
    assert totals(found, Filter())["bytes"] == 9 * 100 + 7
    assert {row["directory"]: row["bytes"] for row in by_column(found, Filter(), "directory").to_pylist()} == {
        b"": 0, b"a": 407, b"b": 500,
    }  # fmt: skip


def test_a_catalog_without_kept_totals_is_scanned(tmp_path: Path, tree: Path) -> None:
    build(tree, tmp_path / "c")
    before = totals(Catalog(tmp_path / "c"), Filter())
    manifest = tmp_path / "c" / MANIFEST
    value = Manifest.load(manifest)
    replace(value, parts=[replace(part, summary=None) for part in value.parts]).save(manifest)
    found = Catalog(tmp_path / "c")
    assert found.summary() is None
    assert totals(found, Filter()) == before
    wrong = {"linked": 0, "allocated": 0, "by": {"type": [1]}}
    replace(value, parts=[replace(part, summary=wrong) for part in value.parts]).save(manifest)
    with pytest.raises(CatalogError, match="damaged"):
        Catalog(tmp_path / "c")


def test_the_largest_are_found_without_reading_what_cannot_hold_them(
    tmp_path: Path, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(tree, tmp_path / "c", BuildOptions(threads=1, batch_rows=4))
    found = Catalog(tmp_path / "c")
    read: list[int] = []
    real = pq.ParquetFile.read_row_group

    def counted(self: pq.ParquetFile, group: int, **options: object) -> object:
        read.append(group)
        return real(self, group, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", counted)
    for by in ("size", "mtime"):
        for which in (Filter(types="f"), Filter(name=b"*.log"), Filter(types="f", size="-1024c")):
            pieces = select(found, which, [by, "name"])
            listed = [row for piece in pieces for row in piece[by].cast("int64").to_pylist()]
            read.clear()
            assert top(found, which, by, 3)[by].cast("int64").to_pylist() == sorted(listed, reverse=True)[:3]
    groups = pq.read_metadata(found.entries_files()[0]).num_row_groups
    read.clear()
    top(found, Filter(types="f"), "size", 1)
    assert groups > 8 and len(set(read)) < groups


@pytest.mark.parametrize(
    "pattern", ["a", "*", "a*b?c", "[a-c]x", "[!a]", "[", "a\\*", ".", "a.b", "[]]", "(x|y)+"]
)
@pytest.mark.parametrize(
    "name", ["a", "b", "axbyc", "bx", "dx", "[", "a*", ".", "a.b", "axb", "]", "(x|y)+", "xy"]
)
def test_patterns_become_expressions_of_the_same_meaning(pattern: str, name: str) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    # A backslash in fnmatch has no meaning; here, as in find, it takes the meaning from what follows.
    expected = name == "a*" if pattern == "a\\*" else fnmatch.fnmatchcase(name, pattern)
    found = pc.match_substring_regex(pa.array([name.encode()]), regex(pattern.encode()))
    assert found.to_pylist() == [expected]


def test_odd_names_stay_one_line_and_lose_nothing(catalog: Catalog) -> None:
    import base64
    import csv

    odd = Filter(name=b"odd*")
    raw = b"d1/deep/odd\n\xff.log"
    shown = "d1/deep/odd\\n\\xff.log"
    (line,) = b"".join(export(select(catalog, odd), "jsonl")).splitlines()
    value = json.loads(line)
    assert value["path"] == shown == display(raw)
    assert base64.b64decode(value["path_base64"]) == raw
    header, row = csv.reader(b"".join(export(select(catalog, odd), "csv")).decode().splitlines())
    assert dict(zip(header, row, strict=True))["path"] == shown
    (listing,) = b"".join(export(select(catalog, odd), "mfu")).decode().splitlines()
    assert listing.startswith("-rw") and listing.endswith(shown) and " 5.000   B " in listing
    with pytest.raises(CatalogError, match="no format"):
        list(export(select(catalog, odd), "xml"))
