"""Copies by many nodes: the same as one machine's, whatever workers are killed."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from copying_trees import make_everything, snapshot
from harness import Waystage, command, wait_until
from nodes_support import DaskCluster, dask_cluster, doomed_cluster
from waystage.catalog import ranges
from waystage.copying import on_nodes
from waystage.copying.shares import FOLDER, key_of_range, start
from waystage.nodes import Where, join
from waystage.task import Progress, no_progress


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[DaskCluster]:
    with dask_cluster(tmp_path / "dask", 2) as started:
        yield started


def make_large(top: Path) -> None:
    """Everything that a tree may hold, many files, and two of more than an extent."""
    top.mkdir()
    make_everything(top)
    for folder in range(20):
        (top / f"d{folder}").mkdir()
        for number in range(40):
            (top / f"d{folder}" / f"f{number}").write_bytes(os.urandom(3000))
    for name, size in (("big", ranges.LARGE_BYTES), ("d1/big", 40 << 20)):
        with open(top / name, "wb") as file:
            file.write(os.urandom(1 << 20))
            file.seek(size)
            file.write(b"end")


def test_a_copy_by_many_nodes_is_the_copy_of_one(
    waystage: Waystage, cluster: DaskCluster, tmp_path: Path
) -> None:
    make_large(tmp_path / "from")
    many = waystage("copy", "from", "many", "--verify", "--scheduler", cluster.address, "--json").expect()
    one = waystage("copy", "from", "one", "--verify", "--json").expect()
    assert snapshot(tmp_path / "many") == snapshot(tmp_path / "one")
    same = (
        "files",
        "bytes",
        "symlinks",
        "hard_links",
        "specials",
        "directories",
        "found",
        "found_bytes",
        "errors",
    )
    assert {k: many.json["counts"][k] for k in same} == {k: one.json["counts"][k] for k in same}
    assert many.json["complete"] and many.json["problems"] == []
    again = waystage("copy", "from", "many", "--scheduler", cluster.address, "--json").expect()
    assert again.json["counts"]["files"] == 0 and again.json["counts"]["bytes"] == 0
    assert snapshot(tmp_path / "many") == snapshot(tmp_path / "one")
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize(
    "place",
    [
        "waystage.copying.on_nodes:_copy:0.05",
        "waystage.copying.on_nodes:copy_file:0.1",
        "waystage.copying.on_nodes:_copy:after",
        "waystage.copying.on_nodes:copy_last:0.01",
        "waystage.copying.on_nodes:copy_last:after",
    ],
)
def test_a_worker_killed_in_a_copy_costs_its_task_and_no_byte(
    waystage: Waystage, tmp_path: Path, place: str
) -> None:
    make_large(tmp_path / "from")
    with doomed_cluster(tmp_path / "dask", place) as cluster:
        waystage("copy", "from", "to", "--scheduler", cluster.address).expect()
    assert snapshot(tmp_path / "to") == snapshot(tmp_path / "from")


def test_what_killed_tasks_have_left_is_removed_by_the_next_copy_of_any_kind(
    waystage: Waystage, cluster: DaskCluster, tmp_path: Path
) -> None:
    make_large(tmp_path / "from")
    for how in ([], ["--scheduler", cluster.address]):
        (tmp_path / "to").mkdir(exist_ok=True)
        code = (
            "import sys, os, time\n"
            "from waystage.copying.shares import key_of_range, start\n"
            "copy = start(sys.argv[1], sys.argv[2], [b'big'], key_of_range(77), lambda *a: None, workers=1,"
            " rate_bytes_per_s=1 << 10, update='always')\n"
            "print(flush=True)\ntime.sleep(600)\n"
        )
        words = [command()[0], "-c", code, str(tmp_path / "from"), str(tmp_path / "to")]
        with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
            wait_until(lambda: [*(tmp_path / "to").glob(".waystage-copy-*large*.part")], process)
            process.send_signal(signal.SIGKILL)
        assert [path for path in (tmp_path / "to").iterdir() if FOLDER.fullmatch(path.name)]
        waystage("copy", "from", "to", *how).expect()
        assert snapshot(tmp_path / "to") == snapshot(tmp_path / "from")


def test_one_task_in_two_workers_at_once_waits_for_itself(tmp_path: Path) -> None:
    make_large(tmp_path / "from")
    (tmp_path / "to").mkdir()
    ends, names = (str(tmp_path / "from"), str(tmp_path / "to")), [b"d1/big", b"d1/f1"]
    first = [start(*ends, names, key_of_range(1), no_progress, workers=1, rate_bytes_per_s=1 << 10)]
    waited: list[str] = []

    def progress(what: str, share: float) -> None:
        waited.append(what)
        first.clear()

    with start(*ends, names, key_of_range(1), progress, workers=1) as second:
        second.wait()
    assert "waiting for another process" in waited[0]
    for name in ("d1/big", "d1/f1"):
        assert (tmp_path / "to" / name).read_bytes() == (tmp_path / "from" / name).read_bytes()


def test_a_catalog_saves_the_walk_and_must_be_of_the_source(
    waystage: Waystage, cluster: DaskCluster, tmp_path: Path
) -> None:
    make_large(tmp_path / "from")
    waystage("catalog", "build", "from", "catalog").expect()
    (tmp_path / "from" / "later").write_text("not in the catalog")
    (tmp_path / "from" / "d3" / "f3").unlink()
    words = ("--catalog", "catalog", "--scheduler", cluster.address)
    done = waystage("copy", "from", "to", *words, "--json").expect(8)
    assert done.json["counts"]["vanished"] == 1 and done.json["problems"][0]["path"] == "d3/f3"
    assert not (tmp_path / "to" / "later").exists() and (tmp_path / "to" / "d3" / "f4").exists()
    (tmp_path / "other").mkdir()
    wrong = waystage("copy", "other", "to", *words).expect(3)
    assert "is a catalog of" in wrong.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--statistics", "lines"], "--statistics: no effect with --scheduler"),
        (["--dry-run=network"], "measures the path to another host"),
        (["--slurm", "2"], "give one"),
    ],
)
def test_options_that_have_no_effect_are_named(
    waystage: Waystage, tmp_path: Path, words: list[str], said: str
) -> None:
    make_large(tmp_path / "from")
    refused = waystage("copy", "from", "to", "--scheduler", "127.0.0.1:9", *words).expect(2)
    assert said in refused.err


def test_a_scheduler_that_does_not_answer_and_a_lone_catalog_are_one_sentence(
    waystage: Waystage, tmp_path: Path
) -> None:
    (tmp_path / "from").mkdir()
    refused = waystage("copy", "from", "to", "--scheduler", "127.0.0.1:9").expect(1)
    assert "no Dask scheduler answers at tcp://127.0.0.1:9" in refused.err and refused.err.count("\n") <= 2
    assert "--catalog needs" in waystage("copy", "from", "to", "--catalog", "c").expect(2).err


def test_a_list_and_a_dry_run_on_many_nodes_are_those_of_one(
    waystage: Waystage, cluster: DaskCluster, tmp_path: Path
) -> None:
    make_large(tmp_path / "from")
    (tmp_path / "list").write_text("d1\nd2/f3\nbig\nno-such-name\n")
    nodes = ("--scheduler", cluster.address)
    tried = waystage("copy", "from", "many", "--files-from", "list", "--dry-run", *nodes, "--json").expect(8)
    wanted = waystage("copy", "from", "one", "--files-from", "list", "--dry-run", "--json").expect(8)
    assert not (tmp_path / "many").exists()
    assert {entry["path"] for entry in tried.json["would_copy"]} == {
        entry["path"] for entry in wanted.json["would_copy"]
    }
    many = waystage("copy", "from", "many", "--files-from", "list", *nodes, "--json").expect(8)
    waystage("copy", "from", "one", "--files-from", "list", "--json").expect(8)
    assert snapshot(tmp_path / "many") == snapshot(tmp_path / "one")
    assert [problem["path"] for problem in many.json["problems"]] == ["no-such-name"]
    assert "not at the source" in many.json["problems"][0]["text"]


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_nodes, "DIVIDED_BYTES", ranges.LARGE_BYTES)
    monkeypatch.setattr(on_nodes, "FILL_EXTENTS", 2)


def copied(address: str, source: Path, target: Path, progress: Progress = no_progress) -> on_nodes.Copied:
    with join(Where(address)) as engine:
        return on_nodes.copy_on_nodes(
            engine, source, str(target), {"verify": "cached"}, progress, directory=source.parent
        )


def large_file(top: Path) -> Path:
    top.mkdir()
    with open(top / "big", "wb") as file:
        for _ in range(9):
            file.write(os.urandom(1 << 20) * 32)
    return top


@pytest.mark.usefixtures("small_parts")
def test_many_nodes_write_one_large_file(cluster: DaskCluster, tmp_path: Path) -> None:
    source = large_file(tmp_path / "from")
    made = copied(cluster.address, source, tmp_path / "to")
    assert made.complete and made.problems() == [] and made.counts["files"] == 1
    # The task that names the file writes one extent again.
    assert made.counts["bytes"] == 10 * 32 << 20
    assert snapshot(tmp_path / "to") == snapshot(source)
    again = copied(cluster.address, source, tmp_path / "to")
    assert again.counts["bytes"] == 0 and again.counts["same"] == 1


@pytest.mark.usefixtures("small_parts")
def test_many_nodes_write_a_lone_file_under_the_name_that_it_is_given(
    cluster: DaskCluster, tmp_path: Path
) -> None:
    source = large_file(tmp_path / "from") / "big"
    (tmp_path / "to").mkdir()
    for target in ("to/renamed", "to"):
        with join(Where(cluster.address)) as engine:
            made = on_nodes.copy_file_on_nodes(engine, source, str(tmp_path / target), {}, no_progress)
        assert made.complete and made.problems() == [] and made.counts["files"] == 1
        assert made.counts["bytes"] == 10 * 32 << 20
    assert sorted(path.name for path in (tmp_path / "to").iterdir()) == ["big", "renamed"]
    assert (tmp_path / "to/big").read_bytes() == (tmp_path / "to/renamed").read_bytes() == source.read_bytes()


@pytest.mark.usefixtures("small_parts")
def test_extents_that_nodes_have_written_are_not_written_again_after_a_kill(
    cluster: DaskCluster, tmp_path: Path
) -> None:
    source = large_file(tmp_path / "from")

    class Killed(Exception):
        pass

    def map_of(target: Path) -> bytes:
        return b"".join(path.read_bytes() for path in target.glob(".waystage-copy-*ffff.part"))

    def progress(what: str, share: float) -> None:
        if map_of(tmp_path / "to").count(1) >= 2:
            raise Killed

    with pytest.raises(Killed):
        copied(cluster.address, source, tmp_path / "to", progress)
    written = map_of(tmp_path / "to").count(1)
    assert written >= 2 and not (tmp_path / "to/big").exists()
    made = copied(cluster.address, source, tmp_path / "to")
    assert made.complete and made.counts["bytes"] <= (10 - written) * 32 << 20
    assert snapshot(tmp_path / "to") == snapshot(source)
