"""Loads, deduplication profiles, augmentations and staged files obey while they run."""

from __future__ import annotations

import io
import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pacing_support import (
    PATIENCE_S,
    cancelled_at_once,
    is_limited_by,
    moves_below,
    moves_between,
    paced,
    stands_still,
    until_moving,
)
from waystage._native import (
    Augmentation,
    DedupProfile,
    FileServer,
    FileTransfer,
    LoadFiles,
    Loading,
    TransferError,
)
from waystage.native_options.datasets import AugmentationOptions, DedupProfileOptions
from waystage.native_options.loads import LoadingOptions

MIB = 1 << 20
FILES, SIZE = 48, 2 * MIB
TOTAL = FILES * SIZE
TARGETS = 3


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    root.mkdir()
    for number in range(FILES):
        (root / f"f{number:02}").write_bytes(bytes([number]) * SIZE)
    return root


def strings(texts: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    offsets = np.cumsum([0, *map(len, texts)])
    return offsets.astype(np.int32), np.frombuffer(b"".join(texts), np.uint8)


def load_files(root: Path) -> LoadFiles:
    """The files of `root`, file i on target 10 + i % 3."""
    paths = sorted(root.iterdir())
    stats = [path.stat() for path in paths]
    count = len(paths)
    files = LoadFiles(root)
    files.extend(
        {
            "directories": strings([b""]),
            "directory": np.zeros(count, np.int32),
            "kind": np.zeros(count, np.int8),
            "names": strings([os.fsencode(path.name) for path in paths]),
            "size": np.array([stat.st_size for stat in stats], np.int64),
            "mtime": np.array([stat.st_mtime_ns for stat in stats], np.int64),
            "ctime": np.array([stat.st_ctime_ns for stat in stats], np.int64),
            "inode": np.array([stat.st_ino for stat in stats], np.uint64),
            "layout": np.zeros(count, np.int8),
            "generation": np.zeros(count, np.uint32),
            "objects": np.arange(count + 1, dtype=np.int32),
            "object_target": (10 + np.arange(count) % TARGETS).astype(np.uint32),
            "object_offset": np.zeros(count, np.int64),
            "object_length": np.array([stat.st_size for stat in stats], np.int64),
        }
    )
    files.sort()
    return files


def loading(root: Path, loaders: int = 6, memory_bytes: int = 2 * TOTAL, **more: object) -> Loading:
    usual = {
        "whole_files": False,
        "seed": 0,
        "epoch": 0,
        "shuffle": False,
        "rank": 0,
        "world": 1,
        "uneven": "keep",
        "loaders": loaders,
        "best_loaders": None,
        "in_order": False,
        "memory_bytes": memory_bytes,
        "piece_bytes": MIB // 4,
        "steal": True,
        "raises": True,
        "resized": False,
    }
    return Loading(load_files(root), LoadingOptions(**(usual | more)))  # type: ignore[arg-type]


def delivered(load: Loading) -> Counter[str]:
    sizes: Counter[str] = Counter()
    for path, _, data in load:
        assert bytes(data[:1]) == bytes([int(path[1:])])
        sizes[path] += len(data)
    return sizes


def test_a_load_pauses_resumes_and_delivers_every_byte_once(tree: Path) -> None:
    with paced(lambda: loading(tree), 8 * MIB, TOTAL) as load:
        assert load.controls == ("rate", "loaders", "pause")
        until_moving(load)
        load.pause()
        assert stands_still(load)
        assert load.flow().limited_by == "paused" and load.flow().bytes_total == TOTAL
        load.resume()
        load.set_rate(4 * MIB)
        moves_between(load, 0.5 * 4 * MIB, 1.5 * 4 * MIB, 1.5)
        assert is_limited_by(load, "rate")
        load.set_rate(None)
        assert delivered(load) == {f"f{number:02}": SIZE for number in range(FILES)}


def test_a_load_whose_bytes_are_not_taken_is_limited_by_its_destination(tree: Path) -> None:
    with loading(tree, memory_bytes=4 * MIB) as load:
        assert is_limited_by(load, "destination")


@pytest.mark.parametrize("steal", [True, False])
def test_loaders_of_each_target_change_up_and_down_while_it_reads(tree: Path, steal: bool) -> None:
    with paced(lambda: loading(tree, loaders=3, steal=steal), 6 * MIB, TOTAL) as load:
        for loaders in (8, 1, 4, {10: 1, 12: 6}, {11: 2}):
            load.set_loaders(loaders)
            until_moving(load, load.flow().bytes_done)
        with pytest.raises(ValueError, match="no file is on storage target 99"):
            load.set_loaders({99: 1})
        with pytest.raises(ValueError, match="at least 1 loader"):
            load.set_loaders(0)
        load.set_rate(None)
        assert sum(delivered(load).values()) == TOTAL


def test_a_paused_load_is_cancelled_at_once(tree: Path) -> None:
    with loading(tree) as load:
        load.pause()
        time.sleep(0.2)
        cancelled_at_once(load)


def profile(root: Path, threads: int = 4, rate: int = 0) -> DedupProfile:
    paths = sorted(root.iterdir())
    stats = [path.stat() for path in paths]
    offsets, data = strings([os.fsencode(path.name) for path in paths])
    columns = (
        offsets.astype(np.int64),
        data,
        np.array([stat.st_size for stat in stats], np.int64),
        np.array([stat.st_mtime_ns for stat in stats], np.int64),
        np.array([stat.st_ctime_ns for stat in stats], np.int64),
        np.array([stat.st_ino for stat in stats], np.uint64),
        np.array([stat.st_dev for stat in stats], np.uint64),
        np.array([stat.st_nlink for stat in stats], np.uint32),
        (10 + np.arange(len(paths)) % TARGETS).astype(np.uint32),
    )
    return DedupProfile(root, columns, DedupProfileOptions(method="fast", threads=threads, bytes_per_s=rate))


def test_a_profile_pauses_resumes_and_reports_every_byte(tree: Path) -> None:
    with profile(tree, rate=12 * MIB) as task:
        assert task.controls == ("rate", "loaders", "pause")
        until_moving(task)
        task.pause()
        assert stands_still(task)
        task.resume()
        task.set_rate(4 * MIB)
        moves_between(task, 0.5 * 4 * MIB, 1.6 * 4 * MIB, 1.5)
        assert is_limited_by(task, "rate")
        task.set_rate(100 * MIB)
        moves_below(task, 1.6 * 12 * MIB)  # the profile's own limit is the lower one
        assert task.wait(PATIENCE_S)
        assert task.flow().bytes_done == task.flow().bytes_total == TOTAL
        report, errors = task.finish()
        assert errors == [] and report["files"]["bytes"] == TOTAL


def test_readers_of_each_target_are_limited_while_a_profile_runs(tree: Path) -> None:
    with profile(tree, threads=6, rate=24 * MIB) as task:
        for loaders in (1, 3, {11: 1, 12: 2}):
            task.set_loaders(loaders)
            until_moving(task, task.flow().bytes_done)
        with pytest.raises(ValueError, match="no file is on storage target 7"):
            task.set_loaders({7: 1})
        assert task.wait(PATIENCE_S)
        assert task.finish()[0]["files"]["bytes"] == TOTAL


def test_a_paused_profile_is_cancelled_at_once(tree: Path) -> None:
    with profile(tree, rate=MIB) as task:
        task.pause()
        task.set_loaders(1)
        time.sleep(0.2)
        cancelled_at_once(task)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    root = tmp_path / "images"
    root.mkdir()
    pixels = np.random.default_rng(1).integers(0, 255, (64, 64, 3), np.uint8)
    encoded = io.BytesIO()
    Image.fromarray(pixels).save(encoded, "PNG")
    for number in range(400):
        (root / f"{number:03}.png").write_bytes(encoded.getvalue())
    return root


def test_an_augmentation_pauses_resumes_and_makes_every_image(images: Path, tmp_path: Path) -> None:
    paths = sorted(images.iterdir())
    stats = [path.stat() for path in paths]
    size = stats[0].st_size
    offsets, data = strings([os.fsencode(path.name) for path in paths])
    columns = (
        offsets.astype(np.int64),
        data,
        np.array([stat.st_size for stat in stats], np.int64),
        np.array([stat.st_mtime_ns for stat in stats], np.int64),
        np.array([stat.st_ctime_ns for stat in stats], np.int64),
        np.array([stat.st_ino for stat in stats], np.uint64),
    )
    made = tmp_path / "made"
    made.mkdir()
    options = AugmentationOptions(
        operations=["flip"], seed=1, max_pixels=10**6, threads=2, target="tree", path=made
    )

    def made_anew() -> Augmentation:
        for left in made.iterdir():
            left.unlink()
        return Augmentation(images, columns, options)

    with paced(made_anew, 50 * size, 400 * size) as task:
        assert task.controls == ("rate", "pause")
        until_moving(task)
        task.pause()
        assert stands_still(task)
        assert task.flow().limited_by == "paused"
        task.resume()
        moves_between(task, 15 * size, 110 * size)
        task.set_rate(None)
        assert task.wait(PATIENCE_S)
        counts, errors = task.finish()
        assert errors == [] and counts["made"] == len(list(made.iterdir())) == 400


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FileServer]:
    (tmp_path / "jobs").mkdir()
    with FileServer(address="127.0.0.1", port=0, root=tmp_path, modules=[("jobs", True)]) as server:
        yield server


