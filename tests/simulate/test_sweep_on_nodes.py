"""A sweep that many nodes run gives the bytes of one, whatever workers are killed and algorithms do."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import Ran, command, ran
from nodes_support import dask_cluster, doomed_cluster


def waystage(*words: object, cwd: Path) -> Ran:
    return ran(command("run", *words, "--on", "sim"), cwd=cwd, env=os.environ | {"PYTHONPATH": str(cwd)})


def runs(folder: Path) -> dict[str, bytes]:
    """Everything that a sweep leaves, by name."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix in (".run", ".json", ".parquet", ".csv")
    }


def test_many_nodes_make_the_runs_of_one(sweep: Callable[..., Path], tmp_path: Path) -> None:
    file = sweep()
    waystage(file, "--out", "one", cwd=tmp_path).expect()
    with dask_cluster(tmp_path / "dask", 2) as cluster:
        waystage(file, "--out", "many", "--scheduler", cluster.address, cwd=tmp_path).expect()
        assert runs(tmp_path / "many") == runs(tmp_path / "one")
        assert len([name for name in runs(tmp_path / "one") if name.endswith(".run")]) > 1
        waystage(file, "--out", "many", "--scheduler", cluster.address, cwd=tmp_path).expect()
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize(
    "place",
    [
        "waystage.simulate.on_nodes:in_processes:0.3",
        "waystage.simulate.on_nodes:write_run:after",
        "waystage.simulate.on_nodes:make_batch:after",
    ],
)
def test_a_worker_killed_in_a_batch_costs_that_batch(
    sweep: Callable[..., Path], tmp_path: Path, place: str
) -> None:
    file = sweep()
    with doomed_cluster(tmp_path / "dask", place) as cluster:
        waystage(file, "--out", "many", "--scheduler", cluster.address, cwd=tmp_path).expect()
    waystage(file, "--out", "one", cwd=tmp_path).expect()
    assert runs(tmp_path / "many") == runs(tmp_path / "one")


LOOPS = """
class Loops:
    def paths(self, *arguments):
        while True:
            pass
"""


def test_an_algorithm_that_loops_on_a_node_fails_its_own_run_only(
    sweep: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(LOOPS)
    changes = (
        ("[d-mod-k, greedy-max]", "[mine:Loops, d-mod-k]"),
        ("duration: 100\n", "duration: 100\nlimit_s: 2\n"),
    )
    file = sweep(*changes)
    with dask_cluster(tmp_path / "dask", 1) as cluster:
        failed = waystage(file, "--out", "many", "--scheduler", cluster.address, cwd=tmp_path).expect(1)
    assert "was ended after 2 s: one of its algorithms may loop" in failed.out


def test_only_sweeps_run_on_many_nodes(repository: Path, tmp_path: Path) -> None:
    demo = repository / "experiments" / "demo.yaml"
    refused = waystage(demo, "--scheduler", "127.0.0.1:9", cwd=tmp_path).expect(2)
    assert "demo.yaml is no sweep" in refused.err
