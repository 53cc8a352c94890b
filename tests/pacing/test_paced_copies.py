"""A copy on one machine obeys while it runs: its rate, a pause, and its end in a pause."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness import wait_until
from pacing_support import (
    PATIENCE_S,
    cancelled_at_once,
    is_limited_by,
    moves_below,
    moves_between,
    stands_still,
    until_moving,
)
from waystage._native import TreeComparison, TreeCopy
from waystage.native_options.copies import TreeCopyOptions

MIB = 1 << 20


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A tree with one file of 256 MiB, all of it data."""
    tree = tmp_path / "large"
    tree.mkdir()
    piece = bytes(range(256)) * (MIB // 256)
    with (tree / "file").open("wb") as file:
        for _ in range(256):
            file.write(piece)
    return tree


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A tree of 20,000 files of 10 bytes."""
    tree = tmp_path / "small"
    for folder in range(20):
        (tree / f"{folder}").mkdir(parents=True)
        for name in range(1000):
            (tree / f"{folder}/{name}").write_bytes(b"0123456789")
    return tree


@contextmanager
def copying(source: Path, rate: int | None = None, workers: int = 4, **options: bool) -> Iterator[TreeCopy]:
    wanted = TreeCopyOptions(workers=workers, rate_bytes_per_s=rate, **options)  # type: ignore[arg-type]
    with TreeCopy(source, source.with_name("copy"), wanted) as task:
        yield task


def same(tree: Path) -> bool:
    pairs = [(bytes(path.relative_to(tree)), True) for path in tree.rglob("*") if path.is_file()]
    with TreeComparison(tree, tree.with_name("copy"), pairs, xattrs=True, threads=2) as comparison:
        comparison.wait()
        return comparison.progress()["pairs"] == len(pairs) and comparison.unlike() == []


def test_a_pause_in_a_large_file_stops_its_bytes_and_resuming_ends_with_identical_ones(large: Path) -> None:
    with copying(large, rate=80 * MIB) as copy:
        assert copy.controls == ("rate", "loaders", "pause")
        until_moving(copy)
        copy.pause()
        assert stands_still(copy)
        assert copy.flow().limited_by == "paused"
        copy.resume()
        until_moving(copy, copy.flow().bytes_done)
        copy.set_rate(None)
        copy.limit(None)
        assert copy.wait(PATIENCE_S)
        assert copy.flow().bytes_done == copy.flow().bytes_total == 256 * MIB
    assert same(large)


def test_a_pause_stops_a_copy_of_small_files_between_two_of_them(small: Path) -> None:
    with copying(small, rate=40_000) as copy:
        until_moving(copy)
        copy.set_rate(None)
        copy.pause()
        copy.limit(None)
        assert stands_still(copy)
        files = copy.progress()["files"]
        assert 0 < files < 20_000
        copy.resume()
        assert copy.wait(PATIENCE_S) and copy.complete
    assert same(small)


def test_empty_files_pause_as_well(tmp_path: Path) -> None:
    tree = tmp_path / "empty"
    tree.mkdir()
    for name in range(20_000):
        (tree / f"{name}").touch()

    def paused_and_resumed() -> bool:
        """Whether it was paused before its end: on a busy machine it may be over before this thread goes on."""
        shutil.rmtree(tree.with_name("copy"), ignore_errors=True)
        with copying(tree) as copy:
            copy.pause()
            seen = [-1]

            def stands() -> bool:
                time.sleep(0.3)
                seen.append(copy.progress()["files"])
                return seen[-1] == seen[-2]

            wait_until(stands, what="a copy that stands still")
            copy.resume()
            assert copy.wait(PATIENCE_S) and copy.progress()["files"] == 20_000
            return seen[-1] < 20_000

    wait_until(paused_and_resumed, what="a copy that is paused before its end")


@pytest.mark.parametrize("low", [1, 200_000])
def test_a_new_rate_holds_at_once_also_for_threads_that_sleep_for_an_old_one(large: Path, low: int) -> None:
    with copying(large) as copy:
        copy.set_rate(low)
        time.sleep(0.3)
        copy.set_rate(40 * MIB)
        moves_between(copy, 0.6 * 40 * MIB, 1.4 * 40 * MIB)
        copy.set_rate(8 * MIB)
        moves_between(copy, 0.6 * 8 * MIB, 1.6 * 8 * MIB)
        assert is_limited_by(copy, "rate")
        copy.set_rate(None)
        assert copy.wait(PATIENCE_S)
    assert same(large)


def test_the_lower_of_the_users_limit_and_a_policys_rate_holds(large: Path) -> None:
    with copying(large, rate=10 * MIB) as copy:
        copy.set_rate(100 * MIB)
        moves_below(copy, 16 * MIB)
        copy.set_rate(2 * MIB)
        moves_below(copy, 4 * MIB)
        copy.set_rate(None)
        moves_between(copy, 6 * MIB, 16 * MIB)  # the user's own limit is not lifted with the policy's


def test_a_paused_copy_is_cancelled_at_once_and_the_same_copy_goes_on(large: Path) -> None:
    with copying(large, rate=80 * MIB) as copy:
        until_moving(copy, 40 * MIB)
        copy.pause()
        time.sleep(0.2)
        cancelled_at_once(copy)
    # Its object has the destination locked.
    del copy
    with copying(large) as again:
        assert again.wait(PATIENCE_S) and again.complete
    assert same(large)


def test_a_control_that_a_task_lacks_is_named_with_those_it_has(large: Path) -> None:
    with copying(large, rate=MIB) as copy:
        with pytest.raises(ValueError, match=r'no control "mode": its controls are rate, loaders, pause'):
            copy.set_mode("modest")
        copy.set_loaders(3)
        for bad in (0, -5):
            with pytest.raises(ValueError, match="is no rate in bytes/s: give 1 or more, or pause the task"):
                copy.set_rate(bad)