@pytest.mark.parametrize("way", ["put", "get"])
def test_a_staged_file_pauses_and_arrives(server: FileServer, tmp_path: Path, way: str) -> None:
    content = os.urandom(MIB) * 96
    near, far = tmp_path / "near", tmp_path / "jobs" / "file"
    (near if way == "put" else far).write_bytes(content)
    (tmp_path / "here").mkdir()
    step = (
        ([os.fsencode(near)], b"jobs", 1)
        if way == "put"
        else ([b"jobs/file"], os.fsencode(tmp_path / "here"), 1)
    )

    def begun() -> FileTransfer:
        return FileTransfer(address="127.0.0.1", port=server.port, way=way, steps=[step])  # type: ignore[arg-type]

    with paced(begun, 8 * MIB, len(content)) as task:
        assert task.controls == ("rate", "pause")
        until_moving(task)
        task.pause()
        assert stands_still(task)
        task.resume()
        moves_below(task, 2 * 8 * MIB, 1.5)
        task.set_rate(None)
        assert task.wait(PATIENCE_S)
    assert (
        tmp_path / "jobs" / "near" if way == "put" else tmp_path / "here" / "file"
    ).read_bytes() == content


def test_a_paused_transfer_is_cancelled_at_once(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "near").write_bytes(bytes(64 * MIB))
    step = ([os.fsencode(tmp_path / "near")], b"jobs", 1)
    with FileTransfer(address="127.0.0.1", port=server.port, way="put", steps=[step]) as task:
        task.pause()
        time.sleep(0.2)
        cancelled_at_once(task)
        with pytest.raises(TransferError):
            task.wait()
