"""A catalog that many nodes build is the catalog that one builds, and one data set for other programs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness import Waystage, wait_until
from nodes_support import DaskCluster, dask_cluster, doomed_cluster
from waystage.catalog import BuildOptions, Catalog, build
from waystage.catalog import on_nodes as catalog_on_nodes
from waystage.catalog.on_nodes import build_on_nodes
from waystage.nodes import NodesRefused, Where, join


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A tree with a deep branch, a wide directory, hard links, links, and names that are no UTF-8."""
    top = tmp_path / "large"
    for branch in range(12):
        for leaf in range(8):
            folder = top / f"b{branch}" / f"l{leaf}"
            folder.mkdir(parents=True)
            for number in range(25):
                (folder / f"f{number}").write_bytes(b"x" * (branch * number))
    deep = top / "deep"
    for level in range(30):
        deep = deep / f"d{level}"
    deep.mkdir(parents=True)
    (deep / "end").write_text("end")
    os.link(top / "b1/l1/f1", top / "b2/l2/second-name")
    (top / "link").symlink_to("b1")
    os.mkdir(os.fsencode(top) + b"/\xff\xfe")
    return top


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[DaskCluster]:
    with dask_cluster(tmp_path / "dask", 2) as started:
        yield started


def rows(catalog: Path) -> tuple[pa.Table, pa.Table]:
    """Entries and directories in one order, without what depends on the walk's own reading."""
    opened = Catalog(catalog)
    entries = opened.entries()
    plain = [
        column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
        for column in entries.columns
    ]
    entries = pa.table(plain, names=entries.column_names).drop_columns(["atime", "atime_seconds"])
    directories = opened.directories().group_by("path").aggregate([("rows", "sum"), ("total", "max")])
    keys = [("directory", "ascending"), ("name", "ascending")]
    return entries.sort_by(keys), directories.sort_by("path")


