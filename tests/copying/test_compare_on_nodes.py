"""`compare` and `verify` by many nodes find what one finds."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from copying_trees import make_everything
from harness import Waystage
from nodes_support import dask_cluster, doomed_cluster


def make_two(folder: Path) -> None:
    """Two trees that differ in every way that `compare` knows."""
    first, second = folder / "first", folder / "second"
    first.mkdir()
    make_everything(first)
    for number in range(300):
        (first / "a" / f"file{number}").write_bytes(os.urandom(2000))
    os.system(f"cp -a {first} {second}")
    (second / "a" / "file7").write_bytes(b"z" * 2000)
    shutil.copystat(first / "a" / "file7", second / "a" / "file7")
    (second / "a" / "file8").unlink()
    (second / "a" / "new").touch()
    (second / "a" / "secret").chmod(0o644)
    os.setxattr(second / "a" / "file9", "user.more", b"1")
    os.unlink(second / "first name")
    shutil.copy2(second / "a" / "holes", second / "first name")


def plain(found: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name != "seconds"}


@pytest.mark.parametrize("command", [("compare", "--content", "--xattrs"), ("verify",)])
def test_many_nodes_find_the_differences_that_one_finds(
    waystage: Waystage, tmp_path: Path, command: tuple[str, ...]
) -> None:
    make_two(tmp_path)
    one = waystage(*command, "first", "second", "--json").expect(1).json
    with dask_cluster(tmp_path / "dask", 2) as cluster:
        words = (*command, "first", "second", "--json", "--scheduler", cluster.address)
        assert plain(waystage(*words).expect(1).json) == plain(one)
        waystage("catalog", "build", "first", "catalog").expect()
        words = (*command, "catalog", "second", "--json", "--scheduler", cluster.address)
        assert plain(waystage(*words).expect(1).json) == plain(one)
    assert len(one["changed"]) >= 4 and one["bytes_read"] > 500_000
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize(
    "place",
    ["waystage.trees_on_nodes:read_pairs:before", "waystage.trees_on_nodes:compare_range:after"],
)
def test_a_worker_killed_in_a_comparison_costs_its_range(
    waystage: Waystage, tmp_path: Path, place: str
) -> None:
    make_two(tmp_path)
    one = waystage("verify", "first", "second", "--json").expect(1).json
    with doomed_cluster(tmp_path / "dask", place) as cluster:
        words = ("verify", "first", "second", "--json", "--scheduler", cluster.address)
        assert plain(waystage(*words, timeout=150).expect(1).json) == plain(one)
