"""Deduplication profiles by many nodes: the report of one, whatever workers are killed."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

from harness import Waystage
from nodes_support import dask_cluster, doomed_cluster
from waystage.catalog import ranges
from waystage.dedup import DedupOptions, Report, on_nodes, profile
from waystage.nodes import Where, join
from waystage.task import no_progress


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
        waystage("dedup", "tree", "-x", "left-out", "--parts-in", "parts", "--parts", "2").expect()
        merge = ("dedup", "--merge", "parts", "--json")
        assert (
            waystage(*merge, "--scheduler", cluster.address).expect().json == waystage(*merge).expect().json
        )
        refused = waystage(*merge[:-1], "--estimate", "--scheduler", cluster.address).expect(2).err
        assert "--estimate: no effect with --scheduler" in refused
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def make_random(top: Path, seed: int) -> None:
    """Files of random sizes, types and depths that repeat one another at random places, holes and hard links."""
    chance = random.Random(seed)
    noise = chance.randbytes(1 << 20)
    folders = [top]
    for number in range(12):
        folders.append(chance.choice(folders) / f"d{number}")
        folders[-1].mkdir(parents=True)
    files: list[Path] = []
    for number in range(150):
        path = (
            chance.choice(folders)
            / f"f{number}{chance.choice(['', '.txt', '.BIN', '.h5', '.longer-ending'])}"
        )
        if files and chance.random() < 0.15:
            os.link(chance.choice(files), path)
            continue
        with open(path, "wb") as file:
            for _ in range(chance.randrange(4)):
                start = chance.randrange(1 << 19)
                file.write(noise[start : start + chance.choice([1, 5000, 100_000, 400_000])])
                file.write(bytes(chance.choice([0, 0, 70_000])))
                if chance.random() < 0.2:
                    file.truncate(file.tell() + 300_000)
                    file.seek(0, os.SEEK_END)
        files.append(path)


def without_index(report: Report) -> dict[str, Any]:
    """The memory of the index depends on the order in which chunks come."""
    return {name: value for name, value in vars(report).items() if name != "index_bytes"}


@pytest.mark.parametrize(
    "place",
    [
        None,
        "waystage.dedup.on_nodes:make_part:after",
        "waystage.dedup.on_nodes:profile_linked:before",
        "waystage.dedup.on_nodes:merge:after",
    ],
)
def test_slices_joined_by_workers_are_the_report_of_one_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str | None
) -> None:
    """Whichever task a worker is killed in, on a tree that is another one for each."""
    make_random(tmp_path / "tree", len(place or ""))
    options = DedupOptions(method="fixed:4096")
    one = profile(tmp_path / "tree", options)
    monkeypatch.setattr(ranges, "LEAST_COST", 2 << 20)
    monkeypatch.setattr(on_nodes, "MERGED_BYTES", 20_000)
    with (
        dask_cluster(tmp_path / "dask", 2)
        if place is None
        else doomed_cluster(tmp_path / "dask", place) as cluster
    ):
        with join(Where(cluster.address)) as engine:
            many = on_nodes.profile_on_nodes(
                engine, tmp_path / "tree", options, no_progress, directory=tmp_path
            )
    assert one.all.distinct_chunks > 200 and one.files["links"] > 0 and one.files["hole_chunks"] > 0
    assert without_index(many) == without_index(one)
    assert many.index_bytes < one.index_bytes
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_an_empty_tree_has_an_empty_report(waystage: Waystage, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    with dask_cluster(tmp_path / "dask", 1) as cluster:
        found = waystage("dedup", "tree", "--scheduler", cluster.address, "--json").expect().json
    assert found["all"]["chunks"] == found["files"]["read"] == 0


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