def test_a_catalog_of_many_nodes_is_the_catalog_of_one(
    waystage: Waystage, cluster: DaskCluster, large: Path, tmp_path: Path
) -> None:
    many = waystage("catalog", "build", large, "many", "--scheduler", cluster.address, "--json").expect()
    one = waystage("catalog", "build", large, "one", "--json").expect()
    assert rows(tmp_path / "many")[0].equals(rows(tmp_path / "one")[0])
    assert rows(tmp_path / "many")[1].equals(rows(tmp_path / "one")[1])
    assert many.json["counts"] == one.json["counts"] and many.json["entries"] == one.json["entries"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dask", "large", "many", "one"]


@pytest.mark.parametrize(
    "place",
    [
        "waystage.catalog.recording:Recorder.close_part:before",
        "waystage.catalog.parts:PartWriter.close:after",
        "waystage.catalog.recording:Recorder.close_part:after",
    ],
)
def test_a_walker_killed_before_or_after_its_part_has_a_name_leaves_no_entry_out_and_none_twice(
    large: Path, tmp_path: Path, place: str
) -> None:
    with doomed_cluster(tmp_path / "dask", place) as cluster, join(Where(cluster.address)) as engine:
        build_on_nodes(engine, large, tmp_path / "many", BuildOptions(threads=1))
    build(large, tmp_path / "one")
    assert rows(tmp_path / "many")[0].equals(rows(tmp_path / "one")[0])
    assert rows(tmp_path / "many")[1].equals(rows(tmp_path / "one")[1])
    assert len(list((tmp_path / "many").iterdir())) == 3


def test_a_walk_that_gives_away_what_it_has_not_begun_leaves_no_entry_out_and_none_twice(
    cluster: DaskCluster, large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of so small batches few wait to be recorded: the walk is not at its end when the clock is first read.
    monkeypatch.setattr(catalog_on_nodes, "FIRST_S", 0.0)
    monkeypatch.setattr(catalog_on_nodes, "LONGEST_S", 0.0)
    with join(Where(cluster.address)) as engine:
        build_on_nodes(engine, large, tmp_path / "many", BuildOptions(threads=1, batch_rows=20))
    build(large, tmp_path / "one")
    assert len(Catalog(tmp_path / "many").manifest.parts) > 2
    assert rows(tmp_path / "many")[0].equals(rows(tmp_path / "one")[0])


KILLED = """
import os, sys
from pathlib import Path
from waystage.catalog import BuildOptions
from waystage.catalog import on_nodes
from waystage.nodes import Where, join

on_nodes.FIRST_S = on_nodes.LONGEST_S = on_nodes.JOURNAL_S = 0.0
address, tree, target = sys.argv[1:]

def progress(what, share):
    if not what.startswith("0 entries"):
        os.kill(os.getpid(), 9)

with join(Where(address)) as engine:
    on_nodes.build_on_nodes(engine, Path(tree), Path(target), BuildOptions(threads=1), progress)
"""


def test_a_build_that_was_killed_goes_on_from_its_finished_parts(
    waystage: Waystage, cluster: DaskCluster, large: Path, tmp_path: Path
) -> None:
    wait_until(lambda: time.time() - os.lstat(large).st_ctime > 3)
    words = [sys.executable, "-c", KILLED, cluster.address, str(large), str(tmp_path / "many")]
    assert subprocess.run(words, check=False).returncode == -9
    (large / "b3/l3/new").write_text("since")
    again = ("catalog", "build", large, "many", "--scheduler", cluster.address, "--json")
    built = waystage(*again).expect().json
    assert built["resumed"] and 0 < built["kept"] < built["entries"]
    build(large, tmp_path / "one")
    # The entry of the changed directory is in one that was not read again: `refresh` renews it, as for one machine.
    which = ["directory", "name", "type", "inode", "links"]
    assert rows(tmp_path / "many")[0].select(which).equals(rows(tmp_path / "one")[0].select(which))
    assert rows(tmp_path / "many")[1].equals(rows(tmp_path / "one")[1])
    assert "new" in str(Catalog(tmp_path / "many").entries(["name"])["name"].to_pylist())


def test_patterns_and_its_own_folder_are_left_out_on_every_node(
    waystage: Waystage, cluster: DaskCluster, large: Path
) -> None:
    words = ("catalog", "build", large, large / "own", "--exclude", "f1*", "--scheduler", cluster.address)
    waystage(*words).expect()
    found = Catalog(large / "own").entries(["name"])["name"].to_pylist()
    assert b"f2" in found and b"f12" not in found and not [name for name in found if name.startswith(b"own")]


def test_a_tree_that_a_node_does_not_have_is_named(
    waystage: Waystage, cluster: DaskCluster, large: Path, tmp_path: Path
) -> None:
    with join(Where(cluster.address)) as engine, pytest.raises(NodesRefused, match="cannot be read there"):
        from waystage.nodes import Mark

        missing = Mark(str(tmp_path / "absent"), "absent")
        build_on_nodes(engine, large, tmp_path / "many", marks=[missing])


def test_duckdb_and_polars_read_a_catalog_as_one_data_set_of_one_or_many_nodes(
    waystage: Waystage, cluster: DaskCluster, large: Path, tmp_path: Path
) -> None:
    waystage("catalog", "build", large, "many", "--scheduler", cluster.address).expect()
    waystage("catalog", "build", large, "one").expect()
    totals = []
    for name in ("many", "one"):
        files = f"{tmp_path}/{name}/entries-*.parquet"
        query = f"SELECT count(*), sum(size), count(DISTINCT directory) FROM '{files}' WHERE type = 'f'"
        by_duckdb = duckdb.sql(query).fetchall()[0]
        frame = polars.scan_parquet(files).filter(polars.col("type") == "f")
        expressions = [polars.len(), polars.col("size").sum(), polars.col("directory").n_unique()]
        assert frame.select(*expressions).collect().row(0) == by_duckdb
        totals.append(by_duckdb)
    assert totals[0] == totals[1] and totals[0][0] == 12 * 8 * 25 + 2
    found = waystage("catalog", "query", "many", "--sql", "SELECT count(*) FROM entries", "--json").expect()
    assert str(found.json).count("2") >= 1


SPARK_READS = {
    "BOOLEAN/None",
    "BYTE_ARRAY/None",
    "BYTE_ARRAY/String",
    "INT32/None",
    "INT64/None",
    "INT32/Int(bitWidth=8, isSigned=true)",
    "INT32/Int(bitWidth=16, isSigned=false)",
    "INT32/Int(bitWidth=32, isSigned=false)",
    "INT64/Int(bitWidth=64, isSigned=false)",
    "INT64/Timestamp(isAdjustedToUTC=true, timeUnit=nanoseconds, is_from_converted_type=false, force_set_converted_type=false)",
}
"""Types that Spark 3.4's ParquetSchemaConverter takes, the last with `spark.sql.legacy.parquet.nanosAsLong`."""

SPARK_DECODES = {
    "PLAIN",
    "RLE",
    "PLAIN_DICTIONARY",
    "RLE_DICTIONARY",
    "DELTA_BINARY_PACKED",
    "DELTA_BYTE_ARRAY",
}
"""Encodings of its VectorizedColumnReader since 3.3."""


def test_the_files_have_no_type_encoding_or_compression_that_spark_refuses(
    large: Path, tmp_path: Path
) -> None:
    build(large, tmp_path / "one")
    for path in (tmp_path / "one").glob("*.parquet"):
        metadata = pq.read_metadata(path)
        for index in range(len(metadata.schema)):
            column = metadata.schema.column(index)
            assert f"{column.physical_type}/{column.logical_type}" in SPARK_READS, (path, column)
        for group in range(metadata.num_row_groups):
            for index in range(metadata.num_columns):
                chunk = metadata.row_group(group).column(index)
                assert set(chunk.encodings) <= SPARK_DECODES, (path, chunk.path_in_schema, chunk.encodings)
                assert chunk.compression in ("ZSTD", "UNCOMPRESSED")
