"""Deduplication profiles by many nodes: the report of one, whatever workers are killed."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from harness import Waystage
from nodes_support import dask_cluster, doomed_cluster


def make_redundant(top: Path) -> None:
    """Files that repeat one another in parts, hard links, one that is excluded."""
    chance = random.Random(3)
    blocks = [chance.randbytes(200_000) for _ in range(6)]
    for folder in range(4):
        (top / f"d{folder}").mkdir(parents=True)
        for number in range(20):
            chosen = chance.choices(blocks, k=3)
            (top / f"d{folder}" / f"f{number}.{number % 3}").write_bytes(b"".join(chosen))
    os.link(top / "d1/f1.1", top / "d2/again.1")
    (top / "left-out").write_bytes(b"x")


def test_the_report_of_many_nodes_is_that_of_one(waystage: Waystage, tmp_path: Path) -> None:
    make_redundant(tmp_path / "tree")
    one = waystage("dedup", "tree", "-x", "left-out", "--json").expect().json
    waystage("catalog", "build", "tree", "catalog").expect()
    with dask_cluster(tmp_path / "dask", 2) as cluster:
        for source in ("tree", "catalog"):
            words = ("dedup", source, "-x", "left-out", "--scheduler", cluster.address, "--json")
            many = waystage(*words).expect().json
            assert {k: v for k, v in many.items() if k != "index_bytes"} == {
                k: v for k, v in one.items() if k != "index_bytes"
            }
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize(
    "place",
    [
        "waystage.dedup.on_nodes:make_part:0.03",
        "waystage.dedup.on_nodes:make_part:after",
        "waystage.dedup.on_nodes:profile_part:after",
    ],
)
def test_a_worker_killed_in_a_part_costs_that_part(waystage: Waystage, tmp_path: Path, place: str) -> None:
    make_redundant(tmp_path / "tree")
    with doomed_cluster(tmp_path / "dask", place) as cluster:
        words = ("--parts-in", "parts", "--scheduler", cluster.address, "--json")
        made = waystage("dedup", "tree", *words, timeout=150).expect().json
    assert made["kept"] == 0 and sorted(made["parts"]) == sorted(
        f"parts/{p.name}" for p in (tmp_path / "parts").iterdir()
    )
    merged = waystage("dedup", "--merge", "parts", "--json").expect().json
    one = waystage("dedup", "tree", "--json").expect().json
    assert (merged["all"], merged["by_type"], merged["files"]["links"]) == (one["all"], one["by_type"], 1)


def test_parts_that_exist_are_kept_also_with_another_number_of_workers(
    waystage: Waystage, tmp_path: Path
) -> None:
    make_redundant(tmp_path / "tree")
    with dask_cluster(tmp_path / "dask", 1) as cluster:
        words = ("dedup", "tree", "--parts-in", "parts", "--scheduler", cluster.address, "--json")
        first = waystage(*words).expect().json
        assert len(first["parts"]) == 4
        (tmp_path / first["parts"][2]).unlink()
        cluster.add_worker()
        cluster.wait_for(2)
        again = waystage(*words).expect().json
    assert again == {"parts": first["parts"], "kept": 3}


def test_lists_are_not_put_into_the_tree_that_is_read(waystage: Waystage, tmp_path: Path) -> None:
    make_redundant(tmp_path / "tree")
    with dask_cluster(tmp_path / "dask", 1) as cluster:
        words = ("dedup", "tree", "--scheduler", cluster.address, "--nodes-dir", "tree/d1")
        refused = waystage(*words).expect(1)
    assert "tree/d1, for lists that all nodes read, is inside tree" in refused.err
