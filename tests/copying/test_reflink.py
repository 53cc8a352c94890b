"""`waystage copy --reflink`: a copy shares blocks with its source where the file system can and that is asked for."""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import Waystage

MAKERS = {
    "btrfs": (512 << 20, ["mkfs.btrfs", "-q", "-f"]),
    "xfs": (512 << 20, ["mkfs.xfs", "-q", "-f", "-m", "reflink=1"]),
}
SMALL_BYTES, LARGE_BYTES = 20_000, (40 << 20) + 12_345
"""The second is of two extents, and its end is not that of a block."""

FIEMAP = 0xC020660B  # FS_IOC_FIEMAP of linux/fs.h
HEAD, EXTENT = struct.Struct("=QQIIII"), struct.Struct("=QQQQQIIII")
SYNC, SHARED = 0x1, 0x2000
MOST_EXTENTS = 1000


@pytest.fixture(scope="module", params=MAKERS)
def volume(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file system that can share blocks."""
    if os.geteuid() != 0:
        pytest.skip("mounting file systems needs root")
    size, maker = MAKERS[request.param]
    environment = os.environ | {"PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
    if shutil.which(maker[0], path=environment["PATH"]) is None:
        pytest.skip(f"{maker[0]} is missing")
    folder = tmp_path_factory.mktemp(request.param)
    image, point = folder / "image", folder / "volume"
    point.mkdir()
    with open(image, "wb") as file:
        file.truncate(size)
    try:
        made = subprocess.run(
            [*maker, str(image)], capture_output=True, text=True, check=False, env=environment
        )
        if made.returncode != 0:
            pytest.skip(f"{maker[0]}: {made.stderr.strip()}")
        mounting = ["mount", "-o", "loop", str(image), str(point)]
        mounted = subprocess.run(mounting, capture_output=True, text=True, check=False)
        if mounted.returncode != 0:
            pytest.skip(f"this kernel cannot mount {request.param}: {mounted.stderr.strip()}")
        try:
            chance = random.Random(1)
            (point / "tree").mkdir()
            (point / "tree" / "small").write_bytes(chance.randbytes(SMALL_BYTES))
            (point / "tree" / "large").write_bytes(chance.randbytes(LARGE_BYTES))
            (point / "tree" / "empty").touch()
            yield point
        finally:
            subprocess.run(["umount", "-l", str(point)], check=False)
    finally:
        image.unlink()


def is_shared(path: Path) -> bool:
    """Whether all of a file's blocks are also those of another file; fails where only some are."""
    with open(path, "rb") as file:
        asked = HEAD.pack(0, (1 << 64) - 1, SYNC, 0, MOST_EXTENTS, 0) + bytes(EXTENT.size * MOST_EXTENTS)
        answer = bytearray(asked)
        fcntl.ioctl(file, FIEMAP, answer, True)
    count = HEAD.unpack_from(answer)[3]
    flags = [EXTENT.unpack_from(answer, HEAD.size + EXTENT.size * at)[5] for at in range(count)]
    shared = {bool(each & SHARED) for each in flags}
    assert len(shared) == 1, f"{path}: {flags}"
    return shared.pop()


def same(volume: Path, copy: str) -> None:
    for name in ("small", "large", "empty"):
        assert (volume / copy / name).read_bytes() == (volume / "tree" / name).read_bytes()


def test_a_copy_on_one_file_system_shares_blocks(volume: Path, waystage: Waystage) -> None:
    for when in ("auto", "always"):
        copied = waystage("copy", volume / "tree", volume / when, "--reflink", when, "--json").expect()
        assert is_shared(volume / when / "small") and is_shared(volume / when / "large")
        assert (copied.json["counts"]["files"], copied.json["counts"]["bytes"]) == (3, 0)
        same(volume, when)


def test_no_block_is_shared_where_that_is_asked_for_or_contents_are_read_back(
    volume: Path, waystage: Waystage
) -> None:
    for name, options in (("never", ("--reflink", "never")), ("verified", ("--verify",))):
        waystage("copy", volume / "tree", volume / name, *options).expect()
        assert not is_shared(volume / name / "small") and not is_shared(volume / name / "large")
        same(volume, name)
        shutil.rmtree(volume / name)


def test_a_limited_copy_reads_and_writes(volume: Path, waystage: Waystage) -> None:
    waystage("copy", volume / "tree", volume / "limited", "--bandwidth-limit", "1G").expect()
    assert not is_shared(volume / "limited" / "small")
    same(volume, "limited")


def test_what_cannot_share_is_a_problem_of_each_file_and_has_no_name(
    volume: Path, tmp_path: Path, waystage: Waystage
) -> None:
    refused = waystage("copy", volume / "tree", tmp_path / "copy", "--reflink", "always", "--json").expect(8)
    problems = {problem["path"]: problem["text"] for problem in refused.json["problems"]}
    assert problems.keys() == {"small", "large"}
    assert all("share the source's blocks" in text for text in problems.values()), problems
    assert [path.name for path in (tmp_path / "copy").iterdir()] == ["empty"]


def test_combinations_without_effect_are_refused(tmp_path: Path, waystage: Waystage) -> None:
    (tmp_path / "tree").mkdir()
    refused = [
        (("tree", "copy", "--reflink", "always", "--verify"), "--verify"),
        (("tree", "host:copy", "--reflink", "never"), "--reflink: no effect between hosts"),
        (("tree", "copy", "--reflink", "never", "--scheduler", "127.0.0.1:9"), "--reflink: no effect with"),
    ]
    for words, said in refused:
        ran = waystage("copy", *words).expect(2)
        assert said in ran.err
    assert [path.name for path in tmp_path.iterdir()] == ["tree"]
